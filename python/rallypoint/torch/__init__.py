"""Rallypoint for PyTorch: the store, and the rendezvous backends of torchrun."""

from rallypoint import EtcdServer
from rallypoint.torch.store import EtcdStore

__all__ = ["EtcdServer", "EtcdStore"]
