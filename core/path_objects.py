"""Path objects with their own storage options: a URL with endpoint and keys, as in UPath and cloudpathlib.

Guarantees: such an object is read with its own options, never by its text alone, which would lead to another server
with other credentials. Refuses an object whose options cannot be read, and options in two places.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from streamer.core.errors import OptionError, UsageError

_LOCAL = ("", "file", "local")


@runtime_checkable
class PathObject(Protocol):
    """A path with its own options, such as a `UPath`; its text is the URL."""

    @property
    def protocol(self) -> str:
        """The scheme."""

    @property
    def path(self) -> str:
        """The path of its file system."""

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """The options of its file system."""

    @property
    def fs(self) -> Any:
        """Its file system."""


def is_path_object(uri: Any) -> bool:
    """Say whether a URI is an object with its own storage; its options may be readable or not."""
    if isinstance(uri, (str, bytes)) or type(uri).__module__.partition(".")[0] == "pathlib":
        return False
    return _has_options(uri) or _hides_options(uri)


def text_of(uri: Any) -> Any:
    """Return the URL of a path object, the text of any other path, and any other value unchanged."""
    if isinstance(uri, str):
        return uri
    if _has_options(uri):
        return str(uri.path if uri.protocol in _LOCAL else uri)
    if is_path_object(uri):
        return str(uri.as_uri())
    return os.fspath(uri) if isinstance(uri, os.PathLike) else uri


def without_path_objects(uri: Any, storage_options: Any, fs: Any) -> tuple[Any, Any, Any]:
    """Replace path objects by their URLs, and return their options as if the caller had passed them.

    Returns:
        The same three, without path objects.
    """
    if is_path_object(uri):
        own = _own_options(uri, storage_options, fs)
        if own and "::" in text_of(uri):  # the options of a chain have another form, so its own file system is used
            return str(uri.path), None, uri.fs
        return text_of(uri), own or storage_options, fs
    if not isinstance(uri, list) or not any(map(is_path_object, uri)):
        return uri, storage_options, fs
    several = isinstance(storage_options, (list, tuple)) and len(storage_options) == len(uri)
    beside = list(storage_options) if several else [storage_options] * len(uri)
    owns = [
        _own_options(each, given, fs) if is_path_object(each) else None for each, given in zip(uri, beside, strict=True)
    ]
    if not any(owns):
        return [text_of(each) for each in uri], storage_options, fs
    if any(own and "::" in text_of(each) for each, own in zip(uri, owns, strict=True)):
        raise UsageError("A path object with a chained URL (with ::) cannot be an element of a list", hint=_HINT)
    texts = [text_of(each) for each in uri]
    return texts, [own or given for own, given in zip(owns, beside, strict=True)], fs


_HINT = "Give str(path), and storage_options= or fs= beside it"


def _has_options(uri: Any) -> bool:
    return not isinstance(uri, (str, bytes, type)) and isinstance(uri, PathObject)


def _hides_options(uri: Any) -> bool:
    """Say whether an object names another storage than the disk, but its options cannot be read."""
    if isinstance(uri, (str, bytes, type)) or not hasattr(uri, "as_uri"):
        return False
    try:
        url = uri.as_uri()
    except Exception:  # a relative path has no URI
        return False
    is_remote = isinstance(url, str) and "://" in url and not url.startswith("file:")
    return is_remote and (hasattr(uri, "client") or "://" not in str(uri))  # any other object is only a text


def _own_options(uri: Any, storage_options: Any, fs: Any) -> Any:
    """Return the options of a path object; None if it has none, or if the caller's options count."""
    is_given = bool(storage_options) or fs is not None
    if not _has_options(uri):
        if is_given:
            return None
        raise UsageError(f"The storage and login of a {type(uri).__name__} cannot be read from the object", hint=_HINT)
    options = dict(uri.storage_options or {})
    if uri.protocol in _LOCAL or not options:
        return None
    if is_given and (fs is not None or options != storage_options):
        raise OptionError(
            f"The {type(uri).__name__} has its own storage options, but other options are given, too", hint=_HINT
        )
    return options
