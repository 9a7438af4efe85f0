"""Random access to a checkpoint in any storage: headers are read once, tensors on demand.

`safe_open` makes the same call with the same methods as safetensors'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from streamer._arguments import request_of
from streamer._checkpoint_headers import framework_for, open_checkpoint, pinned, wanted_tensors
from streamer._load import WholeRead, collected
from streamer._stream import Stream
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.destinations import KeptMemory
from streamer.core.checkpoint.lazy_tensor import TensorSlice
from streamer.core.checkpoint.parallel_plans import Placements
from streamer.core.checkpoint.sealed_catalog import with_whole_pieces
from streamer.core.checkpoint.selection import NamesOption, select, unknown_tensor
from streamer.core.errors import ChangedError, UsageError
from streamer.core.format.dtypes import byte_length
from streamer.core.options.arguments import check_name, check_progress
from streamer.core.options.options import Options
from streamer.core.outages.counters import EarlierCounters
from streamer.core.quoting import counted, printable, size_text
from streamer.core.request.request import ProgressOption, Request, UriOption
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.versions import is_same_version
from streamer.core.tensors.frameworks import Framework, TensorT

if TYPE_CHECKING:
    import torch
    from fsspec import AbstractFileSystem
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack

    from streamer._arguments import LoadArguments
    from streamer.core.checkpoint.selection import NamesOption
    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions
    from streamer.core.tensors.frameworks import NumpyName, TorchName
    from streamer.core.verification.strategy import VerifyOption

LEAST_CHECKED_BYTES = 16 << 20  # smaller reads skip the memory check, which takes a tenth of a millisecond


class Checkpoint(Mapping[str, TensorSlice[TensorT]]):
    """An open checkpoint; `streamer.open` returns one. Thread-safe.

    It is a mapping of names to tensors that are not read yet. Every read is pinned to the version whose headers were
    read: if the checkpoint was replaced since, a read raises `ChangedError`. A pickle holds the arguments of
    `streamer.open`, including credentials. Unpickling opens the checkpoint again, and raises `ChangedError` if it was
    replaced.
    """

    _reads_any_format = True
    __eq__, __hash__ = object.__eq__, object.__hash__  # by identity: mappings would compare unread tensors

    def __init__(self, request: Request, listed: Sequence[ObjectInfo] | None = None) -> None:
        if isinstance(request.slices, Placements):
            raise UsageError("open() gives no DTensors", hint="load() and stream() take Placements")
        if request.group is not None:
            hint = "load() and stream() take one"
            raise UsageError("open() reads for one rank, when it needs a tensor, and so takes no group=", hint=hint)
        self._request = request = pinned(request)
        self._framework = framework_for(request)
        self._checkpoint = open_checkpoint(request, listed, any_format=self._reads_any_format)
        # Each read gets the whole deadline, and its own report.
        self._checkpoint.settings = replace(self._checkpoint.settings, began=None, earlier=EarlierCounters())
        self._checkpoint.stages = {}
        self._shard_tensors = {
            each.entry.name: each for each in wanted_tensors(self._checkpoint, request, is_lazy=True)
        }
        self._is_closed = False

    def keys(self) -> list[str]:  # type: ignore[override]  # a list, as in safetensors
        """Names of the tensors, sorted."""
        return sorted(self._shard_tensors)

    def offset_keys(self) -> list[str]:
        """Names of the tensors in the order of their bytes in the shards."""
        return list(self._shard_tensors)

    def metadata(self) -> dict[str, str]:
        """The ``__metadata__`` of the headers; for equal keys, the value of the last shard."""
        return dict(self._checkpoint.catalog.metadata)

    def get_tensor(self, name: str, *, device: Any = None, dtype: Any = None) -> TensorT:
        """Read one tensor.

        Args:
            name: The name of the tensor.
            device: None uses the device given to `streamer.open`.
            dtype: None uses the dtype given to `streamer.open`.

        Raises:
            UnknownTensorError: no tensor has this name.
            StorageError: or a subclass.
        """
        return self.get_slice(name, device=device, dtype=dtype)[...]

    def get_tensors(
        self, names: NamesOption = None, *, device: Any = None, dtype: Any = None, progress: ProgressOption = None
    ) -> dict[str, TensorT]:
        """Read many tensors in parallel, by default all, and return them in file order.

        Args:
            names: As for `streamer.load`.
            device: None uses the device given to `streamer.open`.
            dtype: None uses the dtype given to `streamer.open`.
            progress: None uses the value given to `streamer.open`.

        Raises:
            UnknownTensorError: a name or pattern matches nothing.
            StorageError: or a subclass.
        """
        self._check_open()
        check_progress(progress)
        chosen = select(names, list(self._shard_tensors), self._checkpoint.label)
        wanted = [each for name, each in self._shard_tensors.items() if chosen is None or name in chosen]
        wanted = with_whole_pieces(self._checkpoint.catalog, wanted)
        progress = self._request.progress if progress is None else progress
        return collected(WholeRead(self._checkpoint, wanted, self._library(device, dtype), progress=progress))

    def get_slice(self, name: str, *, device: Any = None, dtype: Any = None) -> TensorSlice[TensorT]:
        """Return a lazy tensor: indexing it reads only the leading rows that the index needs.

        Args:
            name: The name of the tensor.
            device: None uses the device given to `streamer.open`.
            dtype: None uses the dtype given to `streamer.open`.

        Raises:
            UnknownTensorError: no tensor has this name.

        Example:
            >>> checkpoint.get_slice("model.embed_tokens.weight")[:1000]      # doctest: +SKIP
        """
        self._check_open()
        check_name(name, "the name of a tensor")
        shard_tensor = self._shard_tensors.get(name)
        if shard_tensor is None:
            raise unknown_tensor(name, list(self._shard_tensors), self._checkpoint.label)
        library = self._library(device, dtype)
        sealed = self._checkpoint.catalog.sealed.get(shard_tensor.shard)
        return TensorSlice(
            shard_tensor.entry,
            lambda entry: self._read(shard_tensor._replace(entry=entry), library),
            library,
            self._checkpoint.label,
            cut=shard_tensor.cut,
            metadata=self._checkpoint.catalog.metadata,
            differing=self._checkpoint.catalog.differing,
            remarks=self._checkpoint.catalog.remarks,
            sealed=None if sealed is None else sealed.parameters,
            source=self._checkpoint.catalog.shards[shard_tensor.shard],
        )

    def close(self) -> None:
        """Refuse further reads through this object. Slices and tensors already returned stay valid."""
        self._is_closed = True

    def __getitem__(self, name: str) -> TensorSlice[TensorT]:
        """Return a lazy tensor, like `get_slice`; its shape, dtype and nbytes are known without reading.

        Example:
            >>> checkpoint["lm_head.weight"].shape, checkpoint["lm_head.weight"][:10]      # doctest: +SKIP
        """
        return self.get_slice(name)

    def __len__(self) -> int:
        return len(self._shard_tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._shard_tensors

    def __repr__(self) -> str:
        if not hasattr(self, "_shard_tensors"):  # a traceback that shows locals calls this after opening failed
            return f"<{type(self).__name__}, not open>"
        kept = [each.kept for each in self._shard_tensors.values()]
        size_bytes = sum(byte_length(each.shape, each.dtype) for each in kept)
        shards = len({each.shard for each in self._shard_tensors.values()})
        what = f"{counted(len(self), 'tensor')}, {size_text(size_bytes)} in {counted(shards, 'shard')}"
        state = ", closed" if self._is_closed else ""
        return f"<{type(self).__name__} {printable(self._checkpoint.label)}: {what}{state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._request.check_pickled()
        return _reopened, (type(self), self._request, self._versions(), self._is_closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _library(self, device: Any, dtype: Any) -> Framework:
        return self._framework if device is None and dtype is None else framework_for(self._request, device, dtype)

    def _read(self, wanted: ShardTensor, library: Framework) -> Any:
        (wanted,) = with_whole_pieces(self._checkpoint.catalog, [wanted])
        kept = KeptMemory([wanted], library, None)
        if kept.stored_bytes >= LEAST_CHECKED_BYTES and self._checkpoint.settings.check_memory is not False:
            kept.check_fit(self._checkpoint.label)
        try:
            with self._stream_of(wanted, library) as tensors:
                kept.unread_share = tensors.unread_share
                return dict(tensors)[wanted.entry.name]
        finally:
            kept.end()

    def _stream_of(self, wanted: ShardTensor, library: Framework) -> Stream[Any]:
        verification = self._checkpoint.verification([wanted])
        return Stream(self._checkpoint, [wanted], library, verification, progress=False)

    def _versions(self) -> list[tuple[str, int | None, str | None]]:
        return [(each.path, each.size_bytes, each.version) for each in self._checkpoint.infos]

    def _has(self, versions: list[tuple[str, int | None, str | None]]) -> bool:
        infos = self._checkpoint.infos
        return len(infos) == len(versions) and all(
            (info.path, info.size_bytes) == (path, size_bytes) and is_same_version(info.version, version)
            for info, (path, size_bytes, version) in zip(infos, versions, strict=True)
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the checkpoint is closed", uri=self._checkpoint.label)


def _reopened(
    kind: type[Checkpoint[Any]], request: Request, versions: list[tuple[str, int | None, str | None]], is_closed: bool
) -> Checkpoint[Any]:
    """Open an unpickled checkpoint again."""
    checkpoint = kind.__new__(kind)
    Checkpoint.__init__(checkpoint, request)
    if not checkpoint._has(versions):
        raise ChangedError(
            "the checkpoint is not the one that was pickled: its files were replaced",
            uri=checkpoint._checkpoint.label,
            hint="Open the checkpoint again, and pickle the new object",
        )
    checkpoint._is_closed = is_closed
    return checkpoint


@overload
def open(uri: UriOption, *, framework: TorchName = ..., **how: Unpack[LoadArguments]) -> Checkpoint[torch.Tensor]: ...
@overload
def open(uri: UriOption, *, framework: NumpyName, **how: Unpack[LoadArguments]) -> Checkpoint[NDArray[Any]]: ...
@overload
def open(uri: UriOption, *, framework: str, **how: Unpack[LoadArguments]) -> Checkpoint[Any]: ...
def open(  # noqa: D417  `load` describes the others
    uri: UriOption,
    *,
    device: Any = "cpu",
    names: NamesOption = None,
    slices: SlicesOption = None,
    framework: str = "pt",
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    dtype: Any = None,
    verify: VerifyOption = None,
    key: KeyOption = None,
    context: str | None = None,
    group: Any = None,
) -> Checkpoint[Any]:
    """Open a checkpoint for random access: its headers are read now, its tensors on demand.

    Args:
        uri: As for `streamer.load`, like the keyword arguments that are not described here.
        names: The returned object contains only these tensors.
        slices: Tensors of the returned object are these parts; shapes and indexes refer to the part. If a part is not
            a range of rows, each index reads the whole part.
        progress: The default for calls of `Checkpoint.get_tensors`.
        group: Refused, because reads happen when a rank asks for them.
        verify: Applies to each read. Rows of a tensor have no digest. With ``"auto"``, an object that is read in
            several calls is not compared, except for responses with their own checksum.

    Raises:
        StreamerError: as for `streamer.load`.

    Example:
        >>> with streamer.open("s3://bucket/model") as checkpoint:           # doctest: +SKIP
        ...     rows = checkpoint.get_slice("lm_head.weight")[:128]
    """
    return Checkpoint(request_of(locals()))


class safe_open(Checkpoint[Any]):  # noqa: N801  the name in safetensors
    """Open a checkpoint as ``safetensors.safe_open`` opens a file; it may be any URL, and may be sharded.

    Args:
        filename: As ``uri`` of `streamer.load`.
        framework: ``"pt"`` or ``"np"``, or one of safetensors' longer names for them.
        device: As for `streamer.load`.
        storage_options: Passed to fsspec unchanged.
        options: How to read; see `streamer.Options`.

    Raises:
        StreamerError: as for `streamer.load`; other formats than safetensors are refused.

    Example:
        >>> with safe_open("s3://bucket/model.safetensors", framework="pt") as f:     # doctest: +SKIP
        ...     tensor = f.get_tensor("weight")
    """

    _reads_any_format = False

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: Any = "cpu",
        *,
        storage_options: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> None:
        super().__init__(
            Request(uri=filename, framework=framework, device=device, storage_options=storage_options, options=options)
        )

    def metadata(self) -> dict[str, str] | None:  # type: ignore[override]  # safetensors returns None for no metadata
        """The ``__metadata__`` of the file, or None if there is none."""
        return super().metadata() or None
