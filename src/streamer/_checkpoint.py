"""Random access to a checkpoint in any storage: headers are read once, tensors on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamer._locate import StorageOptions, UriOption, folders_of
from streamer._opened_checkpoint import OpenedCheckpoint, open_checkpoint
from streamer._progress import ProgressOption
from streamer._stream import Stream
from streamer._whole_read import WholeRead
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.selection import NamesOption, checked_names, select
from streamer.core.checkpoint.strategies import VerifyOption
from streamer.core.checkpoint.tensor_slice import TensorSlice
from streamer.core.errors import UnknownTensorError, UsageError
from streamer.core.format.header import TensorEntry
from streamer.core.options.arguments import check_name, check_progress
from streamer.core.options.options import Options
from streamer.core.outages.meter import OutageMeter
from streamer.core.secrets.options import hidden
from streamer.core.secrets.urls import hidden_uris
from streamer.core.tensors.frameworks import Framework, framework_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Checkpoint", "open"]


class Checkpoint:
    """An open checkpoint; `streamer.open` returns one. Thread-safe.

    Every read is pinned to the version whose headers were read: a checkpoint replaced meanwhile raises
    `ChangedError`.
    """

    def __init__(
        self, checkpoint: OpenedCheckpoint, names: NamesOption, framework: Framework, progress: ProgressOption = None
    ) -> None:
        # Each read has the whole deadline, and a report of its own.
        checkpoint.settings = replace(checkpoint.settings, began=None, meter=OutageMeter())
        checkpoint.stages = {}
        self._checkpoint = checkpoint
        self._framework = framework
        self._progress = progress
        chosen = select(names, list(checkpoint.catalog.tensors))
        self._shard_tensors = {each.entry.name: each for each in checkpoint.catalog.in_file_order(chosen)}
        self._is_closed = False

    def keys(self) -> list[str]:
        """Names of the tensors, sorted."""
        return sorted(self._shard_tensors)

    def offset_keys(self) -> list[str]:
        """Names of the tensors in the order their bytes lie in the shards."""
        return list(self._shard_tensors)

    def metadata(self) -> dict[str, str]:
        """The ``__metadata__`` of the headers, later shards winning."""
        return dict(self._checkpoint.catalog.metadata)

    def get_tensor(self, name: str) -> Any:
        """Read one tensor.

        Raises:
            UnknownTensorError: there is none of this name.
            StorageError: and its kinds.
        """
        return self.get_slice(name)[...]

    def get_tensors(self, names: NamesOption = None, *, progress: ProgressOption = None) -> dict[str, Any]:
        """Read many tensors in parallel, all by default, in file order.

        Args:
            names: As for `streamer.load`.
            progress: As for `streamer.load`; None: the one of `streamer.open`.

        Raises:
            UnknownTensorError: a name or pattern matches nothing.
            StorageError: and its kinds.
        """
        self._check_open()
        check_progress(progress)
        chosen = select(names, list(self._shard_tensors))
        wanted = [each for name, each in self._shard_tensors.items() if chosen is None or name in chosen]
        progress = self._progress if progress is None else progress
        with WholeRead(self._checkpoint, wanted, self._framework, progress=progress) as tensors:
            loaded: dict[str, Any] = dict.fromkeys(tensors.names)
            loaded.update(tensors)
        return loaded

    def get_slice(self, name: str) -> TensorSlice:
        """Return a tensor that is read when it is indexed, and then only the leading rows that the index needs.

        Raises:
            UnknownTensorError: there is none of this name.

        Example:
            >>> checkpoint.get_slice("model.embed_tokens.weight")[:1000]      # doctest: +SKIP
        """
        self._check_open()
        check_name(name, "the name of a tensor")
        shard_tensor = self._shard_tensors.get(name)
        if shard_tensor is None:
            raise UnknownTensorError(
                f"the checkpoint holds no tensor {name!r}",
                uri=self._checkpoint.label,
                hint="keys() lists what it holds",
            )
        return TensorSlice(
            shard_tensor.entry, lambda entry: self._read(shard_tensor.shard, entry), self._checkpoint.label
        )

    def close(self) -> None:
        """Refuse further reads through this object. Slices and tensors that were returned stay valid."""
        self._is_closed = True

    def __len__(self) -> int:
        return len(self._shard_tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._shard_tensors

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read(self, shard: int, entry: TensorEntry) -> Any:
        wanted = [ShardTensor(shard, entry)]
        with Stream(
            self._checkpoint, wanted, self._framework, self._checkpoint.verification(wanted), progress=False
        ) as tensors:
            return dict(tensors)[entry.name]

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the checkpoint is closed", uri=self._checkpoint.label)


def open(  # noqa: A001  the name users know from files
    uri: UriOption,
    *,
    device: Any = "cpu",
    names: NamesOption = None,
    framework: str = "pt",
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    verify: VerifyOption = None,
) -> Checkpoint:
    """Open a checkpoint for random access: its headers are read now, its tensors on demand.

    Args:
        uri: As for `streamer.load`.
        device: As for `streamer.load`.
        names: As for `streamer.load`: the tensors of the returned object.
        framework: ``"pt"`` or ``"np"``.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`.
        progress: As for `streamer.load`, of each call of `Checkpoint.get_tensors` that has none of its own.
        verify: As for `streamer.load`, for each read. Rows of a tensor have no digest, and an object that is read in
            several calls is not compared under ``"auto"``, but for answers that carry a checksum of their own.

    Raises:
        StreamerError: as for `streamer.load`.

    Example:
        >>> with streamer.open("s3://bucket/model") as checkpoint:           # doctest: +SKIP
        ...     rows = checkpoint.get_slice("lm_head.weight")[:128]
    """
    uri, storage_options = hidden_uris(uri), hidden(storage_options)
    names = checked_names(names)
    check_progress(progress)
    library = framework_of(framework, device, None, folders_of(uri))
    return Checkpoint(open_checkpoint(uri, storage_options, options, fs, verify), names, library, progress)
