"""Errors that are Rallypoint's and torch's at once, so that the handlers of either take them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import api

from rallypoint import errors

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _both(ours: type[Exception], theirs: type[Exception]) -> type[Exception]:
    return type(ours.__name__, (ours, theirs), {"__doc__": ours.__doc__, "__module__": "rallypoint.torch"})


_BOTH = {
    ours: _both(ours, theirs)
    for ours, theirs in [
        (errors.StoreError, dist.DistStoreError),
        (errors.StoreTimeoutError, dist.DistStoreError),
        # Younger than the oldest torch that this works with.
        (errors.QueueEmptyError, getattr(dist, "QueueEmptyError", dist.DistStoreError)),
        (errors.StoreValueError, dist.DistStoreError),
        (errors.StoreConnectionError, dist.DistNetworkError),
        (errors.OutcomeUnknownError, dist.DistNetworkError),
        (errors.RendezvousError, api.RendezvousError),
        (errors.RendezvousClosedError, api.RendezvousClosedError),
        (errors.RendezvousTimeoutError, api.RendezvousTimeoutError),
        (errors.RendezvousConnectionError, api.RendezvousConnectionError),
        (errors.RendezvousStateError, api.RendezvousStateError),
        # Younger than the oldest torch that this works with.
        (errors.RendezvousGracefulExitError, getattr(api, "RendezvousGracefulExitError", api.RendezvousError)),
    ]
}


def translated(function: _Function) -> _Function:
    """The function, with errors that are torch's too."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except errors.RallypointError as error:
            both = _BOTH.get(type(error))
            if both is None:
                raise
            raise both(*error.args).with_traceback(error.__traceback__) from error.__cause__

    return cast(_Function, wrapper)
