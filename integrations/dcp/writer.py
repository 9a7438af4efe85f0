"""A storage writer for torch.distributed.checkpoint: ``dcp.save`` and ``dcp.async_save`` to any URL.

torch lays out and serialises the items, as for a disk. Each item is sent as an object of its own, several at a time.
``.metadata``, without which there is no checkpoint, is sent last. Only the items in flight are held in memory.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from streamer._locate_shards import opened_store
from streamer._save.writing import quiet_writing, uploading_store
from streamer.core.errors import UsageError
from streamer.core.options.arguments import check_storage_options, check_uri
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.secrets.redact import redact
from streamer.core.shards.other_weights import check_replaceable, weights_in_the_way
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import Store

METADATA = ".metadata"
THREADS = 4  # each holds one serialised item


class StorageWriter(FileSystemWriter):
    """Writes a checkpoint for ``torch.distributed.checkpoint.save`` and ``async_save``.

    `streamer.dcp.StorageReader` reads the checkpoint. From a disk, torch's own ``FileSystemReader`` reads it, too.

    Args:
        uri: Path or URL of a folder.
        storage_options: As for `streamer.save`.
        options: As for `streamer.save`.
        thread_count: How many items this rank serialises and sends at a time.
        overwrite: Whether an existing checkpoint may be replaced. Its files are replaced one by one. Until the save has
            ended, and after a save that fails, no checkpoint can be read.

    Raises:
        UsageError: an argument has a wrong type. Other errors come from the methods that torch calls; ``dcp.save``
            wraps them in a ``CheckpointException``.

    Example:
        >>> dcp.save(state_dict, storage_writer=streamer.dcp.StorageWriter("s3://bucket/step-1000"))    # doctest: +SKIP
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        options: Options | None = None,
        thread_count: int = THREADS,
        overwrite: bool = False,
    ) -> None:
        check_uri(uri)
        check_storage_options(storage_options)
        super().__init__(
            "", single_file_per_rank=False, sync_files=False, thread_count=thread_count, overwrite=overwrite
        )
        self._files = _Files(os.fspath(uri), storage_options, options)
        self.fs = self._files  # type: ignore[assignment]  # torch's own writers of URLs do the same
        self.path = redact(os.fspath(uri))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save, to the folder `checkpoint_id` unless it is None; called by torch."""
        super().reset()
        if checkpoint_id:
            self._files.uri, self.path = os.fspath(checkpoint_id), redact(os.fspath(checkpoint_id))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Check whether a checkpoint exists, and remove its ``.metadata``; called by torch.

        Raises:
            UsageError: a checkpoint exists, and may not be replaced (it is a ``RuntimeError``, too, as torch's); or the
                folder holds other weights, which `streamer.load` of the folder would read.
        """
        if not self.overwrite and self._files.exists(METADATA):
            hint = "Save elsewhere, or pass overwrite=True: no checkpoint can be read until the new one is complete"
            raise _ExistsError("there is a checkpoint already", uri=str(self.path), hint=hint)
        self._files.check_beside()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that `overwrite` is True, as the user requested
            return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Send the items of this rank; called by torch."""
        self._files.failure = None
        with self._files.opened():
            written = super().write_data(plan, planner)
        if self._files.failure is not None:
            raise self._files.failure
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Send ``.metadata``, which makes the checkpoint complete; called by torch."""
        with self._files.opened():
            super().finish(metadata, results)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this class can write to this folder; called by torch."""
        return bool(checkpoint_id)


class _ExistsError(UsageError, RuntimeError):
    """The error of torch's own writers for a checkpoint that may not be replaced is a ``RuntimeError``."""


class _Files(FileSystemBase):
    """The files of one folder, by name. torch passes whole paths, whose folders are ignored."""

    def __init__(self, uri: str, storage_options: Mapping[str, Any] | None, options: Options | None) -> None:
        self.uri, self._storage_options, self._options = uri, storage_options, options
        self._store: Store | None = None
        self._renamed: dict[str, bytes] = {}  # temporary name to the content that `rename` sends
        self.failure: BaseException | None = None  # the first failure

    def check_beside(self) -> None:
        """Refuse weights of another format that a load of the folder would take; raises as `check_replaceable`."""
        with self.opened() as store:
            older = weights_in_the_way(store, [f"{store.root.rstrip('/')}/{METADATA}"])
            check_replaceable(store, older, resolve(self._options), hint="Save elsewhere, or remove them")

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """Open the store for a ``with`` block; a nested block uses the same store."""
        if self._store is not None:
            yield self._store
            return
        with ExitStack() as stack:
            settings = resolve(self._options)
            self._store = stack.enter_context(opened_store(self.uri, self._storage_options, None, settings))
            stack.callback(self._forget)
            yield self._store

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Return a stream whose bytes are sent when the block ends without an error."""
        del mode  # "wb"
        stream, name = _Content(), _name(path)
        try:
            yield stream
        except BaseException as error:
            self.failure = self.failure or error
            raise
        if name.endswith(".tmp"):
            self._renamed[name] = stream.getvalue()
        elif self.failure is None:
            try:
                self._send(name, stream.getbuffer())
            except BaseException as error:  # this may be a thread of torch, which would lose the error
                self.failure = error

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Send a file that was written under another name."""
        self._send(_name(new_path), memoryview(self._renamed.pop(_name(path))))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file exists."""
        with self.opened() as store:
            return info_if_present(store, self._path(store, _name(path))) is not None

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Remove a file."""
        with self.opened() as store:
            uploading_store(store, self.uri).remove(self._path(store, _name(path)))

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        """Return the path of a file in a folder."""
        return f"{os.fspath(path)}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Return the path."""
        return path

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: folders are made with their files."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether the name is not empty."""
        return bool(checkpoint_id)

    def _send(self, name: str, content: memoryview) -> None:
        with self.opened() as store:
            path = self._path(store, name)
            replaced = info_if_present(store, path)
            with quiet_writing(store, self.uri, resolve(self._options)) as writing:
                if writing.commits:
                    hint = "Save to a disk, and then: python -m streamer push DIR URL"
                    raise UsageError("DCP writes file by file, and this storage takes one commit", hint=hint)
                upload = writing.send(path, content.nbytes, [content], replaced)
                writing.show(path, upload, replaced)

    def _path(self, store: Store, name: str) -> str:
        return f"{store.root.rstrip('/')}/{name}"

    def _forget(self) -> None:
        self._store = None


class _Content(io.BytesIO):
    """A stream whose bytes can be taken after torch has closed it."""

    def close(self) -> None:
        """Do nothing."""


def _name(path: str | os.PathLike[str]) -> str:
    return os.fspath(path).rpartition("/")[2]
