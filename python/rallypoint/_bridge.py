"""How results of the Rust side reach the event loop that waits for them."""

import asyncio
import weakref

from rallypoint._rallypoint import Completions

_bridges = weakref.WeakKeyDictionary()


class _Bridge:
    """The operations of one event loop. It knows its loop by nothing, so that the loop can be collected."""

    def __init__(self):
        self.completions = Completions()
        self._waiting = {}

    def future(self, ticket, task):
        """The future of the operation with that ticket; cancelling it ends the operation."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future

        def done(future):
            if future.cancelled():
                self._waiting.pop(ticket, None)
                task.cancel()

        future.add_done_callback(done)
        return future

    def deliver(self):
        """Hands out the results that have come in."""
        for ticket, value, error in self.completions.take():
            future = self._waiting.pop(ticket, None)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


def of_running_loop():
    """The bridge of the event loop that runs in this thread."""
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _Bridge()
        loop.add_reader(bridge.completions.fileno(), bridge.deliver)
    return bridge
