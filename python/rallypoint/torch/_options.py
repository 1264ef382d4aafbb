"""The options of the backends, in ``--rdzv-conf``. Those of the native one are checked where they are read."""

from __future__ import annotations

import difflib
import os
from datetime import timedelta

from torch.distributed.elastic.rendezvous import RendezvousParameters

# Whatever the backend, torchrun gives a timeout, and somebody may say who starts the server.
_ALWAYS = ("timeout", "is_host")

BARRIER = (
    "join_timeout",
    "last_call_timeout",
    "etcd_prefix",
    "protocol",
    "cacert",
    "cert",
    "key",
    "worker_store",
    "metrics_listen",
    "health_check",
    "health_check_timeout",
    "health_check_interval",
    "when_unhealthy",
)

DYNAMIC = (
    "api",
    "read_timeout",
    "protocol",
    "ssl_cert",
    "ssl_cert_key",
    "ca_cert",
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "cas_backoff_max_seconds",
)

# What the backends wait for a round where nothing else is said.
_JOIN_TIMEOUT = timedelta(seconds=600)

# Of the native backend: where an option comes from that is not given. The commands read the same.
_VARIABLES = {
    "cacert": "RALLYPOINT_CACERT",
    "cert": "RALLYPOINT_CLIENT_CERT",
    "key": "RALLYPOINT_CLIENT_KEY",
    "user": "RALLYPOINT_USER",
    "password": "RALLYPOINT_PASSWORD",
    "etcd_prefix": "RALLYPOINT_PREFIX",
    "metrics_listen": "RALLYPOINT_METRICS_LISTEN",
    "otlp_endpoint": "RALLYPOINT_OTLP_ENDPOINT",
    "health_check": "RALLYPOINT_HEALTH_CHECK",
    "health_check_timeout": "RALLYPOINT_HEALTH_CHECK_TIMEOUT",
    "health_check_interval": "RALLYPOINT_HEALTH_CHECK_INTERVAL",
    "when_unhealthy": "RALLYPOINT_WHEN_UNHEALTHY",
}
_PASSWORD_FILE = "RALLYPOINT_PASSWORD_FILE"
# Other names of the same.
_SAME = {"cacert": "ca_cert", "cert": "ssl_cert", "key": "ssl_cert_key"}

# Options that mean TLS.
_SECURE = ("cacert", "ca_cert", "cert", "ssl_cert", "key", "ssl_cert_key")


def text(value: object) -> str:
    """An option's value as it would be on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def checked(params: RendezvousParameters, known: tuple[str, ...] | None) -> dict[str, str]:
    """The options as texts. One that is not ``known`` is refused by name."""
    config = {name: text(value) for name, value in params.config.items() if value is not None}
    for name in config:
        if known is not None and name not in known and name not in _ALWAYS:
            names = (*known, "is_host")
            meant = "".join(f" did you mean {near!r}?" for near in difflib.get_close_matches(name, names, 1))
            there = f"{meant} there are: {', '.join(names)}"
            raise ValueError(f"the rendezvous backend {params.backend!r} has no option {name!r};{there}")
    config.pop("is_host", None)
    return config


def from_environment(config: dict[str, str]) -> dict[str, str]:
    """What the environment says of the way to etcd, where ``config`` does not."""
    found = {name: os.environ[variable] for name, variable in _VARIABLES.items() if os.environ.get(variable)}
    file = os.environ.get(_PASSWORD_FILE)
    if file and "user" in {**found, **config} and "password" not in config:
        try:
            with open(file, encoding="utf-8") as password:
                found["password"] = password.read().rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot read the password in {file}, which {_PASSWORD_FILE} names: {error}") from error
    return {name: value for name, value in found.items() if name not in config and _SAME.get(name) not in config}


def serves(config: dict[str, str]) -> bool:
    """Whether the agent serves the store that the workers meet at. Takes the option out."""
    # torch's own switch, for its own backends.
    shared = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"
    choice = config.pop("worker_store", "agent" if shared else "rank0")
    if choice not in ("agent", "rank0"):
        raise ValueError(f"the option 'worker_store' is agent or rank0, not {choice!r}")
    return choice == "agent"


def is_secure(config: dict[str, str]) -> bool:
    """Whether they ask for TLS."""
    return config.get("protocol") == "https" or ("protocol" not in config and any(config.get(name) for name in _SECURE))


def without_access(config: dict[str, str]) -> dict[str, str]:
    """The options without those that say how an etcd lets somebody in."""
    access = (*_SECURE, "protocol", "user", "password")
    return {name: value for name, value in config.items() if name not in access}


def join_timeout(config: dict[str, str]) -> timedelta:
    """How long a node waits to get in, and for an etcd before that."""
    for name in ("join_timeout", "timeout"):
        try:
            return timedelta(seconds=float(config[name]))
        except (KeyError, ValueError, OverflowError):
            # What is no time is refused where it is read.
            continue
    return _JOIN_TIMEOUT
