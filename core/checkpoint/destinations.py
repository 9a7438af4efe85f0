"""The memory that each wanted tensor is read to, and the tensor that is handed out: a new one or the caller's.

Refuses, before any byte is read, a tensor for which the framework has no dtype or shape.

A part of a tensor is read as several ranges if its runs of bytes are long, and far apart. If fused experts
(``[experts, out, in]``) are cut by `out`, each rank keeps a run of bytes of each expert, and only these are read. If
runs are short or close together, one range is read and they are cut out of it (`tensor_parts.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamer import _native
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.engine.plan import Row
from streamer.core.format.dtypes import bits_of
from streamer.core.format.header_entries import TensorEntry
from streamer.core.tensors.frameworks import Framework
from streamer.core.tensors.torch_modes import normal_tensors, outside_captures

if TYPE_CHECKING:
    from streamer.core.checkpoint.targets import Targets
    from streamer.core.tensors.device_tensors import DeviceTensors
    from streamer.core.tensors.target_states import ResizeLock

Range: TypeAlias = tuple[int, int]
LEAST_PIECE_BYTES = 64 << 10  # the requests for shorter pieces would cost more than the bytes between them


class InPieces(NamedTuple):
    """A tensor to hand out, and the ranges of its shard that are read for it."""

    # The tensor. If it has several pieces, its bytes are theirs, one after the other; the end of its entry is then not
    # an offset in the shard.
    wanted: ShardTensor
    pieces: Sequence[Range]  # the ranges, in order; one for most tensors


def in_pieces(wanted: ShardTensor, largest_gap_bytes: int) -> InPieces:
    """Divide what is read of a tensor into pieces, if that leaves out bytes that are not wanted."""
    entry, cut = wanted.entry, wanted.cut
    whole = InPieces(wanted, [(entry.begin, entry.end)])
    if cut is None:
        return whole
    from streamer.core.checkpoint.tensor_parts import runs_of, starts_of  # noqa: PLC0415 (as needed)

    run, levels = runs_of(cut)
    bits = bits_of(entry.dtype)
    run_bytes = run * bits // 8
    if not levels or run_bytes < LEAST_PIECE_BYTES or levels[0][1] * bits // 8 - run_bytes <= largest_gap_bytes:
        return whole
    begins = [entry.begin + start * bits // 8 for start in starts_of(cut, levels)]
    kept = entry._replace(shape=cut.kept, begin=begins[0], end=begins[0] + prod(cut.box) * bits // 8)
    return InPieces(wanted._replace(entry=kept, cut=None), [(begin, begin + run_bytes) for begin in begins])


def path_of_new(wanted: ShardTensor, framework: Framework) -> str:
    """Return how a new tensor gets to its device, as `Devices.path`; torch copies a part that was cut out."""
    path = framework.devices.path(wanted.entry.name)
    return "torch" if path == "ring" and wanted.cut is not None else path


class Destinations:
    """The destinations of one read; item numbers are positions in `wanted`.

    Attributes:
        wanted: The tensors, those that are read in pieces as these are joined.
        item_of_row: For each row of the plan, the tensor; None if the numbers are the same.
        in_place: Name to tensor, for the caller's tensors that the engine fills directly.
        device_tensors: The tensors on accelerators; None if all stay in this machine's memory.
    """

    def __init__(
        self,
        wanted: Sequence[ShardTensor],
        framework: Framework,
        targets: Targets | None,
        largest_gap_bytes: int | None = None,
    ) -> None:
        self._requested, self._framework, self._targets = wanted, framework, targets
        self.in_place: Mapping[str, Any] = targets.in_place if targets else {}
        entries = [each.entry for each in wanted]
        kinds = set()
        for each in wanted:
            kind = each.entry.dtype, each.whole_shape
            if each.layout is not None:
                each.layout.check_device(each.entry.name, framework.devices.device(each.entry.name))
            if kind not in kinds:
                framework.dtype(each.entry)
                framework.shape(each.entry._replace(shape=each.whole_shape))
                kinds.add(kind)
        if targets is None:
            self._devices = [framework.devices.engine_device(entry.name) for entry in entries]
        else:
            self._devices = [targets.devices.get(entry.name, _native.HOST) for entry in entries]
        for item, each in enumerate(wanted):
            if each.cut is not None and self._is_new(each.entry.name):
                self._devices[item] = _native.HOST  # cut in host memory: the device holds only the part that is kept
        self.wanted, self._pieces = list(wanted), dict[int, Sequence[tuple[int, int]]]()
        for item, each in enumerate(wanted):
            if largest_gap_bytes is not None and each.cut is not None and self._devices[item] == _native.HOST:
                self.wanted[item], pieces = in_pieces(each, largest_gap_bytes)
                self._pieces.update({item: pieces} if len(pieces) > 1 else {})
        self.item_of_row: list[int] | None = None
        if self._pieces:
            self.item_of_row = [item for item in range(len(wanted)) for _ in self._pieces.get(item, (None,))]
        self.device_tensors: DeviceTensors | None = None
        if any(device != _native.HOST for device in self._devices):
            from streamer.core.tensors.device_tensors import DeviceTensors  # noqa: PLC0415 (as needed)

            self.device_tensors = DeviceTensors(*self._by_row(), framework)

    def _by_row(self) -> tuple[list[TensorEntry], list[int]]:
        """Return the entry and the device of each row of the plan; a piece has those of its tensor."""
        items = range(len(self.wanted)) if self.item_of_row is None else self.item_of_row
        return [self.wanted[item].entry for item in items], [self._devices[item] for item in items]

    def share_lock(self) -> ResizeLock | None:
        """Lock the memory of the targets once more; the caller releases the lock."""
        return self._targets.lock.shared() if self._targets else None

    def items(self) -> Iterator[Row]:
        """Return the rows of the plan: the bytes to read, and their destinations."""
        addresses = self._targets.addresses if self._targets else {}
        entries = [each.entry for each in self.wanted]
        rows = zip(
            [each.shard for each in self.wanted],
            [entry.begin for entry in entries],
            [entry.end for entry in entries],
            [addresses.get(entry.name, 0) for entry in entries] if addresses else repeat(0),
            self._devices,
            strict=False,
        )
        return self._with_pieces(rows) if self._pieces else rows

    def _with_pieces(self, rows: Iterable[Row]) -> Iterator[Row]:
        for item, (shard, begin, end, address, device) in enumerate(rows):
            for piece in self._pieces.get(item, [(begin, end)]):
                yield shard, *piece, address, device

    def bytes_of(self, item: int, memory: _native.Memory | None) -> memoryview | None:
        """Return the bytes of a finished item; None if it is empty, or not in this machine's memory."""
        entry = self.wanted[item].entry
        targets = self._targets if entry.name in self.in_place else None
        data = memory if targets is None else targets.bytes_in_place(entry)
        return None if data is None else memoryview(data)

    def _row_of(self, item: int) -> int:
        return item if self.item_of_row is None else bisect_left(self.item_of_row, item)

    def is_on_accelerator(self, item: int) -> bool:
        """Say whether the item was read into memory of `device_tensors`."""
        return self._devices[item] != _native.HOST

    @outside_captures
    def tensors(self, items: Sequence[int], memories: Sequence[_native.Memory | None]) -> list[Any]:
        """Return the tensors of finished items: those `in_place`, or new ones on their devices, in their final dtypes.

        A tensor that is copied to a target keeps its stored dtype: the copy casts it.
        """
        with normal_tensors():
            return self._tensors(items, memories)

    def _tensors(self, items: Sequence[int], memories: Sequence[_native.Memory | None]) -> list[Any]:
        entries = [self.wanted[item].entry for item in items]
        if self._targets is not None or self.device_tensors is not None:
            tensors = [self._tensor(*each) for each in zip(items, memories, entries, strict=True)]
            return [self._placed(*each) for each in zip(items, tensors, strict=True)]
        made = self._framework.tensors(memories, entries)
        return [
            self._placed(item, self._moved_and_cast(self._cut(item, tensor), entry))
            for item, tensor, entry in zip(items, made, entries, strict=True)
        ]

    def device_paths(self) -> set[str]:
        """Return the planned paths of the tensors to their devices; see `Devices.path`."""
        if self._targets is not None:
            return self._targets.device_paths
        return {path_of_new(each, self._framework) for each in self._requested}

    def remarks(self) -> list[str]:
        """Return the reasons why the engine does not fill a CUDA device."""
        return self._framework.devices.remarks()

    def _tensor(self, item: int, memory: _native.Memory | None, entry: TensorEntry) -> Any:
        name = entry.name
        if name in self.in_place:
            return self.in_place[name]
        is_on_accelerator = self.device_tensors is not None and self.is_on_accelerator(item)
        if self.device_tensors is not None and is_on_accelerator:
            tensor = self.device_tensors.take(self._row_of(item))
        else:
            (tensor,) = self._framework.tensors([memory], [entry])
        tensor = self._cut(item, tensor)
        if self._targets is not None and name in self._targets.copies:
            return tensor
        if self._is_new(name) and not is_on_accelerator:
            return self._moved_and_cast(tensor, entry)
        return self._framework.cast(tensor, entry)

    def _is_new(self, name: str) -> bool:
        return self._targets is None or name in self._targets.fresh

    def _cut(self, item: int, tensor: Any) -> Any:
        """Return the part of the tensor that is kept: a view if it is copied to a target, else a copy."""
        wanted = self.wanted[item]
        if wanted.cut is None:
            return tensor
        is_copied = self._targets is not None and wanted.entry.name in self._targets.copies
        cut = wanted.cut.view if is_copied else wanted.cut.copy
        return cut(tensor, wanted.entry, self._framework)

    def _placed(self, item: int, tensor: Any) -> Any:
        layout = self.wanted[item].layout
        return tensor if layout is None else layout.dtensor(tensor)

    def _moved_and_cast(self, tensor: Any, entry: TensorEntry) -> Any:
        return self._framework.cast(self._framework.devices.moved(tensor, entry.name), entry)
