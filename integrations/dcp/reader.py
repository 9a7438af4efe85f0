"""A storage reader for torch.distributed.checkpoint: reads checkpoints of DCP, and of safetensors, at any URL.

The engine reads, in one session, only the items in the load plan of this process. Only the caller's thread calls the
planner. No code in a checkpoint is run: the ``.metadata`` of DCP and its items are read as data.

Refuses a folder without a checkpoint, and files of DCP without ``.metadata``: this file is written last, so their save
was not finished.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader as TorchStorageReader
from torch.futures import Future

from streamer.core.checkpoint.report import LoadReport
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StreamerError, UsageError
from streamer.core.format.dcp_metadata import DcpMetadata, parse_dcp_metadata
from streamer.core.format.shard_names import is_of_checkpoint
from streamer.core.options.arguments import check_uri
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.path_objects import is_path_object
from streamer.core.quoting import printable, quoted
from streamer.core.shards.shards import source_object
from streamer.core.shards.small_files import read_files
from streamer.core.store.names import path_in
from streamer.core.store.parallel import in_parallel
from streamer.core.store.presence import enumerated
from streamer.core.store.sources import ObjectInfo, Store
from streamer.integrations.dcp.object_reads import Objects
from streamer.integrations.dcp.planned_targets import PlannedTargets
from streamer.integrations.dcp.saved_items import grouped, read_items
from streamer.integrations.dcp.tensor_files import tensor_files_in
from streamer.integrations.dcp.torch_metadata import metadata_of_dcp
from streamer.integrations.library_calls import Location

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class SavedCheckpoint:
    """The checkpoint."""

    def __init__(self, saved: DcpMetadata, listed: Mapping[str, ObjectInfo], label: str) -> None:
        self._saved, self._listed, self._label = saved, listed, label

    def metadata(self, load_id: str) -> Metadata:
        """Return the metadata in torch's classes."""
        return metadata_of_dcp(self._saved, load_id, self._label)

    def read(self, plan: LoadPlan, destination: PlannedTargets, location: Location, settings: Settings) -> LoadReport:
        """Read the items of a plan."""
        wanted = grouped(plan.items, self._saved, self._label)
        paths = sorted({saved.path for saved in wanted})
        with location.store(settings) as store:
            objects = in_parallel(lambda path: self._object(store, path), paths, role="source")
        where = Objects(self._label, objects, settings)
        return read_items(wanted, self._saved, {path: number for number, path in enumerate(paths)}, where, destination)

    def _object(self, store: Store, path: str) -> SourceObject:
        info = self._listed.get(path)
        root = store.root.rstrip("/")
        try:
            if info is None:
                info = store.info(path_in(root, path))
            return source_object(store, info)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"the metadata name the file {quoted(path)}, which does not exist",
                uri=self._label,
                hint="Upload the whole folder, or save the checkpoint again",
            ) from error


METADATA = ".metadata"
DATA_SUFFIX = ".distcp"


class DcpCheckpoint(Protocol):
    """A checkpoint whose metadata were read."""

    def metadata(self, load_id: str) -> Metadata:
        """Return the metadata in torch's classes."""

    def read(self, plan: LoadPlan, destination: PlannedTargets, location: Location, settings: Settings) -> LoadReport:
        """Read the items of a plan."""


def checkpoint_in(store: Store, location: Location, settings: Settings, rank: int | None = None) -> DcpCheckpoint:
    """Find the checkpoint."""
    root = store.root.rstrip("/")
    names = [METADATA] if rank is None else [f"__{rank}{METADATA}", METADATA]
    if is_of_checkpoint(root):
        return tensor_files_in(store, location, settings)
    listed = _listed(store, root, names)
    for name in names:
        if name in listed:
            info = listed[name]
            (content,) = read_files(store, [info], settings)
            return SavedCheckpoint(parse_dcp_metadata(content, uri=info.uri), listed, location.label)
    _check_finished(listed, names[0], location)
    return tensor_files_in(store, location, settings)


def _listed(store: Store, root: str, names: list[str]) -> dict[str, ObjectInfo]:
    """List the folder; if listing is forbidden, look up only the metadata."""
    try:
        return {info.path.rpartition("/")[2]: info for info in store.find(root or "/")}
    except AccessDeniedError:
        listed = {}
        for name in names:
            with suppress(AccessDeniedError, ObjectNotFoundError):
                listed[name] = store.info(f"{root}/{name}" if root else name)
        return listed


def _check_finished(listed: dict[str, ObjectInfo], name: str, location: Location) -> None:
    names = sorted(listed)
    if any(map(is_of_checkpoint, names)):
        return
    by_rank = [each for each in names if each.endswith(METADATA)]
    if any(each.endswith(DATA_SUFFIX) for each in names) and not by_rank:
        hint = "Its save was not finished, or its upload lacks hidden files, which belong to it, too"
    elif by_rank:
        hint = f"Each process saved its own part: there is {enumerated(by_rank)}"
    else:
        hint = "Check the URL; a checkpoint is a folder with .metadata, or with *.safetensors"
    if names:
        raise ObjectNotFoundError(f"the folder holds no {name}, but {enumerated(names)}", uri=location.label, hint=hint)


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
        super().__init__()
        self._location = Location(uri=uri, storage_options=storage_options, fs=fs, options=options)
        self._found: DcpCheckpoint | None = None
        self._failure: StreamerError | None = None  # raised when the metadata of all ranks were read
        self.load_id = str(uuid.uuid4())
        self.report: LoadReport | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Prepare for another load; `checkpoint_id` is the URL of another checkpoint, or None."""
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
        destination = PlannedTargets(planner, self._location.label)
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
            check_uri(checkpoint_id)
        except UsageError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {printable(self._location.label)}>"

    def _in(self, store: Store, settings: Settings, rank: int | None) -> DcpCheckpoint:
        return checkpoint_in(store, self._location, settings, rank)
