"""Brings the nodes of a distributed training job together, on etcd.

- :class:`Store`: data that the nodes of a job share; :class:`AsyncStore` for asyncio.
- :class:`EtcdServer`: an etcd for one machine, started and stopped from Python.
- :class:`Client`: keys and values of an etcd, to look into it.
- :mod:`rallypoint.errors`: what can go wrong.
- :mod:`rallypoint.torch`: the same for PyTorch, and the rendezvous backends of torchrun. It alone needs torch.
"""

from rallypoint import errors
from rallypoint._rallypoint import AsyncStore, Client, EtcdServer, Store, __version__
from rallypoint.errors import RallypointError

__all__ = ["AsyncStore", "Client", "EtcdServer", "RallypointError", "Store", "__version__", "errors"]
