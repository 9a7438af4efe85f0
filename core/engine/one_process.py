"""Makes sessions refuse calls in a forked child: it has no engine threads, so a call would wait for ever."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from streamer import _native
from streamer.core.errors import EngineError

__all__ = ["of_one_process"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def of_one_process(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Raise the public `EngineError` in a forked child, in place of the engine's own class."""

    @wraps(method)
    def checked(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        try:
            return method(*arguments, **named)
        except _native.ForkedError as error:
            raise EngineError(str(error)) from None

    return checked
