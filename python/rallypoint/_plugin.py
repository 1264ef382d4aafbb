"""What torchrun finds by name, in the group of entry points ``torchrun.handlers``."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

from rallypoint.torch.create import create_rdzv_handler

_Creator = Callable[[RendezvousParameters], RendezvousHandler]


def rallypoint() -> _Creator:
    """The native backend."""
    return create_rdzv_handler


def rallypoint_etcd() -> _Creator:
    """The barrier, which meets nodes of PyTorch's ``etcd`` backend."""
    return create_rdzv_handler


def rallypoint_etcd_v2() -> _Creator:
    """Our backend under torch's dynamic handler, which meets nodes of PyTorch's ``etcd-v2`` backend."""
    return create_rdzv_handler
