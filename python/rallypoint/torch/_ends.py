"""When this process's children ended. torchrun looks only now and then, and remembers whole seconds."""

from __future__ import annotations

import os
import pathlib
import select
import threading
import time


class Ends:
    """Watches the children of this process."""

    def __init__(self) -> None:
        self._ended: dict[int, float] = {}
        self._watched: set[int] = set()

    def watch(self) -> None:
        """Watches the children that there are now, from now on."""
        pidfds = {}
        for pid in _children() - self._watched:
            try:
                pidfds[os.pidfd_open(pid)] = pid
            except (OSError, AttributeError):
                # It is gone, or the system cannot tell.
                continue
        if pidfds:
            self._watched.update(pidfds.values())
            threading.Thread(target=self._wait, args=(pidfds,), name="rallypoint-ends", daemon=True).start()

    def of(self, pid: int) -> float | None:
        """When this process ended, in seconds since 1970, if that was seen."""
        return self._ended.get(pid)

    def _wait(self, pidfds: dict[int, int]) -> None:
        poll = select.poll()
        for pidfd in pidfds:
            poll.register(pidfd, select.POLLIN)
        while pidfds:
            for pidfd, _ in poll.poll():
                self._ended[pidfds.pop(pidfd)] = time.time()
                poll.unregister(pidfd)
                os.close(pidfd)


def _children() -> set[int]:
    lists = pathlib.Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in lists for pid in _words(file)}


def _words(file: pathlib.Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        # The thread is gone.
        return []
