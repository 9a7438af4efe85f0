"""The URL of a model's folder and how it is read, as a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from streamer._locate_shards import opened_store
from streamer.core.options.arguments import check_uri
from streamer.core.options.settings import Settings
from streamer.core.request.request import ProgressOption, Request
from streamer.core.secrets.hidden_arguments import hidden_uri
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import ObjectInfo, Store

if TYPE_CHECKING:
    from streamer.integrations.shard_handles import WholeCheckpoint

__all__ = ["Location"]


@dataclass(frozen=True, repr=False, kw_only=True)
class Location(Request):
    """A folder, or an object in it, and how it is read: a request with one URI.

    Raises:
        UsageError: as `Request`; or `uri` is a list.
    """

    uri: Any = field(repr=False)  # a string, after it was checked
    storage_options: Mapping[str, Any] | None = None
    progress: ProgressOption = False

    def __post_init__(self) -> None:
        check_uri(self.uri)
        super().__post_init__()

    @property
    def label(self) -> str:
        """The URL without secrets."""
        return redact(self.uri)

    def inside(self, name: str) -> Location:
        """Return the location of a file or folder in this folder."""
        path, mark, query = self.uri.partition("?") if self.uri.lower().startswith("http") else (self.uri, "", "")
        return replace(self, uri=hidden_uri(f"{path.rstrip('/')}/{name}{mark}{query}"))

    def checkpoint(self, listed: Sequence[ObjectInfo] | None = None) -> WholeCheckpoint:
        """Open the checkpoint at this location, with `listed` as for `shards_in`; raises as `streamer.load`."""
        # This module needs safetensors, which only the host libraries install.
        from streamer.integrations.shard_handles import WholeCheckpoint  # noqa: PLC0415

        return WholeCheckpoint(self, listed)

    @contextmanager
    def store(self, settings: Settings) -> Iterator[Store]:
        """Open the store for a ``with`` block."""
        with opened_store(self.uri, self.storage_options, self.fs, settings) as store:
            yield store
