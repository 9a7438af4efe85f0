"""Where a model lies: the URL of its folder, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamer._locate import opened_store
from streamer.core.options.arguments import check_file_system, check_options, check_storage_options, check_uri
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings
from streamer.core.path_objects import placed
from streamer.core.request.request import Request
from streamer.core.secrets.options import hidden
from streamer.core.secrets.redact import redact
from streamer.core.secrets.urls import hidden_uri
from streamer.core.store.sources import ObjectInfo, Store

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from streamer.integrations.shard_handles import WholeCheckpoint

__all__ = ["Location"]


@dataclass(frozen=True, repr=False)
class Location:
    """A folder.

    Attributes:
        uri: Its path or URL.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: As for `streamer.load`.
    """

    uri: str
    storage_options: Mapping[str, Any] | None = None
    fs: AbstractFileSystem | None = None
    options: Options | None = None

    @classmethod
    def checked(cls, uri: str | os.PathLike[str], storage_options: Any, fs: Any, options: Any) -> Location:
        """Check what a caller gave, and keep it.

        Raises:
            OptionError: an argument is of another kind.
            UsageError: as `streamer.load`.
        """
        check_uri(uri)
        check_storage_options(storage_options)
        check_options(options, Options)
        check_file_system(fs)
        text, storage_options, fs = placed(uri, storage_options, fs)
        return cls(hidden_uri(os.fspath(text)), hidden(storage_options), fs, options)

    @property
    def label(self) -> str:
        """The URL without secrets."""
        return redact(self.uri)

    def inside(self, name: str) -> Location:
        """Give a file or folder in it."""
        path, mark, query = self.uri.partition("?") if self.uri.lower().startswith("http") else (self.uri, "", "")
        return replace(self, uri=hidden_uri(f"{path.rstrip('/')}/{name}{mark}{query}"))

    def checkpoint(self, listed: Sequence[ObjectInfo] | None = None) -> WholeCheckpoint:
        """Open the checkpoint there, with `listed` as for `shards_in`; raises as `streamer.load`."""
        # It needs safetensors, which only hosts bring.
        from streamer.integrations.shard_handles import WholeCheckpoint  # noqa: PLC0415

        request = Request(
            uri=self.uri, storage_options=self.storage_options, fs=self.fs, options=self.options, progress=False
        )
        return WholeCheckpoint(request, listed)

    @contextmanager
    def store(self, settings: Settings) -> Iterator[Store]:
        """Open the store for the time of a block."""
        with opened_store(self.uri, self.storage_options, self.fs, settings) as store:
            yield store
