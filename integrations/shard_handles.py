"""The shards of an open checkpoint as separate files, which one read plan serves.

A library may open shard after shard, get slices of each, and index these later. It then gets the tensors from one
`ReadAhead` over all shards, or rows from one `PartsAhead`. An index that selects rows reads only these rows.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from streamer._lazy_checkpoint import Checkpoint
from streamer._stream import Stream
from streamer.compat.safetensors._handle import EngineHandle, HandleSlice
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.lazy_tensor import TensorSlice
from streamer.core.engine.tuning import cached_fraction
from streamer.core.request.request import Request
from streamer.core.store.sources import FileSource, ObjectInfo
from streamer.core.tensors.frameworks import Framework
from streamer.integrations.parts_ahead import PartsAhead
from streamer.integrations.read_ahead import ReadAhead

# If more of the sampled pages are in the page cache, the file counts as cached; its other pages are read on use.
MOSTLY_CACHED = 0.9


class _OwnReads:
    """The running reads of single tensors, of all handles of a checkpoint. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[Stream[Any]] = weakref.WeakSet()
        self._is_cancelled = False

    def add(self, stream: Stream[Any]) -> Stream[Any]:
        with self._lock:
            self._streams.add(stream)
            is_cancelled = self._is_cancelled
        if is_cancelled:
            stream.close()
        return stream

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            streams = list(self._streams)
        for each in streams:
            each.close()


class WholeCheckpoint(Checkpoint[Any]):
    """An open checkpoint with access to its shards, which are files of safetensors."""

    _reads_any_format = False

    def __init__(self, request: Request, listed: Sequence[ObjectInfo] | None = None) -> None:
        super().__init__(request, listed)
        self._own_reads = _OwnReads()

    def cancel(self) -> None:
        """End all reads of single tensors with an error, also later ones: their results are no longer needed."""
        self._own_reads.cancel()

    @property
    def label(self) -> str:
        """The URI that was opened, without secrets."""
        return self._checkpoint.label

    @property
    def is_one_file(self) -> bool:
        """Whether the URI names one file, not an index, a folder or a pattern."""
        return self._checkpoint.kind == "file"

    def shard_of_tensor(self) -> dict[str, str]:
        """Return name of each tensor to the path of its file in the checkpoint's folder; tensors in file order."""
        names = self._shard_names()
        return {name: names[each.shard] for name, each in self._shard_tensors.items()}

    def read_ahead(self, *, takes_parts: bool = False) -> ReadAhead | PartsAhead:
        """Return a plan without tensors."""
        ahead = ReadAhead(self._checkpoint, self._framework)
        return PartsAhead(ahead) if takes_parts else ahead

    def read_shards_ahead(self, device: Any) -> ReadAhead:
        """Return a plan of all shards, for a library that takes whole shards in the order of their names."""
        names = self._shard_names()
        tensors = sorted(self._shard_tensors.values(), key=lambda each: (names[each.shard], each.entry.begin))
        return ReadAhead(self._checkpoint, self._library(device, None), tensors)

    def whole_shard(self, name: str, device: Any, plan: ReadAhead) -> dict[str, Any]:
        """Take all tensors of one shard."""
        taken: dict[str, Any] = {}
        for each in self._tensors_of(self._shard_names().index(name)):
            tensor = plan.take(each)
            taken[each] = self.get_tensor(each, device=device) if tensor is None else tensor
        return taken

    def metadata_of_file(self, name: str) -> dict[str, str]:
        """Return the metadata of one shard; arguments as for `local_file`."""
        return dict(self._checkpoint.catalog.header_metadata[self._shard_names().index(name)])

    def opened_shard(self, name: str, device: Any, plan: ReadAhead | PartsAhead) -> EngineHandle:
        """Open one shard."""
        return _ShardHandle(self, name, device, plan)

    def opened_whole_shard(self, name: str, device: Any, plan: ReadAhead) -> EngineHandle:
        """Open one shard whose tensors go to different devices; arguments as for `opened_shard`.

        The plan reads all tensors to the CPU; tensors that are requested for another device are copied there.
        """
        return _CopyingHandle(self, name, device, plan)

    def tensors_of_file(self, name: str) -> dict[str, ShardTensor]:
        """Return the tensors of a shard in file order; arguments as for `local_file`."""
        return self._tensors_of(self._shard_names().index(name))

    def stream(self, wanted: list[ShardTensor], library: Framework) -> Stream[Any]:
        """Return a stream of tensors, in this order, made by `library`."""
        return Stream(
            self._checkpoint, wanted, library, self._checkpoint.verification(wanted), order="file", progress=False
        )

    def local_file(self, name: str) -> str | None:
        """Return the path of a shard that is a local file; None for any other shard, and for one that is verified."""
        return self._local_path(self._shard_names().index(name))

    def warm_file(self, name: str) -> str | None:
        """Return the path of a shard that is a local file in the page cache, and may be read without this package.

        None for any other shard, one that is verified, and one with tensors that the index takes from another shard.
        """
        number = self._shard_names().index(name)
        return None if number in self._checkpoint.catalog.overruled else self._warm_path(number)

    def warm_shards(self) -> dict[str, list[str]] | None:
        """Return path to names of tensors in file order, if all shards are local files in the page cache; else None."""
        held = {self._warm_path(number): [*self._tensors_of(number)] for number in range(len(self._checkpoint.infos))}
        return None if None in held else {str(path): names for path, names in held.items()}

    def _stream_of(self, wanted: ShardTensor, library: Framework) -> Stream[Any]:
        return self._own_reads.add(super()._stream_of(wanted, library))

    def _tensors_of(self, shard: int) -> dict[str, ShardTensor]:
        """Return the tensors of one shard, in file order."""
        return {name: each for name, each in self._shard_tensors.items() if each.shard == shard}

    def _warm_path(self, number: int) -> str | None:
        shard, path = self._checkpoint.catalog.shards[number], self._local_path(number)
        return path if path is not None and cached_fraction(path, shard.size_bytes) > MOSTLY_CACHED else None

    def _local_path(self, number: int) -> str | None:
        shard = self._checkpoint.catalog.shards[number]
        if not isinstance(shard.source, FileSource) or shard.source.is_remote:
            return None
        is_verified = self._checkpoint.verification(list(self._tensors_of(number).values())) is not None
        return None if is_verified else shard.source.path

    def _shard_names(self) -> list[str]:
        infos, index_path = self._checkpoint.infos, self._checkpoint.index_path
        folder = (index_path or infos[0].path).rpartition("/")[0]
        return [info.path.removeprefix(f"{folder}/") for info in infos]


class PlannedSlice(HandleSlice):
    """A tensor of a plan whose device may be set before the tensor is read."""

    def __init__(self, part: TensorSlice[Any], plan: ReadAhead, name: str) -> None:
        super().__init__(part, is_numpy=False)
        self._plan, self._name = plan, name

    def place(self, device: Any) -> None:
        """Read the tensor to this device, unless reading has begun; the library then moves it by itself."""
        self._plan.place(self._name, device)


class _ShardHandle(EngineHandle):
    def __init__(self, whole: WholeCheckpoint, name: str, device: Any, plan: ReadAhead | PartsAhead) -> None:
        self.__dict__.update(vars(whole))
        self._whole = whole
        self._name, self._shard_tensors = name, whole.tensors_of_file(name)
        self._device = None if str(device) == "cpu" else device
        self._plan = plan if self._device is None else None

    def metadata(self) -> dict[str, str] | None:  # type: ignore[override]  # as that of `EngineHandle`
        """The ``__metadata__`` of this shard, or None if there is none."""
        self._check_open()
        return self._whole.metadata_of_file(self._name) or None

    def get_slice(self, name: str, **named: Any) -> TensorSlice[Any]:
        """Return a tensor that is read when it is indexed, and add it to the plan."""
        if self._plan is not None and not named:
            self._check_holds(name)
            self._plan.expect(self._shard_tensors[name])
        part = super().get_slice(name, **{"device": self._device, **named})
        return PlannedSlice(part, self._plan, name) if isinstance(self._plan, ReadAhead) and not named else part

    def close(self) -> None:
        """Refuse further slices; remove this shard's tensors from the plan if reading has not begun."""
        super().close()
        if self._plan is not None:
            self._plan.forget(self._shard_tensors)

    def _stream_of(self, wanted: ShardTensor, library: Framework) -> Stream[Any]:
        return self._whole._stream_of(wanted, library)

    def _read(self, wanted: ShardTensor, library: Framework) -> Any:
        if self._plan is None or library is not self._framework:
            return super()._read(wanted, library)
        tensor = self._plan.take_part(wanted)
        return super()._read(wanted, library) if tensor is None else tensor


class _CopyingHandle(_ShardHandle):
    def __init__(self, whole: WholeCheckpoint, name: str, device: Any, plan: ReadAhead) -> None:
        super().__init__(whole, name, "cpu", plan)
        self._copies_to = device

    def get_tensor(self, name: str, **named: Any) -> Any:
        """Take one tensor from the plan, and copy it to the device of this handle."""
        return super().get_tensor(name, **named).to(self._copies_to)
