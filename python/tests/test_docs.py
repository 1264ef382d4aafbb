"""The Python in README.md and docs/*.md, run as it stands there: each example in a process of its own, with warnings as
errors. Only what is there once per reader is replaced: the endpoints, the numbers of nodes, the run id."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import uuid

import pytest
from support import ROOT, free_ports, wait_until
from torchrun import TORCHRUN

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]}
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CLUSTER = re.compile(r"\betcd\d(:2379)?(,etcd\d(:2379)?)*")
# What each example prints, by words that stand in it.
OUTPUTS = {
    "address/0": "b'10.0.0.7:29500'\n",
    "AsyncStore": "b'now'\n",
    "rallypoint.Rendezvous": "rank 0 of 1\n",
    "AsyncRendezvous": "0 1\n",
    "init_process_group": "",
    "create_rdzv_handler": "0 1\n",
    "EtcdServer()": "b'value'\n",
    "TcpStoreServer": "value\n",
    "FileTimerClient": "",
    "rallypoint.preemption()": "",
    "rallypoint.heartbeat()": "",
}
# Lines of Python and torchrun that are not run, and why.
SKIPPED = {
    "TORCHELASTIC_ETCD_BINARY_PATH=$(command -v rallypoint-server) python train.py": "the wheel has no "
    "rallypoint-server; crates/rallypoint/tests/commands.rs has PyTorch start it so",
}


def examples(language: str) -> list:
    """The blocks of this language on all pages, each with its page as its name."""
    found = []
    for page, text in PAGES.items():
        found += [pytest.param(code, id=page) for kind, code in BLOCK.findall(text) if kind == language]
    return found


def on_one_machine(line: str) -> str:
    """The command for one node with one worker."""
    line = re.sub(r"--nnodes[= ]\S+", "--nnodes=1", line)
    return re.sub(r"--nproc-per-node[= ]\S+", "--nproc-per-node=1", line)


def commands() -> list:
    """The lines of shell that start torchrun or a script; those that come to the same on one machine only once."""
    found = {}
    for example in examples("sh"):
        for line in re.sub(r"\\\n\s*", "", example.values[0]).splitlines():
            if re.search(r"^(\w+=.*)?\b(torchrun|python3? (-m rallypoint|\w+\.py))\b", line):
                # Each torchrun takes seconds: those of the first pages stand for the others.
                # The README's are run as they stand by scripts/test-readme.
                is_long = "torchrun" in line and example.id != "docs/python.md"
                marks = [pytest.mark.long] if is_long else []
                command = pytest.param(line, id=f"{example.id}: {line}", marks=marks)
                found.setdefault(CLUSTER.sub("etcd", on_one_machine(line)), command)
    return list(found.values())


def run(command, **kwargs) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    environment.update(kwargs.pop("env", {}))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


TRAIN = [example for example in examples("python") if example.values[0].startswith("# train.py")]


@pytest.mark.parametrize("code", [example for example in examples("python") if example not in TRAIN])
def test_python_examples_run_and_say_what_they_should(code, etcd, tmp_path):
    (output,) = [output for mark, output in OUTPUTS.items() if mark in code]
    (tmp_path / "example.py").write_text(CLUSTER.sub(etcd, code))
    command = [sys.executable, "example.py"]
    if "TORCHELASTIC_TIMER_FILE" in code:
        # The launcher makes the file.
        command = [sys.executable, "-m", "rallypoint", "run", "--standalone", "--log-level", "warn", *command[1:]]
    done = run(command, cwd=tmp_path, env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    # Some releases of torch have gloo speak up.
    said = "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("[Gloo]"))
    assert (said, done.stderr) == (output, "")


def fitted(line: str, etcd: str) -> list[str]:
    """The command for the one machine and the one etcd that there are."""
    line = re.sub(r"(--rdzv-id[= ])\S+", rf"\g<1>{uuid.uuid4().hex}", on_one_machine(line))
    line = re.sub(r"\b(node\d|HOST):2379", etcd if "etcd-v2" in line else f"localhost:{free_ports(1)[0]}", line)
    program, *words = shlex.split(CLUSTER.sub(etcd, line), comments=True)
    return [*(TORCHRUN if program == "torchrun" else [sys.executable]), *words]


@pytest.mark.parametrize("line", [line for line in commands() if line.values[0] not in SKIPPED])
def test_commands_with_python_run(line, etcd, tmp_path):
    ((script,),) = [example.values for example in TRAIN]
    (tmp_path / "train.py").write_text(script)
    # PyTorch's own backends on etcd, and the package that they use, have warnings of their own.
    own = {} if "rallypoint" in line else {"PYTHONWARNINGS": "default"}
    with contextlib.ExitStack() as stack:
        if "GATEWAY:2379" in line:
            line = line.replace("GATEWAY:2379", stack.enter_context(gateway(etcd)))
        done = run(fitted(line, etcd), cwd=tmp_path, env=own)
    assert "rank 0 of 1: 1\n" in done.stdout


@contextlib.contextmanager
def gateway(etcd):
    """The endpoint of a gateway to this etcd."""
    port = free_ports(1)[0]

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
            return True
        return False

    command = [sys.executable, "-m", "rallypoint", "gateway", "--listen", f"localhost:{port}", "--endpoint", etcd]
    with subprocess.Popen(command) as process:
        try:
            wait_until("the gateway listens", listens)
            yield f"localhost:{port}"
        finally:
            process.terminate()


def test_what_is_skipped_is_there():
    assert set(SKIPPED) <= {line.values[0] for line in commands()}
