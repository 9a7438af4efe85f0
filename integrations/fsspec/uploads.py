"""Writes of whole files through ``streamer::``: `open`, `put` and `pipe` of a file system.

Guarantees: as `streamer.integrations.fsspec.written_file`; a local file that changes while it is sent is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fsspec.callbacks import Callback, NoOpCallback

from streamer._locate_shards import opened_store
from streamer._save.parts import part_bytes_for
from streamer.core.checkpoint.file_bytes import FileBytes
from streamer.core.errors import OptionError, UsageError
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import redact
from streamer.integrations.fsspec.delegated_calls import ListedInside

__all__ = ["WholeFileWrites", "check_names"]


class WholeFileWrites(ListedInside):
    """A file system that writes whole files."""

    def open(self, path: str, mode: str = "rb", *how: Any, compression: str | None = None, **named: Any) -> Any:
        """Open a file; see fsspec.

        Modes are ``"rb"``, ``"wb"`` and ``"xb"``, and these without ``b`` for text. A file that is written shows up
        when it is closed; see `WrittenFile`.
        """
        if compression is not None and "r" not in mode:  # fsspec would not close the file inside
            hint = "Use fsspec.open(url, mode, compression=…), or compress what you write"
            raise OptionError("open of streamer:: compresses nothing", hint=hint)
        return super().open(path, mode, *how, compression=compression, **named)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **named: Any) -> None:
        """Write a file.

        Args:
            path: The path to write to.
            value: The bytes.
            mode: ``"create"``: there must be no such file.
            named: Must be empty.
        """
        check_names("pipe_file", named, frozenset())
        content = memoryview(value).cast("B")
        with self._opened(path, content.nbytes, mode) as file:
            file.write(content)

    def put_file(
        self, lpath: Any, rpath: str, callback: Callback | None = None, mode: str = "overwrite", **named: Any
    ) -> None:
        """Copy a local file; for a folder, create the folder."""
        check_names("put_file", named, {"maxdepth", "recursive"})
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with (
            _local_bytes(os.fspath(lpath), self._inner.settings, callback or NoOpCallback()) as (size_bytes, pieces),
            self._opened(rpath, size_bytes, mode) as file,
        ):
            for piece in pieces:
                file.write(piece)

    def _opened(self, path: str, size_bytes: int, mode: str) -> Any:
        if mode not in ("create", "overwrite"):
            raise OptionError(f"mode is 'overwrite' or 'create', not {quoted(mode)}")
        how = "xb" if mode == "create" else "wb"
        return self.open(path, how, block_size=part_bytes_for(size_bytes), size=size_bytes)


def check_names(method: str, named: Mapping[str, Any], known: frozenset[str] | set[str]) -> None:
    """Refuse unknown arguments of a call."""
    if unknown := sorted(named.keys() - known):
        raise OptionError(
            f"{method} of streamer:: has no argument {unknown[0][:80]!r}", hint="Leave it out, or use the attribute fs"
        )


@contextmanager
def _local_bytes(path: str, settings: Settings, callback: Callback) -> Iterator[tuple[int, Iterator[memoryview]]]:
    """Yield the size of a local file, and its bytes in order."""

    def pieces() -> Iterator[memoryview]:
        for piece in file.pieces(file.digests()):
            yield piece
            callback.relative_update(piece.nbytes)

    if os.path.exists(path) and not os.path.isfile(path):  # its size would be 0
        raise UsageError(
            f"{redact(path)} is no regular file", hint="Copy its content into one, or write to an open file"
        )
    with opened_store(path, None, None, settings) as store:
        file = FileBytes(store, store.info(store.root), settings)
        callback.set_size(file.size_bytes)
        yield file.size_bytes, pieces()
