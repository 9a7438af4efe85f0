"""fsspec: a file system's own form of paths, the instances that fsspec keeps, and the files of its caches on disk.

Tried with fsspec 2024.6.0 to 2026.9.0.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem


def path_of(fs: AbstractFileSystem, uri: str) -> Any:
    """Return the file system's own path of a URL."""
    return fs._strip_protocol(uri)


def parent_of(fs: AbstractFileSystem, path: str) -> Any:
    """Return the folder of a path."""
    return fs._parent(path)


def kept_instances() -> Iterator[AbstractFileSystem]:
    """Yield every file system that fsspec keeps for the next call with the same arguments."""
    classes: list[Any] = [AbstractFileSystem]
    while classes:
        cls = classes.pop()
        yield from list(cls._cache.values())
        classes += cls.__subclasses__()


def forget_instance(fs: AbstractFileSystem) -> None:
    """Remove one file system from fsspec's cache of instances."""
    token = vars_of(fs).get("_fs_token_")
    kept = type(fs)._cache
    if kept.get(token) is fs:
        kept.pop(token, None)


def vars_of(fs: AbstractFileSystem) -> dict[str, Any]:
    """Return the attributes of a file system itself: for a cache, ``vars`` returns those of its target."""
    attributes: dict[str, Any] = object.__getattribute__(fs, "__dict__")
    return attributes


def send_at_once(fs: AbstractFileSystem) -> None:
    """Make the connection of an SFTP file system send each request at once; does nothing for other file systems.

    Each request ends in a packet that is not full. The kernel holds it back until the server has confirmed the packets
    before it, and the server delays that by 40 ms: writing took 100 times as long.
    """
    client = vars_of(fs).get("client")
    with suppress(AttributeError, OSError):
        client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # type: ignore[union-attr]


def cached_copy(fs: Any, path: str) -> str | None:
    """Return the path of a file in a cache of whole files; None if it is missing or the cache's record is truncated."""
    try:
        entry = fs._check_file(path)
    except (AttributeError, KeyError, TypeError, ValueError):
        for folder in fs.storage:
            remove_malformed_record(folder)
        return None
    if not isinstance(entry, tuple):  # a cache without records
        return entry or None
    detail, name = entry
    return str(name) if detail["blocks"] is True else None


def reload_record(fs: Any) -> None:
    """Make a cache read its record again, because another process may have added a file."""
    for folder in fs.storage:
        remove_malformed_record(folder)
    fs.load_cache()


def record_whole_file(fs: Any, path: str, name: str) -> None:
    """Write into a cache's record that the cache has a whole file, which is called `name` in the cache's folder."""
    detail = {"original": path, "fn": name, "blocks": True, "time": time.time(), "uid": fs.fs.ukey(path)}
    remove_malformed_record(fs.storage[-1])
    fs._metadata.update_file(path, detail)
    fs.save_cache()


def remove_malformed_record(folder: str) -> bool:
    """Remove a cache's record of its files if the record is malformed; return whether it was removed."""
    name = os.path.join(folder, "cache")
    try:
        entries = json.loads(Path(name).read_bytes())
        if all({"fn", "blocks", "time", "uid"} <= entry.keys() for entry in entries.values()):
            return False
    except OSError:
        return False
    except (AttributeError, TypeError, ValueError):
        pass
    try:
        os.unlink(name)
    except OSError:
        return False
    return True


def whole_file_name(fs: Any, path: str) -> str:
    """Return the path of the complete copy of a file in a cache of blocks, beside fsspec's copy, which has holes."""
    uid = hashlib.sha256(fs.fs.ukey(path).encode()).hexdigest()[:16] if fs.check_files else ""
    return f"{cached_file_name(fs, path)}{uid and '.'}{uid}.whole"


def make_cache_folder(fs: Any) -> None:
    """Make the folder of a cache."""
    fs._mkcache()


def cached_file_name(fs: Any, path: str) -> str:
    """Return the path at which a cache stores a file."""
    return str(os.path.join(fs.storage[-1], fs._mapper(path)))


def note_new_file(fs: Any) -> None:
    """Make a cache compute its size again."""
    fs._cache_size = None
