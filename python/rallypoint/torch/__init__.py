"""Rallypoint for PyTorch: the store, and the rendezvous backends of torchrun.

With the package installed, torchrun knows its backends by name: ``torchrun --rdzv-backend=rallypoint ...``.

- :class:`EtcdStore`: a ``torch.distributed.Store`` that is kept in etcd.
- :func:`create_rdzv_handler`: the handler that a backend's name stands for.
- :class:`EtcdRendezvousBackend`, :func:`create_backend`: a backend for torch's ``DynamicRendezvousHandler``.
- :class:`EtcdServer`: an etcd for one machine.
- :mod:`rallypoint.torch.errors`: what can go wrong; each is also the error that torch has for it.
"""

from rallypoint import EtcdServer
from rallypoint._plugin import create_rdzv_handler
from rallypoint.torch import errors
from rallypoint.torch.backend import EtcdRendezvousBackend, create_backend
from rallypoint.torch.handler import RendezvousHandler
from rallypoint.torch.store import EtcdStore

__all__ = [
    "EtcdRendezvousBackend",
    "EtcdServer",
    "EtcdStore",
    "RendezvousHandler",
    "create_backend",
    "create_rdzv_handler",
    "errors",
]
