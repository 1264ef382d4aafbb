"""How long agents of torchrun take to meet: Rallypoint's backend beside PyTorch's own.

    python agents.py HOST:PORT AGENTS ROUNDS LIMIT

HOST:PORT is an etcd that serves the v2 API, for PyTorch's clients; both sides use the same server. LIMIT is in seconds:
a backend of PyTorch's that takes longer has not formed the group, and is not asked again.

An agent is a process with a handler of its own, as torchrun makes it. The clock runs from the moment that all agents
are let go until the last of them is back from ``next_rendezvous``. The backends take turns.

Then it kills one agent, and measures until the rest has met again: of these agents, and of three that are torchrun
itself, until the last of the new workers runs. PyTorch's agents never learn of it, so there is nothing to compare with
but the lease.

Prints what it does, and last, as JSON, what it has measured.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

os.environ.setdefault("OMP_NUM_THREADS", "1")
logging.disable(logging.CRITICAL)

from torch.distributed import TCPStore  # noqa: E402
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry  # noqa: E402

# Imported before the fork. The registry would do it in each agent.
from torch.distributed.elastic.rendezvous import (  # noqa: E402, F401
    c10d_rendezvous_backend,
    dynamic_rendezvous,
    etcd_rendezvous,
    etcd_rendezvous_backend,
)

import rallypoint.torch  # noqa: E402, F401

OURS = "rallypoint"
BACKENDS = (OURS, "etcd", "etcd-v2", "c10d")
LEASE = 2
ENDPOINT = sys.argv[1]
AGENTS, ROUNDS, LIMIT = map(int, sys.argv[2:])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class NotFormed(Exception):
    """Some agent did not get into the group."""


class Agents:
    """Agents as processes, which report each round that they are in."""

    def __init__(self, backend: str, minimum: int, options: dict[str, str]):
        endpoint = f"127.0.0.1:{free_port()}" if backend == "c10d" else ENDPOINT
        run_id = uuid.uuid4().hex
        gate, self._open = os.pipe()
        self._reports, report = os.pipe()
        self._rest = b""
        self.pids = []
        for number in range(AGENTS):
            pid = os.fork()
            if pid == 0:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
                os.close(self._open)
                os.close(self._reports)
                # What fails is reported; PyTorch's backends say more than that.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                try:
                    self._work(backend, endpoint, run_id, number, minimum, options, gate, report)
                except BaseException as error:
                    os.write(report, (json.dumps([number, repr(error)[:300]]) + "\n").encode())
                finally:
                    os._exit(0)
            self.pids.append(pid)
        os.close(gate)
        os.close(report)

    def _work(self, backend, endpoint, run_id, number, minimum, options, gate, report) -> None:
        if backend == "c10d" and number == 0:
            # It listens before anybody connects, as etcd does. The handler's own store shares the server.
            host, _, port = endpoint.rpartition(":")
            server = TCPStore(host, int(port), None, True, multi_tenant=True, wait_for_workers=False)  # noqa: F841
        os.write(report, b"ready\n")
        os.read(gate, 1)
        params = RendezvousParameters(
            backend=backend,
            endpoint=endpoint,
            run_id=run_id,
            min_nodes=minimum,
            max_nodes=AGENTS,
            local_addr="127.0.0.1",
            timeout=LIMIT,
            join_timeout=LIMIT,
            **(options if backend == OURS else {}),
            **({"is_host": number == 0} if backend == "c10d" else {}),
        )
        handler = registry.get_rendezvous_handler(params)
        while True:
            info = handler.next_rendezvous()
            os.write(report, (json.dumps([number, info.rank, info.world_size]) + "\n").encode())
            while not handler.num_nodes_waiting():
                time.sleep(0.01)

    def _lines(self, count: int) -> list[str]:
        lines: list[str] = []
        end = time.monotonic() + LIMIT
        while len(lines) < count:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                lines.append(line.decode())
                self._rest = rest
                continue
            if not select.select([self._reports], [], [], max(0, end - time.monotonic()))[0]:
                raise NotFormed(f"not within {LIMIT} s")
            more = os.read(self._reports, 1 << 16)
            if not more:
                raise NotFormed("the agents ended")
            self._rest += more
        return lines

    def meet(self) -> float:
        """Lets them go; the seconds until all of them have met."""
        self._lines(AGENTS)
        began = time.monotonic()
        os.close(self._open)
        self._all_are_in(AGENTS)
        return time.monotonic() - began

    def lose_one(self) -> float:
        """Kills one; the seconds until the others have met again."""
        began = time.monotonic()
        os.kill(self.pids[0], signal.SIGKILL)
        self._all_are_in(AGENTS - 1)
        return time.monotonic() - began

    def _all_are_in(self, count: int) -> None:
        reports = [json.loads(line) for line in self._lines(count)]
        failed = [report for report in reports if len(report) == 2]
        if failed:
            raise NotFormed(failed[0][1])
        assert sorted(rank for _, rank, _ in reports) == list(range(count)), reports
        assert {world for _, _, world in reports} == {count}, reports

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self._reports)


def meet(backend: str) -> float | None:
    agents = Agents(backend, AGENTS, {})
    try:
        return agents.meet()
    except NotFormed as error:
        if backend == OURS:
            raise
        print(f"{backend} formed no group: {error}", flush=True)
        return None
    finally:
        agents.end()


def lose_one() -> float:
    agents = Agents(OURS, 1, {"lease_timeout": str(LEASE), "last_call_timeout": "30"})
    try:
        agents.meet()
        return agents.lose_one()
    finally:
        agents.end()


WORKER = """
import os, sys, time
with open(sys.argv[1], "a") as log:
    log.write(os.environ["WORLD_SIZE"] + "\\n")
time.sleep(3600)
"""


def torchrun_loses_one() -> float:
    """Kills one torchrun of three; the seconds until the workers of the others run in a group of two."""
    with tempfile.TemporaryDirectory() as folder:
        script, log = pathlib.Path(folder, "worker.py"), pathlib.Path(folder, "log")
        script.write_text(WORKER)
        log.touch()
        # No process outlives the one that started it.
        tied = ["setpriv", "--pdeathsig", "KILL"]
        torchrun = [*tied, sys.executable, "-m", "torch.distributed.run", "--nnodes=2:3", "--no-python"]
        torchrun += ["--rdzv-backend=rallypoint", f"--rdzv-endpoint={ENDPOINT}", f"--rdzv-id={uuid.uuid4().hex}"]
        torchrun += [f"--rdzv-conf=lease_timeout={LEASE},last_call_timeout=30", "--local-addr=127.0.0.1"]
        worker = [*tied, sys.executable, "-S", str(script), str(log)]
        agents = [subprocess.Popen([*torchrun, *worker], stderr=subprocess.DEVNULL) for _ in range(3)]

        def wait_for(world: int) -> None:
            end = time.monotonic() + LIMIT
            while log.read_text().split().count(str(world)) < world:
                if time.monotonic() > end:
                    raise NotFormed(f"torchrun started no {world} workers")
                time.sleep(0.005)

        try:
            wait_for(3)
            began = time.monotonic()
            agents[0].kill()
            wait_for(2)
            return time.monotonic() - began
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()


# Private, but there is no other way to have torchrun's registry in a program of one's own.
registry._register_default_handlers()
registry._register_out_of_tree_handlers()
# As in nodes.py: not looked through again in each agent.
gc.collect()
gc.freeze()
times: dict[str, list[float | None]] = {backend: [] for backend in BACKENDS}
again, torchrun = [], []
for round in range(ROUNDS):
    for backend in BACKENDS[round % len(BACKENDS) :] + BACKENDS[: round % len(BACKENDS)]:
        if None not in times[backend]:
            print(f"{AGENTS} agents, {backend}, round {round + 1} of {ROUNDS}", flush=True)
            times[backend].append(meet(backend))
    print(f"one of {AGENTS} agents is killed, round {round + 1} of {ROUNDS}", flush=True)
    again.append(lose_one())
    print(f"one of three torchruns is killed, round {round + 1} of {ROUNDS}", flush=True)
    torchrun.append(torchrun_loses_one())
print(json.dumps({"times": times, "again": again, "torchrun": torchrun, "lease": LEASE}))
