"""The keyword arguments that the public functions for saving take as ``**how``; see `streamer.save`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamer.core.encryption.keys import KeySource
from streamer.core.encryption.sealed_files import reserved_name
from streamer.core.errors import OptionError, UsageError
from streamer.core.format.header_entries import ENCRYPTION_METADATA
from streamer.core.format.shard_names import INDEX_SUFFIX, SHARD_SUFFIX
from streamer.core.options.arguments import check_group, check_switch
from streamer.core.request.request import Request
from streamer.core.secrets.redact import redact
from streamer.core.store.names import check_can_hold

if TYPE_CHECKING:
    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions


_ARCHIVES = ("libarchive", "tar", "zip")  # schemes of fsspec whose file systems write no file in place


@dataclass(frozen=True)
class SaveOptions:
    """The keyword arguments of `streamer.save` with their defaults, checked."""

    max_shard_bytes: int | str = "5GB"
    metadata: Mapping[str, str] | None = None
    storage_options: StorageOptions = field(default=None, repr=False)
    options: Options | None = None
    progress: ProgressOption = None
    overwrite: bool = False
    digests: bool = True
    resume: bool = False
    key: KeyOption = field(default=None, repr=False)
    context: str | None = None
    hide_names: bool = False
    group: Any = None
    slices: SlicesOption = None

    def __post_init__(self) -> None:
        self._check_key()
        self._check_group()
        for name in ("overwrite", "digests", "resume", "hide_names"):
            check_switch(name, getattr(self, name))
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            kind = type(self.storage_options).__name__
            raise OptionError(f"storage_options is a mapping of names to values, not {kind}")
        if self.metadata is not None and not isinstance(self.metadata, Mapping):
            raise UsageError(f"metadata is a mapping of texts, not {type(self.metadata).__name__}")
        if ENCRYPTION_METADATA in (self.metadata or {}):
            raise reserved_name(ENCRYPTION_METADATA)
        for key, value in (self.metadata or {}).items():
            wrong = next((each for each in (key, value) if not isinstance(each, str)), None)
            if wrong is not None or key is None or value is None:
                hint = "The format holds only texts: write numbers with str(), others with json.dumps()"
                raise UsageError(f"metadata {repr(key)[:80]} holds {type(wrong).__name__}, not a text", hint=hint)

    def _check_key(self) -> None:
        if self.key is not None:
            vars(self)["key"] = KeySource(self.key, self.context).check()
        if self.context is not None and self.key is None:
            raise UsageError("context= binds an encrypted checkpoint to a name, and so needs key=")
        if self.hide_names and self.key is None:
            raise UsageError("hide_names= encrypts the names, and so needs key=")
        if self.resume and self.key is not None:
            hint = "Save again without resume=: each save encrypts with new random numbers, so no byte is the same"
            raise UsageError("an encrypted save cannot be resumed", hint=hint)

    def _check_group(self) -> None:
        check_group(self.group)
        if self.group is None and self.slices is not None:
            hint = "Leave it out; or pass group=, and save on all of its ranks"
            raise UsageError("slices= says which part of the tensors this rank of a group has", hint=hint)


def place_request(uri: Any, how: SaveOptions) -> Request:
    """Check the URI to which a checkpoint is saved."""
    request = Request(
        uri=uri,
        storage_options=how.storage_options,
        options=how.options,
        progress=how.progress,
        verify="off",
        group=how.group,
        slices=how.slices,
    )
    if not isinstance(request.uri, str):
        raise UsageError("a checkpoint is saved to one place: one folder or file")
    (uri,) = request.uris
    last = uri.rstrip("/").rpartition("/")[2]
    if last.endswith(INDEX_SUFFIX) or {*last} & {*"*["}:
        hint = "Name the folder, or a file that ends in .safetensors"
        raise UsageError(
            "a checkpoint is saved to a folder or a file, not to an index or a glob", uri=redact(uri), hint=hint
        )
    check_can_hold(uri.partition("://")[0].lower(), uri, redact(uri))
    if uri.partition("://")[0].lower() in _ARCHIVES:
        hint = "Save to a disk or an object store, and pack the files there"
        raise UsageError("an archive cannot be written", uri=redact(uri), hint=hint)
    if last.partition("?")[0].endswith(SHARD_SUFFIX) and how.max_shard_bytes != SaveOptions.max_shard_bytes:
        hint = "Name a folder, or leave max_shard_bytes out"
        raise UsageError("max_shard_bytes divides a folder, and this URL names one file", uri=redact(uri), hint=hint)
    return request
