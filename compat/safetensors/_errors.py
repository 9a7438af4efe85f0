"""Errors that are instances of `StreamerError` and of `SafetensorError`."""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from contextlib import contextmanager

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


copyreg.pickle(_Both, lambda made: (both, made.__bases__[:1]))

_BOTH: dict[type[StreamerError], type[StreamerError]] = {}


def both(kind: type[StreamerError]) -> type[StreamerError]:
    """Return a class of the same name that also derives from `SafetensorError`."""
    if kind not in _BOTH:
        _BOTH[kind] = _Both(kind.__name__, (kind, SafetensorError), {"__module__": kind.__module__})
    return _BOTH[kind]
