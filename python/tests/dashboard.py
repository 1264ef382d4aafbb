"""The dashboard as a process, a real browser before it, and runs written into etcd as nodes write them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from support import ROOT, TIED, Cluster, wait_until

RALLYPOINT = [sys.executable, "-m", "rallypoint"]
TOKEN = "open-sesame-open-sesame"
# Operations of one transaction.
BATCH = 100


def chromium() -> str | None:
    """The browser: one that is named, that of scripts/setup, or Debian's."""
    ours = ROOT / ".tools/chromium/chromium"
    named = os.environ.get("RALLYPOINT_CHROMIUM", "").replace("unpack", "")
    return named or (str(ours) if ours.exists() else shutil.which("chromium"))


class Dashboard:
    """``rallypoint dashboard``, on a port of its own."""

    def __init__(self, endpoint: str, *flags: str, token: str | None = None):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RALLYPOINT_DASHBOARD")}
        if token is not None:
            environment["RALLYPOINT_DASHBOARD_TOKEN"] = token
        command = [*TIED, *RALLYPOINT, "dashboard", "--endpoint", endpoint, "--listen", "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.said = ""
        while not (found := re.search(r"the dashboard is at (\S+) ", self.said)):
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.said}"
            self.said += line
        self.url = found[1]

    def page(self, run: str) -> str:
        return f"{self.url}?run={urllib.request.quote(run, safe='')}"

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, dict, str]:
        """Status, headers and body of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **headers} if data else headers
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, dict(answer.headers), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read().decode()

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(timeout=60)
        self.process.stderr.close()
        return code


class Records:
    """A run in etcd, written as its nodes would: for more of them than a machine can run, and for what they never say."""

    def __init__(self, cluster: Cluster, run: str, min_nodes: int, max_nodes: int | None = None):
        self._cluster, self.run = cluster, run
        self._root = f"rallypoint/{run.replace('%', '%25').replace('/', '%2F')}/"
        self._settings = {"min_nodes": min_nodes, "max_nodes": max_nodes or min_nodes, "policy": "arrival"}
        self._pending: list[dict] = []
        self._events = 0
        self.now = int(time.time() * 1000)

    def put(self, key: str, value: object) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        put = {"key": encoded(self._root + key), "value": encoded(text)}
        self._pending.append({"request_put": put})

    def delete(self, key: str) -> None:
        self._pending.append({"request_delete_range": {"key": encoded(self._root + key)}})

    def write(self) -> None:
        """All of it at once, as far as a transaction holds it."""
        while self._pending:
            batch, self._pending = self._pending[:BATCH], self._pending[BATCH:]
            self._cluster.ask(0, "/v3/kv/txn", {"success": batch})

    def node(self, name: str, rank: int | None = None, round: int = 0, wants: str = "join", **more: object) -> None:
        record = {"version": 1, "incarnation": 1, "address": "10.0.0.1", "port": 29400, "wants": wants, "round": round}
        self.put(f"node/{name}", {**record, "settings": self._settings, "since": self.now // 1000 - 60, **more})
        if rank is not None:
            self.put(f"rank/{name}", {"version": 1, "round": round, "plan": f"plan{round}", "rank": rank, "incarnation": 1})

    def round(self, round: int, world_size: int, master: str, leader: str | None = None, **more: object) -> None:
        at = {"node": master, "address": "10.0.0.1", "port": 29400} if round else None
        plan = f"plan{round}" if round else ""
        record = {"version": 1, "round": round, "plan": plan, "world_size": world_size, "master": at}
        self.put("group/round", {**record, "settings": self._settings, "news": {}, **more})
        self.put("group/leader", leader or master)

    def group(self, size: int, rack_of: int = 8, name: str = "gpu-{:03}", **more: object) -> list[str]:
        """A round of so many nodes, at work."""
        names = [name.format(number) for number in range(size)]
        for rank, one in enumerate(names):
            place = {"rack": f"r{rank // rack_of:02}", "address": f"10.0.{rank // 250}.{rank % 250 + 1}"}
            self.node(one, rank, 1, "stay", **{**place, "about": "8 x H100", **more})
        self.round(1, size, names[0])
        self.event("formed", 1, 600, world_size=size, members=names[:8], gathering_ms=20_000, last_call_ms=4_000)
        self.write()
        return names

    def event(self, kind: str, round: int, seconds_ago: float, by: str = "gpu-000", alone: bool = True, **fields: object) -> None:
        """Of those that are not alone, all up to the next ``write`` have one revision."""
        at_ms = self.now - int(seconds_ago * 1000)
        record = {"version": 1, "at_ms": at_ms, "by": by, "round": round, "event": kind, **fields}
        self.put(f"event/group/{self._events:03}", record)
        self._events += 1
        if alone:
            self.write()

    def say(self, node: str, number: int, kind: str, round: int = 0, **fields: object) -> None:
        """An event that a node writes of itself."""
        self.put(f"event/node/{node}/{number}", {"version": 1, "at_ms": self.now, "by": node, "round": round, "event": kind, **fields})
        self.write()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Launcher:
    """``rallypoint run`` with one worker, which waits until a file says what to do."""

    PROGRAM = pathlib.Path(__file__).parent / "dashboard_worker.py"

    def __init__(self, endpoint: str, run: str, name: str, nnodes: str, folder: pathlib.Path):
        flags = {"nnodes": nnodes, "rdzv-endpoint": f"etcd://{endpoint}", "rdzv-id": run, "local-addr": "127.0.0.1"}
        conf = f"lease_timeout=5,last_call_timeout=1,node_id={name},rack=r{int(name[-1]) // 2}"
        command = [*TIED, *RALLYPOINT, "run", *(f"--{key}={flags[key]}" for key in flags), f"--rdzv-conf={conf}"]
        command += ["--nproc-per-node=1", "--max-restarts=3"]
        with open(folder / f"{name}.log", "w") as log:
            self.process = subprocess.Popen([*command, str(self.PROGRAM), str(folder / name)], stdout=log, stderr=log)

    def kill(self) -> None:
        """As if the machine were gone: with all it has started, so that nobody is left to say goodbye for it."""
        family = descendants(self.process.pid)
        for signal_number in (signal.SIGSTOP, signal.SIGKILL):
            for process in [self.process.pid, *family]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal_number)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=15)
            return
        self.kill()


def descendants(parent: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    with contextlib.suppress(FileNotFoundError):
        children = [int(child) for task in pathlib.Path(f"/proc/{parent}/task").iterdir() for child in (task / "children").read_text().split()]
        return [found for child in children for found in (child, *descendants(child))]
    return []


def wait_for_text(page, selector: str, text: str, seconds: float = 60) -> None:
    """Until an element of the page says so. If it does not, what it says instead is told."""
    try:
        wait_until(f"{selector} says {text!r}", lambda: text in (page.locator(selector).text_content() or ""), seconds)
    except AssertionError as late:
        raise AssertionError(f"{late}; it says {page.locator(selector).text_content()!r}") from None
