"""Metadata of a file in an fsspec file system, and the check that it was not replaced while it was read.

Guarantees: metadata is requested each time, not taken from fsspec's listing cache. Versions are compared only between
two results of `info`: a listing may write the same version in another way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.cached import CachingFileSystem

from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.private_names.fsspec import parent_of
from streamer.core.errors import ChangedError
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.versions import YOUNG_S, settled_at

# Names under which file systems report the version of a file, the most precise first.
VERSION_KEYS = (
    "ETag",
    "etag",
    "generation",
    "version_id",
    "ukey",
    "sha",
    "CRC",
    "mtime",
    "modified",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "created",
)


_WITHOUT_FOLDERS = frozenset({"abfs", "abfss", "az", "gcs", "gs", "oci", "oss", "s3", "s3a", "tos"})


class VersionCheck:
    """Compares the version of a file before the first read and after the last."""

    def __init__(
        self, fs: AbstractFileSystem, path: str, info: ObjectInfo, hides_causes: bool, holder: object = None
    ) -> None:
        self._fs, self._path, self._info, self._hides_causes = fs, path, info, hides_causes
        self._holder = holder
        self._lock = threading.Lock()
        self._is_noted = False
        self._version: str | None = None

    def note(self) -> None:
        """Request the version, unless it was requested before; called before each read."""
        with self._lock:
            if not self._is_noted:
                self._version = self._current()
                pause_s = settled_at(self._version) - time.monotonic()
                if self._version != self._info.version and 0 < pause_s < YOUNG_S + 1:
                    time.sleep(pause_s)
                    self.confirm()
                self._is_noted = True

    def confirm(self) -> None:
        """Request the version again, after the last read."""
        now = self._current()
        if now != self._version:
            raise ChangedError(
                f"The file was replaced while it was read: version {self._version} became {now}",
                uri=self._info.uri,
                hint="Load again, and do not overwrite a checkpoint while it is read",
            )

    def _current(self) -> str | None:
        try:
            return version_of(fresh_info(self._fs, self._path))
        except Exception as error:
            raise_storage_error(error, self._info.uri, hides_cause=self._hides_causes)


def fresh_info(fs: AbstractFileSystem, path: str) -> Mapping[str, Any]:
    """Return the current metadata of a file; for a cache, those of its storage. Exceptions of `fs` pass through."""
    fs = origin_of(fs)
    fs.invalidate_cache(parent_of(fs, path))
    metadata: Mapping[str, Any] = fs.info(path)
    return metadata


def origin_of(fs: AbstractFileSystem) -> AbstractFileSystem:
    """Return the file system behind caches.

    A cache reads the metadata of a file from a listing of the folder, and there may be no listing.
    """
    while isinstance(fs, CachingFileSystem):
        fs = fs.fs
    return fs


def make_folders(fs: AbstractFileSystem, path: str) -> None:
    """Create the folder of a file that is about to be written, and the folders above it.

    Folders of object stores are only parts of names; their file systems would create a bucket of a mistyped name.
    """
    protocols = origin_of(fs).protocol
    if _WITHOUT_FOLDERS.isdisjoint([protocols] if isinstance(protocols, str) else protocols):
        fs.makedirs(path, exist_ok=True)


def size_of(metadata: Mapping[str, Any]) -> int | None:
    """Return the size in the metadata of a file; None if there is none."""
    value = metadata.get("size")
    return None if value is None else int(value)


def version_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the version in the metadata of a file; None if there is none."""
    value = next((metadata[key] for key in VERSION_KEYS if metadata.get(key) not in (None, "")), None)
    if isinstance(value, datetime):  # the memory file system reports a time in `info`, and seconds in `ls`
        value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    return None if value is None else str(value)
