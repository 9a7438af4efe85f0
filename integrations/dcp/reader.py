"""A storage reader for torch.distributed.checkpoint: reads checkpoints of DCP, and of safetensors, at any URL.

The engine reads, in one session, only the items in the load plan of this process. Only the caller's thread calls the
planner. No code in a checkpoint is run: the ``.metadata`` of DCP and its items are read as data.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader as TorchStorageReader
from torch.futures import Future

from streamer.core.checkpoint.report import LoadReport
from streamer.core.errors import ObjectNotFoundError, StreamerError, UsageError
from streamer.core.options.arguments import check_uri
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.path_objects import is_path_object
from streamer.core.quoting import printable
from streamer.core.secrets.hidden_arguments import hidden, hidden_uri
from streamer.core.store.sources import Store
from streamer.integrations.dcp.destination import Destination
from streamer.integrations.dcp.format_detection import Found, checkpoint_in
from streamer.integrations.library_calls import Location

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["StorageReader"]


class StorageReader(TorchStorageReader):
    """Reads a checkpoint for ``torch.distributed.checkpoint.load``.

    The checkpoint is a folder with ``.metadata`` and ``*.distcp``, as ``dcp.save`` writes it, or one of safetensors: a
    file, an index or a folder, also with the shards that ``HuggingFaceStorageWriter`` writes by rank.

    Args:
        uri: The path or URL of the checkpoint.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`. ``memory_limit_bytes`` bounds bytes that are not copied yet.

    Attributes:
        report: The report of the last read; None before the first read.
        load_id: The id of this load, as torch's readers have one.

    Raises:
        UsageError: an argument has a wrong type. Other errors come from the methods that torch calls; ``dcp.load``
            wraps them in a ``CheckpointException``.

    Example:
        >>> dcp.load(state_dict, storage_reader=streamer.dcp.StorageReader("s3://bucket/step-1000"))    # doctest: +SKIP
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        options: Options | None = None,
    ) -> None:
        uri, storage_options = hidden_uri(uri), hidden(storage_options)
        super().__init__()
        self._location = Location(uri=uri, storage_options=storage_options, fs=fs, options=options)
        self._found: Found | None = None
        self._failure: StreamerError | None = None  # raised when the metadata of all ranks were read
        self.load_id = str(uuid.uuid4())
        self.report: LoadReport | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Prepare for another load; `checkpoint_id` is the URL of another checkpoint, or None."""
        checkpoint_id = hidden_uri(checkpoint_id) if checkpoint_id is not None else None
        if checkpoint_id:
            check_uri(checkpoint_id)
            before = self._location
            own = Location(uri=checkpoint_id, options=before.options) if is_path_object(checkpoint_id) else None
            self._location = own or replace(before, uri=os.fspath(checkpoint_id))
        self._found = self._failure = None
        self.load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002  torch's signature
        """Find the checkpoint, and read its metadata.

        Args:
            args: Not used.
            kwargs: ``rank=`` for the metadata that one rank saved.

        Returns:
            The metadata. None for a rank without its own metadata, if reading the metadata of all ranks raised an
            error: torch then tries a rank, and would report the same error twice.

        Raises:
            ObjectNotFoundError: there is no checkpoint, or a shard that its index names is missing.
            FormatError: its metadata are malformed, or name classes that are not allowed.
            StorageError: or a subclass.
        """
        rank, failure = kwargs.get("rank"), self._failure
        is_second = rank is not None and failure is not None
        if is_second and not isinstance(failure, ObjectNotFoundError):
            return None  # type: ignore[return-value]  # torch accepts None
        try:
            metadata = self._read_metadata(rank)
        except StreamerError as error:
            if is_second and isinstance(error, ObjectNotFoundError):
                return None  # type: ignore[return-value]
            self._failure = error
            raise
        self._failure = None
        return metadata

    def _read_metadata(self, rank: int | None) -> Metadata:
        settings = resolve(self._location.options)
        with self._location.store(settings) as store:
            found = self._in(store, settings, rank)
        metadata = found.metadata(self.load_id)
        self._found = found
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `read_metadata` has already kept the metadata."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged: each process reads its own part."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the items of the plan into the planner's targets; the returned future is already done.

        Raises:
            UsageError: the metadata were not read.
            TargetError: a tensor of the caller cannot be filled.
            FormatError: an item is damaged, or needs code to load.
            StorageError: or a subclass.
        """
        if self._found is None:
            raise UsageError("read_data was called before read_metadata", uri=self._location.label)
        destination = Destination(planner, self._location.label)
        self.report = self._found.read(plan, destination, self._location, resolve(self._location.options))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def checkpoint_id(self) -> str:
        """The URL, without secrets."""
        return self._location.label

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this can be the URL of a checkpoint."""
        try:
            check_uri(hidden_uri(checkpoint_id))
        except UsageError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {printable(self._location.label)}>"

    def _in(self, store: Store, settings: Settings, rank: int | None) -> Found:
        return checkpoint_in(store, self._location, settings, rank)
