"""Errors that are Rallypoint's and torch's at once, so that the handlers of either take them."""

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import api

from rallypoint import errors

if TYPE_CHECKING:
    from torch.distributed import QueueEmptyError as _QueueEmptyError
    from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError as _GracefulExitError
else:
    # Younger than the oldest torch that this works with.
    _QueueEmptyError = getattr(dist, "QueueEmptyError", dist.DistStoreError)
    _GracefulExitError = getattr(api, "RendezvousGracefulExitError", api.RendezvousError)


class StoreError(errors.StoreError, dist.DistStoreError):
    __doc__ = errors.StoreError.__doc__


class StoreTimeoutError(errors.StoreTimeoutError, dist.DistStoreError):
    __doc__ = errors.StoreTimeoutError.__doc__


class QueueEmptyError(errors.QueueEmptyError, _QueueEmptyError):
    __doc__ = errors.QueueEmptyError.__doc__


class StoreValueError(errors.StoreValueError, dist.DistStoreError):
    __doc__ = errors.StoreValueError.__doc__


class StoreConnectionError(errors.StoreConnectionError, dist.DistNetworkError):
    __doc__ = errors.StoreConnectionError.__doc__


class OutcomeUnknownError(errors.OutcomeUnknownError, dist.DistNetworkError):
    __doc__ = errors.OutcomeUnknownError.__doc__


class RendezvousError(errors.RendezvousError, api.RendezvousError):
    __doc__ = errors.RendezvousError.__doc__


class RendezvousClosedError(errors.RendezvousClosedError, api.RendezvousClosedError):
    __doc__ = errors.RendezvousClosedError.__doc__


class RendezvousTimeoutError(errors.RendezvousTimeoutError, api.RendezvousTimeoutError):
    __doc__ = errors.RendezvousTimeoutError.__doc__


class RendezvousConnectionError(errors.RendezvousConnectionError, api.RendezvousConnectionError):
    __doc__ = errors.RendezvousConnectionError.__doc__


class RendezvousStateError(errors.RendezvousStateError, api.RendezvousStateError):
    __doc__ = errors.RendezvousStateError.__doc__


class RendezvousGracefulExitError(errors.RendezvousGracefulExitError, _GracefulExitError):
    __doc__ = errors.RendezvousGracefulExitError.__doc__
