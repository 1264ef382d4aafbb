"""The Dockerfile agrees with what it is made of. scripts/test-image builds it and runs it, which needs root."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import manifests
import pytest
from support import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
CARGO = (ROOT / "Cargo.toml").read_text()
# What .dockerignore lets in.
LET_IN = re.findall(r"^!([\w.-]+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)


def cargo_says(name: str) -> str:
    return re.search(rf'^{name} = "(.+)"$', CARGO, re.MULTILINE)[1]


def test_versions_are_those_of_the_workspace():
    assert re.search(r"^ARG RUST=(.+)$", DOCKERFILE, re.MULTILINE)[1] == cargo_says("rust-version")
    assert re.search(r'image\.version="(.+)"', DOCKERFILE)[1] == cargo_says("version")
    images = {one["image"] for name in manifests.FILES for pod in manifests.pods(manifests.read(name)) for one in pod.containers}
    assert f"registry.example.com/rallypoint:{cargo_says('version')}" in images


def test_the_user_is_that_of_the_manifests():
    user, group = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE).groups()
    contexts = [pod.spec["securityContext"] for name in manifests.FILES for pod in manifests.pods(manifests.read(name))]
    assert {(one["runAsUser"], one["runAsGroup"]) for one in contexts} == {(int(user), int(group))}


def read_by_cargo(folder, names) -> subprocess.CompletedProcess:
    """What cargo makes of these alone."""
    for name in names:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / name)
    command = ["cargo", "metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"]
    # rust-toolchain.toml is left out: cargo is whichever is there.
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_build_has_all_that_cargo_reads(tmp_path):
    done = read_by_cargo(tmp_path, [name for name in LET_IN if name != "target"])
    assert done.returncode == 0, done.stderr
    targets = [(package["name"], target["name"]) for package in json.loads(done.stdout)["packages"] for target in package["targets"]]
    assert ("rallypoint", "rallypoint") in targets


@pytest.mark.parametrize("without", ["bench", "crates", "python"])
def test_what_is_left_out_is_missed(without, tmp_path):
    assert without in LET_IN
    assert read_by_cargo(tmp_path, set(LET_IN) - {without, "target"}).returncode != 0
