"""Errors that are instances of `StreamerError` and of `SafetensorError`."""

from __future__ import annotations

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


_BOTH: dict[type[StreamerError], type[StreamerError]] = {}


def both(kind: type[StreamerError]) -> type[StreamerError]:
    """Return a class of the same name that also derives from `SafetensorError`."""
    if kind not in _BOTH:
        _BOTH[kind] = type(kind.__name__, (kind, SafetensorError), {"__module__": kind.__module__})
    return _BOTH[kind]
