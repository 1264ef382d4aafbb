"""The examples in docs/python.md, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from support import ROOT
from torchrun import TORCHRUN

TEXT = (ROOT / "docs/python.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SHELL = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
CLUSTER = "etcd1:2379,etcd2:2379,etcd3:2379"
# What each prints.
OUTPUTS = {
    "address/0": "b'10.0.0.7:29500'\n",
    "AsyncStore": "b'now'\n",
    "init_process_group": "",
    "create_rdzv_handler": "0 1\n",
    "EtcdServer()": "b'value'\n",
    "TcpStoreServer": "value\n",
}


def run(command, **kwargs) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **kwargs)
    assert done.returncode == 0, done.stderr
    # Some releases of torch have gloo speak up.
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("[Gloo]"))


@pytest.mark.parametrize("example", [code for code in PYTHON if not code.startswith("# train.py")])
def test_python_examples_run(example, etcd):
    (output,) = [output for mark, output in OUTPUTS.items() if mark in example]
    assert run([sys.executable, "-c", example.replace(CLUSTER, etcd)]) == output


def test_the_torchrun_examples_run(etcd, tmp_path):
    (script,) = [code for code in PYTHON if code.startswith("# train.py")]
    (tmp_path / "train.py").write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    commands = [shlex.split(line.replace("\\\n", "")) for line in SHELL if line.startswith("torchrun")]
    with_etcd, shared, alone = commands
    for command in (with_etcd, shared, alone):
        assert command[:2] == ["torchrun", "--rdzv-backend=rallypoint"] and command[-1] == "train.py"
    (standalone,) = [shlex.split(line) for line in SHELL if line.startswith("python -m rallypoint.torchrun")]
    for command in ([*TORCHRUN, *alone[1:]], [sys.executable, *standalone[1:]]):
        said = run(command, cwd=tmp_path, env=environment)
        # Two workers write at once: where a line ends is up to them.
        assert sorted(re.findall(r"rank \d of \d: \d", said)) == ["rank 0 of 2: 2", "rank 1 of 2: 2"]
    # The others, on the one machine that there is.
    fitted = [
        re.sub(r"^--nnodes=.*", "--nnodes=1", re.sub(r"^--nproc-per-node=.*", "--nproc-per-node=1", word))
        for word in with_etcd[1:]
    ]
    fitted = [word.replace(CLUSTER, etcd) for word in fitted]
    ours = [sys.executable, "-m", "rallypoint.torchrun"]
    assert run([*ours, *fitted], cwd=tmp_path, env=environment) == "rank 0 of 1: 1\n"
