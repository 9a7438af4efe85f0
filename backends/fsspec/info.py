"""What an fsspec file system knows of a file now, and whether that is still the file that was first read.

Guarantees: answers are asked for anew, not taken from fsspec's listing cache. Versions are compared only between two
answers of `info`: a listing may tell the same version in other words.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fsspec import AbstractFileSystem

from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.private_names.fsspec import parent_of
from streamer.core.errors import ChangedError
from streamer.core.store.sources import ObjectInfo

__all__ = ["Identity", "fresh_info", "version_of"]

# Names under which file systems tell which version of a file this is, the most telling first.
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
    "updated",
    "created",
)


class Identity:
    """Remembers which version of a file was first read.

    Args:
        fs: The file system.
        path: Its own path of the file.
        info: The file as messages name it.
        hides_causes: The user's URL holds a secret, which exceptions of `fs` may repeat.
        holder: Whose end says that `fs` is no longer needed; kept.
    """

    def __init__(
        self, fs: AbstractFileSystem, path: str, info: ObjectInfo, hides_causes: bool, holder: object = None
    ) -> None:
        self._fs, self._path, self._info, self._hides_causes = fs, path, info, hides_causes
        self._holder = holder
        self._asking = threading.Lock()
        self._is_noted = False
        self._version: str | None = None

    def note(self) -> None:
        """Ask which version this is, before the first read."""
        with self._asking:
            if not self._is_noted:
                self._version = self._ask()
                self._is_noted = True

    def confirm(self) -> None:
        """Ask again, after the last read.

        Raises:
            ChangedError: it is another version.
        """
        now = self._ask()
        if now != self._version:
            raise ChangedError(
                f"The file was replaced while it was read: version {self._version} became {now}",
                uri=self._info.uri,
                hint="Load again, and do not overwrite a checkpoint while it is read",
            )

    def _ask(self) -> str | None:
        try:
            return version_of(fresh_info(self._fs, self._path))
        except Exception as error:
            raise_storage_error(error, self._info.uri, hides_cause=self._hides_causes)


def fresh_info(fs: AbstractFileSystem, path: str) -> Mapping[str, Any]:
    """Return what `fs` says of a file now; its exceptions pass through."""
    fs.invalidate_cache(parent_of(fs, path))
    found: Mapping[str, Any] = fs.info(path)
    return found


def version_of(found: Mapping[str, Any]) -> str | None:
    """Choose what tells the version among what a file system says of a file; None where nothing does."""
    value = next((found[key] for key in VERSION_KEYS if found.get(key) not in (None, "")), None)
    if isinstance(value, datetime):  # memory gives a time to `info` and its seconds to `ls`
        value = value.timestamp()
    return None if value is None else str(value)
