"""The memory that each wanted tensor is read to, and the tensor that is handed out: a new one or the caller's.

Refuses, before any byte is read, a tensor for which the framework has no dtype or shape.

`KeptMemory` refuses a load whose tensors need more memory than this machine, or this container, has left. The kernel
grants memory before it is filled, and kills a process that fills too much, without a message.
"""

from __future__ import annotations

import os
import threading
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from math import prod
from typing import TYPE_CHECKING, Any

from streamer import _native
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.engine.plan import Row
from streamer.core.errors import OutOfMemoryError
from streamer.core.format.header_entries import TensorEntry
from streamer.core.options.machine import free_bytes
from streamer.core.quoting import size_text
from streamer.core.tensors.frameworks import Framework
from streamer.core.tensors.torch_modes import normal_tensors, outside_captures

if TYPE_CHECKING:
    from streamer.core.checkpoint.targets import Targets
    from streamer.core.tensors.device_tensors import DeviceTensors
    from streamer.core.tensors.target_states import ResizeLock


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
        *,
        takes_runs: bool = False,
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
        self.wanted, self._pieces = list(wanted), dict[int, Sequence[tuple[int, int]]]()
        self._ends, self._runs = dict[int, int](), dict[int, tuple[int, int]]()
        for item, each in enumerate(wanted):
            if each.cut is not None:
                self._divide(item, largest_gap_bytes, takes_runs=takes_runs)
        self.item_of_row: list[int] | None = None
        if self._pieces:
            self.item_of_row = [item for item in range(len(wanted)) for _ in self._pieces.get(item, (None,))]
        self.device_tensors: DeviceTensors | None = None
        if any(device != _native.HOST for device in self._devices):
            from streamer.core.tensors.device_tensors import DeviceTensors  # noqa: PLC0415 (as needed)

            self.device_tensors = DeviceTensors(*self._by_row(), framework)

    def _divide(self, item: int, largest_gap_bytes: int | None, *, takes_runs: bool) -> None:
        """Read a part in pieces or in runs, if that is possible."""
        from streamer.core.checkpoint.tensor_parts import in_pieces, in_runs  # noqa: PLC0415 (as needed)

        if self._is_new(self.wanted[item].entry.name):
            self._devices[item] = _native.HOST  # cut in host memory: the device holds only the part that is kept
        if largest_gap_bytes is not None and self._devices[item] == _native.HOST:
            self.wanted[item], pieces = in_pieces(self.wanted[item], largest_gap_bytes)
            self._pieces.update({item: pieces} if len(pieces) > 1 else {})
        found = in_runs(self.wanted[item]) if takes_runs else None
        if found is not None:
            self.wanted[item], self._ends[item], self._runs[item] = found
            if self._targets is not None:
                self._targets.fill_in_place(self.wanted[item], self._framework)

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
        ends = [entry.end for entry in entries]
        for item, end in self._ends.items():
            ends[item] = end
        rows = zip(
            [each.shard for each in self.wanted],
            [entry.begin for entry in entries],
            ends,
            [addresses.get(entry.name, 0) for entry in entries] if addresses else repeat(0),
            self._devices,
            strict=False,
        )
        return self._with_pieces(rows) if self._pieces else rows

    def runs(self) -> array[int] | None:
        """Return the rows of which only runs are read, as `ReadPlan.runs`."""
        return array("q", chain.from_iterable((self._row_of(item), *each) for item, each in self._runs.items())) or None

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


LARGEST_GROWTH = 4  # the most that a cast enlarges a tensor: from F16 to F64


class KeptMemory:
    """The host memory that all new tensors of one load need together.

    Attributes:
        unread_share: Returns the share of the bytes (from 1 to 0) that was not read yet, and has no memory yet.
    """

    def __init__(self, wanted: Sequence[ShardTensor], framework: Framework, targets: Targets | None) -> None:
        self._wanted, self._framework, self._targets = wanted, framework, targets
        self.unread_share: Callable[[], float] = lambda: 1.0

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of the tensors in the checkpoint."""
        return sum(each.entry.end - each.entry.begin for each in self._wanted)

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes of the new tensors in host memory; a cast makes them more or less than `stored_bytes`."""
        framework, targets = self._framework, self._targets
        new = [each for each in self._wanted if targets is None or each.entry.name in targets.fresh]
        here = [each for each in new if not framework.devices.path(each.entry.name)]
        return sum(_kept_bytes(each, framework) for each in here)

    def check_fit(self, uri: str) -> None:
        """Check that the memory is free, beside what other loads of this process still need; count it until `end`."""
        with _checking:
            others = list(_running)
            free_now = free_bytes()
            stored_bytes = self.stored_bytes + sum(each.stored_bytes for each in others)
            if stored_bytes * LARGEST_GROWTH > free_now:  # rare; `needed_bytes` costs time for a million tensors
                promised = sum(int(each.needed_bytes * each.unread_share()) for each in others)
                if self.needed_bytes > free_now - promised:
                    raise _refusal(self.needed_bytes, free_now, promised, uri)
            _running.add(self)

    def end(self) -> None:
        """Stop counting this memory: the load has ended."""
        _running.discard(self)


_running: weakref.WeakSet[KeptMemory] = weakref.WeakSet()
_checking = threading.Lock()


def _forget_parents() -> None:
    """Reset the loads and the lock in a forked child: a thread of the parent may hold the lock."""
    global _checking  # noqa: PLW0603
    _checking = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_parents)


def _refusal(needed_bytes: int, free_now: int, promised: int, uri: str) -> OutOfMemoryError:
    others = f", of which running loads need {size_text(promised)}" if promised else ""
    return OutOfMemoryError(
        f"its tensors need {size_text(needed_bytes)} of memory, and this process can get {size_text(free_now)} more"
        f" from its machine or container{others}",
        uri=uri,
        hint="Take them one at a time with stream(), load them to a device (device=), load fewer (names=), or give"
        " the container more memory; Options(check_memory=False) tries it all the same",
        requested_bytes=needed_bytes,
    )


def _kept_bytes(wanted: ShardTensor, framework: Framework) -> int:
    return prod(framework.shape(wanted.kept)) * int(framework.final_dtype(wanted.entry).itemsize)
