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
    "store_cacert",
    "store_cert",
    "store_key",
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
    "token": "RALLYPOINT_TOKEN",
    "token_file": "RALLYPOINT_TOKEN_FILE",
    "etcd_prefix": "RALLYPOINT_PREFIX",
    "metrics_listen": "RALLYPOINT_METRICS_LISTEN",
    "otlp_endpoint": "RALLYPOINT_OTLP_ENDPOINT",
    "health_check": "RALLYPOINT_HEALTH_CHECK",
    "health_check_timeout": "RALLYPOINT_HEALTH_CHECK_TIMEOUT",
    "health_check_interval": "RALLYPOINT_HEALTH_CHECK_INTERVAL",
    "when_unhealthy": "RALLYPOINT_WHEN_UNHEALTHY",
    "exclude_for": "RALLYPOINT_EXCLUDE_FOR",
    "host": "RALLYPOINT_HOST",
}
_PASSWORD_FILE = "RALLYPOINT_PASSWORD_FILE"
# Other names of the same.
_SAME = {"cacert": "ca_cert", "cert": "ssl_cert", "key": "ssl_cert_key"}
# Options in whose place another one may be given.
_INSTEAD = {**_SAME, "password": "password_file", "token": "token_file", "token_file": "token"}
# Variables that workers, which have the environment of the agent, are not to find there; and what was in them.
_SECRETS = ("RALLYPOINT_PASSWORD", "RALLYPOINT_TOKEN")
_taken: dict[str, str] = {}

# For TLS from node to node, which workers do not speak themselves.
_STORE_FILES = ("store_cacert", "store_cert", "store_key")

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
            meant = "".join(f"did you mean {near!r}?" for near in difflib.get_close_matches(name, names, 1))
            there = meant or f"there are: {', '.join(names)}"
            raise ValueError(f"the rendezvous backend {params.backend!r} has no option {name!r}; {there}")
    config.pop("is_host", None)
    return config


def hide_secrets() -> None:
    """Takes secrets out of the environment, and keeps them for who asks :func:`_variable`."""
    _taken.update({name: os.environ.pop(name) for name in _SECRETS if name in os.environ})


def _variable(name: str) -> str | None:
    return _taken.get(name) if name in _SECRETS else os.environ.get(name)


def from_environment(config: dict[str, str]) -> dict[str, str]:
    """What the environment says of the way to etcd, where ``config`` does not."""
    hide_secrets()
    values = {name: _variable(variable) for name, variable in _VARIABLES.items()}
    found = {name: value for name, value in values.items() if value}
    # It is set for others too: of a node that is not to be kept out it says nothing.
    if {**found, **config}.get("when_unhealthy") != "exclude":
        found.pop("exclude_for", None)
    file = os.environ.get(_PASSWORD_FILE)
    if file and "user" in {**found, **config} and not {"password", "password_file"} & config.keys():
        try:
            with open(file, encoding="utf-8") as password:
                found["password"] = password.read().rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot read the password in {file}, which {_PASSWORD_FILE} names: {error}") from error
    return {name: value for name, value in found.items() if name not in config and _INSTEAD.get(name) not in config}


def has_token() -> bool:
    """Whether the environment has a token, for backends that can show none."""
    hide_secrets()
    return any(_variable(_VARIABLES[name]) for name in ("token", "token_file"))


def serves(config: dict[str, str]) -> bool:
    """Whether the agent serves the store that the workers meet at. Takes the option out, but for proxies, which are the Rust
    side's."""
    # torch's own switch, for its own backends.
    shared = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"
    choice = config.pop("worker_store", "agent" if shared else "rank0")
    if choice not in ("agent", "proxy", "rank0"):
        raise ValueError(f"the option 'worker_store' is agent, proxy or rank0, not {choice!r}")
    if choice == "proxy":
        config["worker_store"] = choice
    elif any(name in config for name in _STORE_FILES):
        raise ValueError(f"the options {', '.join(_STORE_FILES)} are for worker_store=proxy: give that too")
    return choice != "rank0"


def _is_secure(config: dict[str, str]) -> bool:
    """Whether they ask for TLS."""
    return config.get("protocol") == "https" or ("protocol" not in config and any(config.get(name) for name in _SECURE))


def only_connect(config: dict[str, str], native: bool) -> bool:
    """Whether they are for a server that is there: one with users, or with certificates that are not this node's."""
    own = native and all(config.get(name) or config.get(other) for name, other in _SAME.items())
    return bool(config.get("user")) or (_is_secure(config) and not own)


def of_server(config: dict[str, str]) -> dict[str, str]:
    """What a server of this node's own asks for."""
    return {name: value for name, value in config.items() if name in (*_SECURE, "protocol", "token", "token_file")}


def without_access(config: dict[str, str]) -> dict[str, str]:
    """The options without those that say how an etcd lets somebody in. A token is of the nodes' own server."""
    access = (*_SECURE, "protocol", "user", "password", "password_file")
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
