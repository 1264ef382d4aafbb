"""Whether a node of the run is going to be taken away."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any

_VARIABLE = "RALLYPOINT_PREEMPTION_FILE"
_TO_BE_TOLD = 5.0
_path: str | None = None
_is_listening = False


@dataclass(frozen=True)
class PreemptedNode:
    """A node that is going to be taken away."""

    node_rank: int
    """Its place among the nodes, as in ``GROUP_RANK``."""
    host: str
    """Its name."""
    ranks: tuple[int, ...]
    """The ranks of its workers."""
    signal: str
    """The name of the signal that said so."""
    deadline: float | None
    """When its workers are told to end, as in :func:`time.time`; None if nobody knows."""
    here: bool
    """It is the node of this worker."""


@dataclass(frozen=True)
class Preemption:
    """Nodes of the run that are going to be taken away. Made by :func:`preemption`."""

    nodes: tuple[PreemptedNode, ...]
    """Those that go, the first 16; none if nobody goes, and the nodes meet again since another one joins."""
    here: bool
    """The node of this worker is one of them."""
    deadline: float | None
    """The earliest of theirs, as in :func:`time.time`; None if nobody knows."""

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the deadline, 0 when it is over; None if nobody knows."""
        return None if self.deadline is None else max(0.0, self.deadline - time.time())


def preemption() -> Preemption | None:
    """Say whether a node of the run is going to be taken away, or one joins, and until when workers can save.

    All workers of all nodes learn of it, each at its own moment, so let them agree on the step after which they save; see
    ``examples/preemption.py``, and say :func:`preemption_saved` then. To call this is to ask for that time: without it, workers get SIGTERM at once. So call it from
    the first step on. It takes about a microsecond, from any thread.

    Returns:
        What is known, or None if no node is; always None in a program that ``rallypoint run`` has not started.
    """
    if not _is_listening:
        _listen()
    if _path is None or not os.access(_path, os.F_OK):
        return None
    try:
        with open(_path, encoding="utf-8") as file:
            notice: dict[str, Any] = json.load(file)
    except OSError:
        # The round is over.
        return None
    nodes = tuple(
        PreemptedNode(
            node_rank=node["node"],
            host=node["host"],
            ranks=tuple(node["ranks"]),
            signal=node["signal"],
            deadline=node["deadline"],
            here=node["here"],
        )
        for node in notice["nodes"]
    )
    return Preemption(nodes=nodes, here=notice["here"], deadline=notice["deadline"])


def preemption_saved() -> None:
    """Say that this worker can be stopped without a loss: what it has is where the next one finds it.

    It is the last thing a worker does in a preemption, not something for every checkpoint. When all workers of the run have
    said so, the node that is preempted leaves, before its deadline, and the others meet again. A worker that has said it
    may exit, with any code, or wait to be stopped; that is not the end of the run. Where ``rallypoint run`` has not started
    the program it does nothing.
    """
    if not _is_listening:
        _listen()
    if _path is None:
        return
    # A worker may know of it from another one, a moment before its own node does; longer, where etcd is away.
    end = time.monotonic() + _TO_BE_TOLD
    while not os.access(_path, os.F_OK):
        if time.monotonic() > end:
            warnings.warn("this worker says that it has saved, and no node is known to be preempted", RuntimeWarning, stacklevel=2)
            break
        time.sleep(0.01)
    try:
        with open(_path + ".saved", "ab"):
            pass
    except OSError as error:
        # The round may be over. If it is not, the node leaves at its deadline.
        warnings.warn(f"cannot tell the launcher that this worker has saved: {error}", RuntimeWarning, stacklevel=2)


def _listen() -> None:
    """Leave the mark that lets the launcher give this worker time to save."""
    global _is_listening, _path
    path = os.environ.get(_VARIABLE)
    if path:
        try:
            with open(path + ".listening", "ab"):
                pass
            _path = path
        except OSError:
            # It is of a launcher that is gone, or cannot be written.
            pass
        _outlive_slurm()
    _is_listening = True


def _outlive_slurm() -> None:
    """Live on when Slurm sends SIGUSR1 to every process of the job, as the launcher does, unless the program handles it."""
    if "SLURM_JOB_ID" not in os.environ or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
