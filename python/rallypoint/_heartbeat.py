"""A sign of progress, for the launcher that looks for workers that hang.

``rallypoint run`` names a file for each worker in ``RALLYPOINT_HEARTBEAT_FILE``: 8 bytes that say what it is, a counter of 8
bytes, and 8 for the process that beats. When Python begins to end, the first 8 say so. A beat is one number more in there. It is written, not mapped into memory: a program
that empties the file would end this one then. The process that beats first is the worker. What it starts or forks, a data loader
for example, beats for nobody.
"""

from __future__ import annotations

import _thread
import atexit
import itertools
import os
import struct
from collections.abc import Callable

_VARIABLE = "RALLYPOINT_HEARTBEAT_FILE"
_BEGINS = b"rpbeat1\n"
_ENDS = b"rpends1\n"
_COUNTER = len(_BEGINS)
_OWNER = _COUNTER + 8
_SIZE = _OWNER + 8


def heartbeat() -> None:
    """Says that this worker makes progress: once a step is enough.

    For ``rallypoint run --hang-timeout``. It takes less than a microsecond, may be called from any thread and from signal
    handlers, and does nothing where no launcher looks: under torchrun, or in a process that the worker has started or forked.
    """
    _beat()


def _nothing() -> None:
    pass


def _first() -> None:
    """The first beat finds out whether this is a worker, and whose beats count: once, however many threads begin together."""
    global _beat
    with _opening:
        if _beat is _first:
            opened = _opened(os.environ.get(_VARIABLE, "")) or _nothing
            # A signal handler that beats may have come in between, in this very thread: it counts, and this one counts on.
            if _beat is _first:
                _beat = opened
    _beat()


def _opened(path: str) -> Callable[[], None] | None:
    try:
        file = os.open(path, os.O_RDWR)
    # None is named, or what is there cannot be written.
    except OSError:
        return None
    number = struct.Struct("<Q")
    text = os.pread(file, _SIZE, 0)
    if len(text) < _SIZE or not text.startswith((_BEGINS, _ENDS)):
        os.close(file)
        return None
    (owner,) = number.unpack_from(text, _OWNER)
    if owner not in (0, os.getpid()) and _runs(owner):
        os.close(file)
        return None
    worker = os.getpid()
    os.pwrite(file, number.pack(worker), _OWNER)
    # One before it may have ended.
    os.pwrite(file, _BEGINS, 0)
    (count,) = number.unpack_from(text, _COUNTER)
    write, pack, following = os.pwrite, number.pack, itertools.count(count + 1).__next__

    def beat() -> None:
        try:
            write(file, pack(following()), _COUNTER)
        except OSError:
            # Whoever has emptied the file on a full disk has not hung for that.
            pass

    def ends() -> None:
        # What the worker has forked may end like this, too.
        if os.getpid() == worker:
            try:
                write(file, _ENDS, 0)
            except OSError:
                pass

    atexit.register(ends)
    return beat


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _forget() -> None:
    global _beat
    _beat = _nothing


_opening = _thread.RLock()
_beat: Callable[[], None] = _first
os.register_at_fork(after_in_child=_forget)
