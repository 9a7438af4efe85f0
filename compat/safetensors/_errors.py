"""Errors that are instances of `StreamerError` and of `SafetensorError`."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from safetensors import SafetensorError

from streamer.core.errors import StreamerError

__all__ = ["both", "raised_as_safetensors"]


@contextmanager
def raised_as_safetensors() -> Iterator[None]:
    """Make every error of this package in the block a `SafetensorError`, too."""
    try:
        yield
    except StreamerError as error:
        if not isinstance(error, SafetensorError):
            error.__class__ = both(type(error))
        raise


class _Both(type):
    """The class of the classes below: pickle calls `both` again for each, as it cannot find them by their names."""


def _made_again(made: type) -> tuple[Callable[..., Any], tuple[type, ...]]:
    return both, made.__bases__[:1]


copyreg.pickle(_Both, _made_again)

_BOTH: dict[type[StreamerError], type[StreamerError]] = {}


def both(kind: type[StreamerError]) -> type[StreamerError]:
    """Return a class of the same name that also derives from `SafetensorError`."""
    if kind not in _BOTH:
        made: Any = _Both(kind.__name__, (kind, SafetensorError), {"__module__": kind.__module__})
        _BOTH[kind] = made
    return _BOTH[kind]
