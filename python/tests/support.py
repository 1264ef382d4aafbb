"""Real etcd servers, and what waits for things to happen."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(os.environ["RALLYPOINT_ROOT"])
ETCD = os.environ.get("RALLYPOINT_ETCD_35", str(ROOT / ".tools/etcd-3.5/etcd"))
# Put before a command: it ends with this process, however that comes about.
TIED = ["setpriv", "--pdeathsig", "KILL"]


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, each another."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(what: str, condition, seconds: float = 60):
    """Waits until ``condition()`` is true, and returns what it returned."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


class Cluster:
    """Real etcd servers that form one cluster."""

    def __init__(self, size: int):
        self._folder = tempfile.mkdtemp(prefix="rallypoint-etcd-")
        ports = free_ports(2 * size)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.ports, peers = ports[:size], urls[size:]
        members = ",".join(f"n{i}={peer}" for i, peer in enumerate(peers))
        self.processes = [self._start(f"n{i}", urls[i], peers[i], members) for i in range(size)]
        wait_until("etcd is ready", lambda: all(map(self._is_healthy, urls[:size])))

    def _start(self, name: str, client: str, peer: str, members: str) -> subprocess.Popen:
        flags = {
            "name": name,
            "data-dir": f"{self._folder}/{name}",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": members,
            "initial-cluster-token": self._folder,
            "log-level": "error",
        }
        command = [*TIED, ETCD, "--enable-v2", "--unsafe-no-fsync", *(f"--{key}={flags[key]}" for key in flags)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @staticmethod
    def _is_healthy(url: str) -> bool:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as reply:
                return json.load(reply)["health"] == "true"
        except (OSError, urllib.error.URLError):
            return False

    @property
    def endpoint(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def kill(self, member: int) -> None:
        self.processes[member].kill()
        self.processes[member].wait()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder)
