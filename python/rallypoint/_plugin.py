"""What torchrun finds by name, in the group of entry points ``torchrun.handlers``.

Whoever imports ``torch.distributed.elastic`` imports this, whatever the backend; so nothing else is loaded before one of
ours is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Makes the handler that ``params.backend`` names.

    - ``rallypoint``: the native one.
    - ``rallypoint-etcd`` or ``etcd``: the barrier, which meets nodes of PyTorch's ``etcd`` backend.
    - ``rallypoint-etcd-v2`` or ``etcd-v2``: torch's dynamic handler on our backend, which meets nodes of PyTorch's
      ``etcd-v2`` backend.

    The options are in ``docs/python.md``; unknown ones are rejected. If the endpoint is on this machine
    and nothing listens there, this node starts the embedded server.
    """
    from rallypoint.torch.create import create

    return create(params)


def creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What makes the handlers of all backends."""
    return create_rdzv_handler
