"""What is in the wheel, as those meet it who install it."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import signal
import subprocess
import sys
import venv

import pytest
from support import ETCD, ROOT, public_modules, wait_until
from torchrun import FINDS_BACKENDS

import rallypoint

WHEELS = list((ROOT / "target/python/wheels").glob("rallypoint-*.whl"))


def test_it_is_the_installed_package_that_is_tested():
    assert ROOT / "target/python/venv" in pathlib.Path(rallypoint.__file__).parents


def test_one_wheel_for_every_python_from_3_10_on():
    (wheel,) = WHEELS
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, python, abi) == ("rallypoint", "cp310", "abi3")
    assert version == rallypoint.__version__ == importlib.metadata.version("rallypoint")
    assert platform.startswith("manylinux_")


def test_the_licences_come_with_it():
    package = importlib.metadata.distribution("rallypoint")
    assert package.metadata["License-Expression"] == "MIT OR Apache-2.0"
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        (found,) = [file for file in package.files if file.name == name]
        assert found.read_text() == (ROOT / name).read_text()


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A fresh environment with nothing but the wheel, made on a path without a compiler."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder)
    python = str(folder / "bin/python")
    environment = {"PATH": str(folder / "bin"), "HOME": str(folder)}
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--quiet"]
    subprocess.run([*install, "--disable-pip-version-check", str(WHEELS[0])], env=environment, check=True)
    return folder, environment


def test_it_installs_without_a_compiler_and_works_without_torch(clean):
    folder, environment = clean
    code = """
import rallypoint
with rallypoint.EtcdServer() as server:
    assert server.is_embedded, "there is no etcd on this path"
    store = rallypoint.Store(server.get_endpoint(), "/job", timeout=10)
    store.set("key", "value")
    print(store.get("key").decode())
try:
    import rallypoint.torch
except ModuleNotFoundError as error:
    print(error.name)
"""
    run = subprocess.run([folder / "bin/python", "-c", code], env=environment, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("value\ntorch\n", "")


def test_the_command_is_there_and_ends_as_the_shell_expects(clean):
    folder, environment = clean
    command = folder / "bin/rallypoint"
    version = subprocess.run([command, "--version"], env=environment, capture_output=True, text=True)
    assert version.returncode == 0
    assert version.stdout.splitlines()[0] == f"rallypoint {rallypoint.__version__}"
    wrong = subprocess.run([command, "serve", "--colour"], env=environment, capture_output=True, text=True)
    assert wrong.returncode == 2 and "--colour" in wrong.stderr
    for end in (signal.SIGINT, signal.SIGTERM):
        serve = subprocess.Popen(
            [command, "serve", "--listen", "127.0.0.1:0"], env=environment, stderr=subprocess.PIPE, text=True
        )
        assert "serving" in serve.stderr.readline()
        serve.send_signal(end)
        assert serve.wait(timeout=30) == 0, serve.stderr.read()
        serve.stderr.close()


def test_the_command_launches_workers(clean, tmp_path):
    folder, environment = clean
    script = tmp_path / "worker.py"
    script.write_text("import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    run = [folder / "bin/rallypoint", "run", "--standalone", "--nproc-per-node=2", script]
    ran = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert sorted(line[-6:] for line in ran.stdout.splitlines()) == ["0 of 2", "1 of 2"]


@pytest.mark.parametrize("asked", [["worker.py"], ["-m", "worker"]])
def test_the_command_runs_scripts_with_the_python_that_it_is_installed_in(clean, tmp_path, asked):
    folder, environment = clean
    (tmp_path / "worker.py").write_text("import sys, rallypoint; print(sys.executable, rallypoint.__version__)")
    # The one on the path is another.
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin/python"
    other.write_text("#!/bin/sh\necho the python of the path\n")
    other.chmod(0o755)
    environment = {**environment, "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    run = [folder / "bin/rallypoint", "run", "--standalone", *asked]
    ran = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(f"{folder}/bin/python {rallypoint.__version__}\n"), ran.stdout
    named = subprocess.run(run, env={**environment, "PYTHON_EXEC": str(other)}, capture_output=True, text=True, cwd=tmp_path)
    assert "the python of the path" in named.stdout, named.stderr


def in_a_fresh_process(code: str) -> str:
    """What the code prints, where warnings are errors and nothing is said beside it."""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout


def test_who_imports_torchs_rendezvous_loads_nothing_of_ours_but_the_names_of_the_backends():
    code = """
import sys
from torch.distributed.elastic.rendezvous import registry
print(sorted(name for name in sys.modules if name.startswith("rallypoint")))
"""
    if FINDS_BACKENDS:
        assert in_a_fresh_process(code) == "['rallypoint', 'rallypoint._heartbeat', 'rallypoint._plugin', 'rallypoint.errors']\n"


def import_orders():
    """What is imported first: ours, and torch. The other modules are variants."""
    for module in [*public_modules(), "torch"]:
        marks = [] if module in ("rallypoint", "rallypoint.torch", "torch") else [pytest.mark.long]
        yield pytest.param(module, marks=marks)


@pytest.mark.parametrize("first", list(import_orders()))
def test_every_public_module_can_be_imported_first_in_silence_and_torchrun_has_the_backends(first):
    code = f"""
import {first}
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
from rallypoint.torch import EtcdStore, create_rdzv_handler
for name in ("rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2"):
    # What is there under this name must be the same, or it would be an error; an older torch has nothing there.
    assert not {FINDS_BACKENDS} or name in registry._registry, name
    registry.register(name, create_rdzv_handler)
"""
    assert in_a_fresh_process(code) == ""


def test_from_rallypoint_torch_import_is_enough_for_torchrun():
    code = """
from rallypoint.torch import create_rdzv_handler
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry, rendezvous_handler_registry
for name in ("rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2"):
    rendezvous_handler_registry.register(name, create_rdzv_handler)  # for an older torch
    params = RendezvousParameters(name, "localhost:0", "run", 1, 1, local_addr="127.0.0.1", last_call_timeout=1)
    handler = registry.get_rendezvous_handler(params)
    print(handler.get_backend(), handler.next_rendezvous().world_size)
    handler.shutdown()
"""
    assert in_a_fresh_process(code) == "rallypoint 1\nrallypoint-etcd 1\nrallypoint-etcd-v2 1\n"


def test_the_package_shows_all_that_is_in_it():
    code = "import rallypoint; print(set(rallypoint.__all__) <= set(dir(rallypoint))); from rallypoint import *; print(Store)"
    assert in_a_fresh_process(code) == "True\n<class 'rallypoint.Store'>\n"
    with pytest.raises(AttributeError, match="module 'rallypoint' has no attribute 'Shop'"):
        rallypoint.Shop  # noqa: B018


def test_a_server_ends_with_its_process_and_leaves_nothing(tmp_path, etcd):
    code = """
import os, sys, rallypoint
server = rallypoint.EtcdServer(binary=sys.argv[1])
server.start()
assert not server.is_embedded
server.get_client().put("key", "value")
print(server.get_endpoint(), flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, ETCD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    endpoint = process.stdout.readline().strip()
    assert rallypoint.Client(endpoint).list() == [(b"key", b"value")]
    process.kill()
    process.communicate()

    def is_gone():
        try:
            rallypoint.Client(endpoint, connect_timeout=1)
            return False
        except rallypoint.errors.StoreConnectionError:
            return not list(tmp_path.iterdir())

    wait_until("the server is gone", is_gone)


def test_a_forked_process_leaves_its_parents_server_alone():
    with rallypoint.EtcdServer(embedded=True) as server:
        pid = os.fork()
        if pid == 0:
            server.stop()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert server.get_client().list() == []
    with pytest.raises(RuntimeError, match="not running"):
        server.get_endpoint()
