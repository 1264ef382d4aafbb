"""Where the nodes of a run meet: an etcd that is there, or the embedded server on one of them."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, TypeVar

from rallypoint import errors
from rallypoint._rallypoint import LocalServer
from rallypoint.torch._log import logger

_T = TypeVar("_T")

# Another node may yet start the server; c10d waits for as long.
_FOR_ANOTHER_NODE = timedelta(seconds=60)
# Another process of this machine has just started it.
_FOR_ANOTHER_PROCESS = timedelta(seconds=10)


class Meeting(NamedTuple):
    """What this node connects to."""

    endpoint: str
    server: LocalServer | None = None
    patience: timedelta = timedelta(0)
    # How the others reach this machine, where the endpoint says so.
    address: str | None = None

    def connected(self, connect: Callable[[], _T]) -> _T:
        """What ``connect`` gives; it is called again while the server may yet come."""
        end = time.monotonic() + self.patience.total_seconds()
        while True:
            try:
                return connect()
            except errors.RendezvousConnectionError:
                if time.monotonic() >= end:
                    raise
            time.sleep(random.uniform(0.1, 0.5))


def find(endpoint: str, max_nodes: int, is_host: bool | None, secure: bool) -> Meeting:
    """Starts the embedded server if the endpoint is on this machine and nothing listens there.

    An endpoint with ``etcd://`` before it, a list of endpoints, and one with TLS are somebody else's etcd.
    """
    endpoint = endpoint.strip()
    bare = endpoint.removeprefix("etcd://")
    if bare != endpoint or "," in bare or secure:
        return Meeting(bare)
    if (not bare and max_nodes == 1) or re.search(r":0$", bare):
        alone = LocalServer.alone()
        logger.info("this node meets itself, on an embedded server at %s", alone.endpoint)
        return Meeting(alone.endpoint, alone)
    bare = bare or "localhost"
    if is_host is False:
        return Meeting(bare, patience=_FOR_ANOTHER_NODE)
    server, is_local = LocalServer.on_demand(bare)
    if server is not None:
        logger.info("nothing listens at %s: this node starts the embedded server, which ends with it", bare)
    elif not is_local:
        return Meeting(bare, patience=_FOR_ANOTHER_NODE)
    return Meeting(bare, server, _FOR_ANOTHER_PROCESS, _address(bare))


def _address(endpoint: str) -> str | None:
    """How other machines reach this one, whose endpoint it is. Asked itself, a machine may take its own name for a
    loopback address."""
    host = re.sub(r"^https?://|:\d+/?$", "", endpoint).strip("[]")
    return None if host == "localhost" or host.startswith("127.") or host == "::1" else host
