"""Checks that a file system reads a URL: the scheme must be its own, or one of a file system that it wraps.

Refuses a URL of another storage: the file system would take the whole URL for a path, and report a missing bucket with
a strange name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import fsspec
from fsspec import AbstractFileSystem

from streamer.backends.fsspec.instance_snapshot import layers
from streamer.core.errors import OptionError
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import redact

__all__ = ["check_scheme"]

# File systems of fsspec, and our own, that find the file system of a URL themselves; "abstract" states no scheme.
_OF_ANY_SCHEME = {"abstract", "generic", "reference", "streamer"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)(?:://|::)")


def check_scheme(fs: AbstractFileSystem, path: str, builtin: Iterable[str]) -> None:
    """Refuse a file system for a URL of another scheme.

    Args:
        fs: The caller's file system.
        path: A path or a URL.
        builtin: Schemes that exist beside fsspec's own.

    Raises:
        OptionError: the URL has a registered scheme that is not one of the file system's.
    """
    match = _SCHEME.match(path)
    scheme = match[1].lower() if match else None
    own = {name for layer in layers(fs) for each in (type(layer), layer) for name in _protocols(each.protocol)}
    if scheme is None or scheme in own or own & _OF_ANY_SCHEME:
        return
    if scheme in {*builtin, *fsspec.available_protocols()}:
        raise OptionError(
            f"The URL is of {scheme}://, and the file system fs= ({type(fs).__name__}) reads {_shown(own)}",
            uri=redact(path),
            hint=f"Give fs= a file system of {quoted(scheme)}, or leave it out and give storage_options=",
        )


def _protocols(protocol: str | Iterable[str]) -> tuple[str, ...]:
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _shown(names: Iterable[str]) -> str:
    return " and ".join(f"{name}://" for name in sorted(names))
