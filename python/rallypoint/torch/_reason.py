"""Why a node ends its part of a run, as far as torchrun lets a handler know."""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from rallypoint._rallypoint import NODE_FINISHED


def of(caller: FrameType | None) -> str:
    """The reason to close a run with. torchrun does not hand one over, but it shuts a handler down on the way of its own
    failure; ``caller`` is who does so."""
    error = sys.exc_info()[1]
    # One that somebody handles further up is none of ours.
    if error is None or not _came_through(error, caller):
        return NODE_FINISHED
    if isinstance(error, ChildFailedError):
        return _failed(*error.get_first_failure())
    return f"torchrun on {socket.gethostname()} failed with {type(error).__name__}: {_first_line(str(error))}"


def _came_through(error: BaseException, frame: FrameType | None) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame is frame:
            return True
        trace = trace.tb_next
    return False


def _failed(rank: int, failure: ProcessFailure) -> str:
    """In the words of ``rallypoint run``."""
    message = _message(failure)
    error = f": {_first_line(message)}" if message else ""
    return f"rank {rank} on {socket.gethostname()} failed with {_exit(failure.exitcode)}{error}"


def _exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _message(failure: ProcessFailure) -> str:
    """What the worker wrote into its error file, if it has one; torch has a message for the others too."""
    recorded = failure.error_file_data.get("message") if failure.error_file != "<N/A>" else None
    if isinstance(recorded, dict):
        recorded = recorded.get("message")
    return recorded if isinstance(recorded, str) else ""


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
