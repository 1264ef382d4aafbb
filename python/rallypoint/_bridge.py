"""How results of the Rust side reach the event loop that waits for them."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from rallypoint._rallypoint import Completions, Task

_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bridge] = weakref.WeakKeyDictionary()


class _Bridge:
    """The operations of one event loop. It knows its loop by nothing, so that the loop can be collected."""

    def __init__(self) -> None:
        self.completions = Completions()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def future(self, ticket: int, task: Task) -> asyncio.Future[Any]:
        """The future of the operation with that ticket; cancelling it ends the operation."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future

        def done(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                self._waiting.pop(ticket, None)
                task.cancel()

        future.add_done_callback(done)
        return future

    def deliver(self) -> None:
        """Hands out the results that have come in."""
        for ticket, value, error in self.completions.take():
            future = self._waiting.pop(ticket, None)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


def of_running_loop() -> _Bridge:
    """The bridge of the event loop that runs in this thread."""
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _Bridge()
        loop.add_reader(bridge.completions.fileno(), bridge.deliver)
    return bridge
