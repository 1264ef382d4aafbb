"""Where the nodes of a run meet: an etcd that is there, or the embedded server on one of them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

from rallypoint._rallypoint import LocalServer
from rallypoint.torch._log import logger

# Another process of this machine has just started it.
_FOR_ANOTHER_PROCESS = timedelta(seconds=10)


class Meeting(NamedTuple):
    """What this node connects to."""

    endpoint: str
    server: LocalServer | None = None
    # How long the server is waited for.
    patience: timedelta = timedelta(0)
    # How the others reach this machine, where the endpoint says so.
    address: str | None = None
    # The server is for this node alone.
    alone: bool = False


class Access(NamedTuple):
    """Who is let in."""

    # It is for a server that is there: none is started.
    only_connect: bool
    # What a server that is started is told of it.
    options: dict[str, str]
    # Why none can be started, where that is not what ``only_connect`` says.
    refusal: str | None


def find(endpoint: str, max_nodes: int, is_host: bool | None, access: Access, patience: timedelta) -> Meeting:
    """Starts the embedded server if the endpoint is on this machine and nothing listens there. One that is elsewhere is
    waited for, for ``patience``: somebody starts it, or mends it.

    An endpoint with ``etcd://`` before it, a list of endpoints, and one with users or TLS are somebody else's etcd.
    """
    endpoint = endpoint.strip()
    bare = endpoint.removeprefix("etcd://")
    if bare != endpoint or "," in bare:
        return Meeting(bare, patience=patience)
    if (not bare and max_nodes == 1) or re.search(r":0$", bare):
        alone = LocalServer.alone(access.options)
        logger.info("this node meets itself, on an embedded server at %s", alone.endpoint)
        return Meeting(alone.endpoint, alone, alone=True)
    bare = bare or "localhost"
    if access.only_connect or is_host is False:
        return Meeting(bare, patience=patience)
    if access.refusal:
        raise ValueError(access.refusal)
    server, is_local = LocalServer.on_demand(bare, access.options)
    if server is not None:
        everywhere = ", on all its addresses: that name is not known to be one of them" if server.is_everywhere else ""
        logger.info("nothing listens at %s: this node starts the embedded server%s, which ends with it", bare, everywhere)
    elif not is_local:
        return Meeting(bare, patience=patience)
    return Meeting(bare, server, _FOR_ANOTHER_PROCESS, _address(bare))


def _address(endpoint: str) -> str | None:
    """How other machines reach this one, whose endpoint it is. Asked itself, a machine may take its own name for a
    loopback address."""
    host = re.sub(r"^https?://|:\d+/?$", "", endpoint).strip("[]")
    return None if host == "localhost" or host.startswith("127.") or host == "::1" else host
