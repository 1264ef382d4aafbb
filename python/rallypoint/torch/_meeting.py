"""Where the nodes of a run meet: an etcd that is there, or the embedded server on one of them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

from rallypoint._rallypoint import LocalServer
from rallypoint.torch._log import logger

# Another node may yet start the server; c10d waits for as long.
_FOR_ANOTHER_NODE = timedelta(seconds=60)
# Another process of this machine has just started it.
_FOR_ANOTHER_PROCESS = timedelta(seconds=10)


class Meeting(NamedTuple):
    """What this node connects to."""

    endpoint: str
    server: LocalServer | None = None
    patience: timedelta = timedelta(0)


def find(endpoint: str, max_nodes: int, is_host: bool | None, secure: bool) -> Meeting:
    """Starts the embedded server if the endpoint is on this machine and nothing listens there.

    An endpoint with ``etcd://`` before it, a list of endpoints, and one with TLS are somebody else's etcd.
    """
    endpoint = endpoint.strip()
    bare = endpoint.removeprefix("etcd://")
    if bare != endpoint or "," in bare or secure:
        return Meeting(bare)
    if (not bare and max_nodes == 1) or re.search(r":0$", bare):
        server = LocalServer.alone()
        logger.info("this node meets itself, on an embedded server at %s", server.endpoint)
        return Meeting(server.endpoint, server)
    bare = bare or "localhost"
    if is_host is False:
        return Meeting(bare, patience=_FOR_ANOTHER_NODE)
    server, is_local = LocalServer.on_demand(bare)
    if server is not None:
        logger.info("nothing listens at %s: this node starts the embedded server, which ends with it", bare)
        return Meeting(bare, server)
    return Meeting(bare, patience=_FOR_ANOTHER_PROCESS if is_local else _FOR_ANOTHER_NODE)
