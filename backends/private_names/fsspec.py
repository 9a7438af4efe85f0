"""fsspec: paths as a file system writes them, the instances it keeps, and the files of its caches on disk.

Tried with fsspec 2024.6.0 to 2026.9.0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fsspec import AbstractFileSystem

__all__ = [
    "cached_file_name",
    "forget_cached_file",
    "forget_instance",
    "is_cached",
    "kept_instances",
    "make_cache_folder",
    "note_new_file",
    "parent_of",
    "path_of",
    "vars_of",
]


def path_of(fs: AbstractFileSystem, uri: str) -> Any:
    """Return the file system's own path of a URL."""
    return fs._strip_protocol(uri)


def parent_of(fs: AbstractFileSystem, path: str) -> Any:
    """Return the folder of a path."""
    return fs._parent(path)


def kept_instances() -> Iterator[AbstractFileSystem]:
    """Give every file system that fsspec keeps for the next request with the same arguments."""
    classes: list[Any] = [AbstractFileSystem]
    while classes:
        cls = classes.pop()
        yield from list(cls._cache.values())
        classes += cls.__subclasses__()


def forget_instance(fs: AbstractFileSystem) -> None:
    """Have fsspec keep one file system no more."""
    token = vars_of(fs).get("_fs_token_")
    kept = type(fs)._cache
    if kept.get(token) is fs:
        kept.pop(token, None)


def vars_of(fs: AbstractFileSystem) -> dict[str, Any]:
    """Return the attributes of a file system itself: a cache answers ``vars`` with those of its target."""
    attributes: dict[str, Any] = object.__getattribute__(fs, "__dict__")
    return attributes


def is_cached(fs: Any, path: str) -> bool:
    """Tell whether a cache of whole files holds a file."""
    return bool(fs._check_file(path))


def make_cache_folder(fs: Any) -> None:
    """Make the folder of a cache."""
    fs._mkcache()


def cached_file_name(fs: Any, path: str) -> str:
    """Return where a cache puts a file."""
    return str(os.path.join(fs.storage[-1], fs._mapper(path)))


def note_new_file(fs: Any) -> None:
    """Have a cache count its size again."""
    fs._cache_size = None


def forget_cached_file(fs: Any, path: str) -> None:
    """Remove a cache's entry of a file, where it has one."""
    with suppress(Exception):
        fs._metadata.pop_file(path)
