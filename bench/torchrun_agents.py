"""How long agents of torchrun take to meet: Rallypoint's backend beside PyTorch's own.

    python torchrun_agents.py ETCD [--agents 64] [--rounds 3] [--check] [--json FILE]

ETCD is the program to start: an etcd that serves the v2 API, for PyTorch's clients; both sides use the same server.
A backend of PyTorch's that has formed no group within two minutes takes for ever.
An agent is a process with a handler of its own, as torchrun makes it. The clock runs from the moment that all agents
are let go until the last of them is back from ``next_rendezvous``. The backends take turns, and what counts is the
median.

Then it kills one agent, and measures until the rest has met again: of these agents, and of three that are torchrun
itself, until the last of the new workers runs. PyTorch's agents never learn of it, so there is nothing to compare with
but the lease.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

os.environ.setdefault("OMP_NUM_THREADS", "1")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry  # noqa: E402

import rallypoint  # noqa: E402
import rallypoint.torch  # noqa: E402, F401  Imported before the fork, as torch is.

THEIRS = ("etcd", "etcd-v2", "c10d")
LEASE = 2
# A backend that takes longer has not formed the group.
LIMIT = 120


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class NotFormed(Exception):
    """Some agent did not get into the group."""


class Agents:
    """Agents as processes, which report each round that they are in."""

    def __init__(self, backend: str, endpoint: str, count: int, minimum: int, options: dict[str, str]):
        self.count = count
        run_id = uuid.uuid4().hex
        gate, self._open = os.pipe()
        self._reports, report = os.pipe()
        self._rest = b""
        self.pids = []
        for number in range(count):
            pid = os.fork()
            if pid == 0:
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
        os.write(report, b"ready\n")
        os.read(gate, 1)
        params = RendezvousParameters(
            backend=backend,
            endpoint=endpoint,
            run_id=run_id,
            min_nodes=minimum,
            max_nodes=self.count,
            local_addr="127.0.0.1",
            timeout=LIMIT,
            join_timeout=LIMIT,
            **(options if backend == "rallypoint" else {}),
            **({"is_host": number == 0} if backend == "c10d" else {}),
        )
        handler = registry.get_rendezvous_handler(params)
        while True:
            info = handler.next_rendezvous()
            os.write(report, (json.dumps([number, info.rank, info.world_size]) + "\n").encode())
            while not handler.num_nodes_waiting():
                time.sleep(0.01)

    def _lines(self, count: int) -> list[str]:
        lines = []
        while len(lines) < count:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                lines.append(line.decode())
                self._rest = rest
            else:
                more = os.read(self._reports, 1 << 16)
                if not more:
                    raise NotFormed("the agents ended")
                self._rest += more
        return lines

    def meet(self) -> float:
        """Lets them go; the seconds until all of them have met."""
        self._lines(self.count)
        began = time.monotonic()
        os.close(self._open)
        self._all_are_in(self.count)
        return time.monotonic() - began

    def lose_one(self) -> float:
        """Kills one; the seconds until the others have met again."""
        began = time.monotonic()
        os.kill(self.pids[0], signal.SIGKILL)
        self._all_are_in(self.count - 1)
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


WORKER = """
import os, sys, time
with open(sys.argv[1], "a") as log:
    log.write(os.environ["WORLD_SIZE"] + "\\n")
time.sleep(3600)
"""


def torchrun_loses_one(endpoint: str) -> float:
    """Kills one torchrun of three; the seconds until the workers of the others run in a group of two."""
    with tempfile.TemporaryDirectory() as folder:
        script, log = pathlib.Path(folder, "worker.py"), pathlib.Path(folder, "log")
        script.write_text(WORKER)
        log.touch()
        # No process outlives the one that started it.
        tied = ["setpriv", "--pdeathsig", "KILL"]
        torchrun = [*tied, sys.executable, "-m", "torch.distributed.run", "--nnodes=2:3", "--no-python"]
        torchrun += ["--rdzv-backend=rallypoint", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={uuid.uuid4().hex}"]
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


def measure(etcd: str, count: int, rounds: int) -> dict:
    times: dict[str, list[float]] = {backend: [] for backend in ("rallypoint", *THEIRS)}
    again, torchrun = [], []
    server = rallypoint.EtcdServer(binary=etcd)
    server.start()
    endpoint = server.get_endpoint()
    for _ in range(rounds):
        for backend, seen in times.items():
            where = f"127.0.0.1:{free_port()}" if backend == "c10d" else endpoint
            agents = Agents(backend, where, count, count, {})
            try:
                seen.append(agents.meet())
            except NotFormed as error:
                if backend == "rallypoint":
                    raise
                print(f"{backend} formed no group: {error}", file=sys.stderr)
                seen.append(float("inf"))
            finally:
                agents.end()
        agents = Agents("rallypoint", endpoint, count, 1, {"lease_timeout": str(LEASE), "last_call_timeout": "30"})
        try:
            agents.meet()
            again.append(agents.lose_one())
        finally:
            agents.end()
        torchrun.append(torchrun_loses_one(endpoint))
    server.stop()
    found = {"torch": torch.__version__, "agents": count, "rounds": rounds, "times": times}
    return {**found, "again": again, "torchrun": torchrun}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("etcd")
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail if a promise is not kept")
    parser.add_argument("--json", help="write all figures to this file")
    options = parser.parse_args()

    # Private, but there is no other way to have torchrun's registry in a program of one's own.
    registry._register_default_handlers()
    registry._register_out_of_tree_handlers()
    found = measure(options.etcd, options.agents, options.rounds)
    medians = {backend: statistics.median(seen) for backend, seen in found["times"].items()}
    best = min(THEIRS, key=lambda backend: medians[backend])
    ratio = medians["rallypoint"] / medians[best]
    print(f"- {options.agents} agents as processes, PyTorch {found['torch']}, {options.rounds} rounds in turn\n")
    print("| backend | until all have met: median (least - most) |\n| --- | --- |")
    for backend, seen in found["times"].items():
        print(f"| {backend} | {medians[backend]:.3f} s ({min(seen):.3f} - {max(seen):.3f}) |")
    kept = {True: "kept", False: "NOT KEPT"}
    fast, soon = ratio < 0.1, max(found["again"] + found["torchrun"]) < LEASE + 1
    print(f"\nrallypoint / PyTorch's best ({best}): {ratio:.3f}; promise < 0.1: {kept[fast]}")
    print(f"one agent killed, with a lease of {LEASE} s; promise < lease + 1 s: {kept[soon]}")
    for what, seen in [("until the rest has met again", found["again"]), ("torchrun, three", found["torchrun"])]:
        print(f"- {what}: median {statistics.median(seen):.2f} s, most {max(seen):.2f} s")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file)
    return 1 if options.check and not (fast and soon) else 0


if __name__ == "__main__":
    sys.exit(main())
