"""Real etcd servers, and what waits for things to happen."""

from __future__ import annotations

import json
import os
import pathlib
import pkgutil
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import rallypoint

ROOT = pathlib.Path(os.environ["RALLYPOINT_ROOT"])
ETCD = os.environ.get("RALLYPOINT_ETCD_35", str(ROOT / ".tools/etcd/etcd"))
# Put before a command: it ends with this process, however that comes about.
TIED = ["setpriv", "--pdeathsig", "KILL"]


def public_modules() -> list[str]:
    """All modules of the package but those whose names begin with an underscore."""
    found = pkgutil.walk_packages(rallypoint.__path__, "rallypoint.")
    return ["rallypoint", *(module.name for module in found if "._" not in module.name)]


def free_ports(count: int) -> list[int]:
    """Ports that the system gives to nobody else, each another. A server that is told one can listen on it."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    # Bound, and never listening, until this process ends.
    for one in sockets:
        one.detach()
    return ports


def wait_until(what: str, condition, seconds: float = 60):
    """Waits until ``condition()`` is true, and returns what it returned."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


def status(endpoint: str, run_id: str) -> dict | None:
    """A run, as an operator is told of it."""
    command = [sys.executable, "-m", "rallypoint", "status", "--json", "--endpoint", endpoint, run_id]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return json.loads(asked.stdout) if asked.returncode == 0 else None


def events(endpoint: str, run_id: str) -> list[dict]:
    """What happened in a run, in order."""
    command = [sys.executable, "-m", "rallypoint", "events", "--json", "--endpoint", endpoint, run_id]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in asked.stdout.splitlines()]


def states(endpoint: str, run_id: str) -> list[str]:
    """What the nodes of a run are: joining, member, spare and so on."""
    run = status(endpoint, run_id)
    return sorted(node["state"] for node in run["nodes"]) if run else []


def self_signed(folder: str) -> tuple[str, str]:
    """The files of a certificate for this machine that is its own authority, and of its key."""
    cert, key = f"{folder}/cert.pem", f"{folder}/key.pem"
    names = ["-subj", "/CN=rallypoint", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert]
    subprocess.run([*make, *names], check=True, capture_output=True)
    return cert, key


class Cluster:
    """Real etcd servers that form one cluster; with ``tls``, clients have to speak it."""

    def __init__(self, size: int, tls: bool = False):
        self._folder = tempfile.mkdtemp(prefix="rallypoint-etcd-")
        ports = free_ports(2 * size)
        self.ports = ports[:size]
        self._urls = [f"{'https' if tls else 'http'}://127.0.0.1:{port}" for port in self.ports]
        peers = [f"http://127.0.0.1:{port}" for port in ports[size:]]
        members = ",".join(f"n{i}={peer}" for i, peer in enumerate(peers))
        self.cacert, self._more = None, []
        if tls:
            self.cacert, key = self_signed(self._folder)
            self._more = ["--cert-file", self.cacert, "--key-file", key]
        self.processes = [self._start(f"n{i}", self._urls[i], peers[i], members) for i in range(size)]
        wait_until("etcd is ready", lambda: all(map(self._is_healthy, range(size))))

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
        command = [*TIED, ETCD, "--enable-v2", "--unsafe-no-fsync", *self._more]
        command += [f"--{key}={flags[key]}" for key in flags]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, member: int, path: str, body: dict[str, str] | None = None) -> dict:
        """What a member answers to a request over HTTP; one with a body is a POST."""
        context = ssl.create_default_context(cafile=self.cacert) if self.cacert else None
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self._urls[member] + path, data, timeout=5, context=context) as reply:
            return json.load(reply)

    def _is_healthy(self, member: int) -> bool:
        try:
            return self.ask(member, "/health")["health"] == "true"
        except (OSError, urllib.error.URLError):
            return False

    def ask_for_passwords(self, password: str) -> None:
        """From now on, only ``root`` with this password is let in."""
        self.ask(0, "/v3/auth/user/add", {"name": "root", "password": password})
        self.ask(0, "/v3/auth/role/add", {"name": "root"})
        self.ask(0, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        self.ask(0, "/v3/auth/enable", {})

    @property
    def endpoint(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def leader(self) -> int:
        """The member that leads."""
        told = [self.ask(member, "/v3/maintenance/status", {}) for member in range(len(self.ports))]
        return [status["header"]["member_id"] for status in told].index(told[0]["leader"])

    def kill(self, member: int) -> None:
        self.processes[member].kill()
        self.processes[member].wait()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder)
