"""Why a node ends its part of a run, or meets again, as far as torchrun lets a handler know."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NamedTuple

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

# Given the process, when it ended, if that was seen.
Ended = Callable[[int], float | None]


class Failed(NamedTuple):
    """A worker that failed."""

    rank: int
    local_rank: int
    host: str
    pid: int
    # Below 0 for a signal.
    exitcode: int
    # Seconds since 1970.
    at: float
    message: str | None
    traceback: str | None


def error_in(caller: FrameType | None) -> BaseException | None:
    """The error that ends torchrun, of which it says nothing when it shuts a handler down. ``caller`` is who does so."""
    error = sys.exc_info()[1]
    # One that somebody handles further up is none of ours.
    return error if error is not None and _came_through(error, caller) else None


def _came_through(error: BaseException, frame: FrameType | None) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame is frame:
            return True
        trace = trace.tb_next
    return False


def of(error: BaseException, node: str) -> str:
    """An error that is no worker's, in a line."""
    return f"torchrun on {node} failed with {type(error).__name__}: {_first_line(str(error))}"


def failure_of(error: BaseException | None, node: str, ended: Ended) -> Failed | None:
    """The worker that failed first on this node, if it is that which ends torchrun."""
    return _first(error.failures, node, ended) if isinstance(error, ChildFailedError) else None


def failure_before(frame: FrameType | None, node: str, ended: Ended) -> Failed | None:
    """The worker that failed first on this node, if torchrun meets the others again for that. It says nothing of it, but
    what it knows is on the stack."""
    while frame is not None:
        if frame.f_code.co_name == "_invoke_run":
            failures = getattr(frame.f_locals.get("run_result"), "failures", None)
            return _first(failures, node, ended) if failures else None
        frame = frame.f_back
    return None


def _first(failures: Mapping[int, ProcessFailure], node: str, ended: Ended) -> Failed:
    return min((_failed(rank, failure, node, ended) for rank, failure in failures.items()), key=lambda failed: failed.at)


def _failed(rank: int, failure: ProcessFailure, node: str, ended: Ended) -> Failed:
    message, traceback = _recorded(failure)
    at = _moment(failure, ended)
    return Failed(rank, failure.local_rank, node, failure.pid, failure.exitcode, at, message, traceback)


def _moment(failure: ProcessFailure, ended: Ended) -> float:
    """When it went wrong: a worker writes its error down before it takes its time to end. torch has whole seconds."""
    moments = [moment for moment in [ended(failure.pid)] if moment is not None]
    try:
        moments.append(os.stat(failure.error_file).st_mtime)
    except OSError:
        # It has none.
        pass
    return min(moments, default=failure.timestamp + 0.999)


def _recorded(failure: ProcessFailure) -> tuple[str | None, str | None]:
    """What the worker wrote into its error file, if it has one; torch has a message for the others too."""
    recorded = failure.error_file_data.get("message") if failure.error_file != "<N/A>" else None
    if not isinstance(recorded, dict):
        return (recorded if isinstance(recorded, str) else None), None
    message, more = recorded.get("message"), recorded.get("extraInfo")
    traceback = more.get("py_callstack") if isinstance(more, dict) else None
    return (message if isinstance(message, str) else None), (traceback if isinstance(traceback, str) else None)


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
