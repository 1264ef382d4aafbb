"""How errors of the Rust side become torch's as well."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from rallypoint import errors
from rallypoint.torch import errors as both

_Function = TypeVar("_Function", bound=Callable[..., Any])


def translated(function: _Function) -> _Function:
    """The function, with errors that are torch's too."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except errors.RallypointError as error:
            # They have the same names.
            kind = getattr(both, type(error).__name__, None)
            if kind is None or isinstance(error, kind):
                raise
            raise kind(*error.args).with_traceback(error.__traceback__) from error.__cause__

    return cast(_Function, wrapper)
