"""Brings the nodes of a distributed training job together, on etcd.

- :class:`Store`: data that the nodes of a job share; :class:`AsyncStore` for asyncio.
- :class:`Rendezvous`: how the nodes of a job meet, and meet again when the group changes; :class:`AsyncRendezvous` for
  asyncio. :class:`Round`, :class:`Member` and :class:`GroupChange` are what they are told.
- :class:`EtcdServer`: an etcd for one machine, started and stopped from Python.
- :class:`TcpStoreServer`: a store that clients of PyTorch's ``TCPStore`` meet at.
- :func:`preemption`: whether a node is going to be taken away, for workers of ``rallypoint run``, and :func:`preemption_saved`, what
  they answer; :class:`Preemption` and :class:`PreemptedNode` are what they are told.
- :class:`Client`: keys and values of an etcd, to look into it.
- :func:`heartbeat`: a worker's sign that it makes progress, for ``rallypoint run --hang-timeout``.
- :mod:`rallypoint.errors`: what can go wrong.
- :mod:`rallypoint.torch`: the same for PyTorch, and the rendezvous backends of torchrun. It alone needs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rallypoint import errors

# At once: what is forked before the first beat must be known for what it is.
from rallypoint._heartbeat import heartbeat
from rallypoint.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint._preemption import PreemptedNode, Preemption, preemption, preemption_saved
    from rallypoint._rallypoint import (
        AsyncRendezvous,
        AsyncStore,
        Client,
        EtcdServer,
        GroupChange,
        Member,
        Rendezvous,
        Round,
        Store,
        TcpStoreServer,
        __version__,
    )

__all__ = [
    "AsyncRendezvous",
    "AsyncStore",
    "Client",
    "EtcdServer",
    "GroupChange",
    "Member",
    "PreemptedNode",
    "Preemption",
    "RallypointError",
    "Rendezvous",
    "Round",
    "Store",
    "TcpStoreServer",
    "__version__",
    "errors",
    "heartbeat",
    "preemption",
    "preemption_saved",
]
_OF_PREEMPTION = ("PreemptedNode", "Preemption", "preemption", "preemption_saved")


def __getattr__(name: str) -> Any:
    # The extension is loaded when something of it is asked for: torch imports this package to look for backends, and
    # most programs that import torch want none of ours.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module("rallypoint._preemption" if name in _OF_PREEMPTION else "rallypoint._rallypoint")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
