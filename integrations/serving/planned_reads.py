"""A checkpoint whose tensors are read after a model's loaders have said which parts they keep, in one planned read.

A part whose bytes are one range, or equal runs in a range, and that is kept as it is stored, is read straight into its
place. For any other part, the range that holds it is read, and the part is copied out of it, with its casts. Ranges
that overlap are read once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch

from streamer._checkpoint_headers import OpenedCheckpoint, framework_for, open_checkpoint, wanted_tensors
from streamer._load import WholeRead, collected
from streamer._reads import may_be_shared
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.targets import match_targets
from streamer.core.checkpoint.tensor_parts import LEAST_PIECE_BYTES, Cut, levels_of
from streamer.core.collector import collector_paused
from streamer.core.errors import LoadCancelledError
from streamer.core.format.header_entries import TensorEntry
from streamer.core.log import OwnLogger
from streamer.core.outages.counters import EarlierCounters
from streamer.core.quoting import counted, printable, size_text
from streamer.core.request.request import Request
from streamer.core.tensors.torch_modes import normal_tensors, outside_captures
from streamer.integrations.serving.deferred_tensors import Copy, Deferred, DeferredSource
from streamer.integrations.serving.recorder import Recorder

BATCH_BYTES = 64 << 20  # of tensors that loaders have taken, before a read of what they keep begins

# Loaders compute with scales, shapes and heads: small tensors are read ahead, all together. If larger ones were, each
# rank would read the scales of all experts.
MOST_EAGER_BYTES = 4 << 10
LARGEST_RANGE_BYTES = 32 << 20  # of a range that is read to copy parts out of it: it takes memory beside the parameters

_log = OwnLogger()

_Dim: TypeAlias = tuple[int, int, int]  # of a copy: stride in the stored tensor, size, stride in the destination


class PlannedCheckpoint:
    """An open checkpoint; its text says what was read.

    Attributes:
        read_bytes: What was read so far, in bytes of tensors.
        direct_bytes: The part of them that was read straight into its place.
        staged_bytes: What was read beside the parameters, to copy parts out of it.
    """

    def __init__(self, request: Request) -> None:
        self._checkpoint = open_checkpoint(request, any_format=True)
        # Each read gets the whole deadline, and its own report.
        self._checkpoint = self._changed(began=None, earlier=EarlierCounters())
        self._checkpoint.logs_reads = False  # one line says what all reads have read
        self._checkpoint.stages = {}
        self._wanted = wanted_tensors(self._checkpoint, request)
        self._library = framework_for(request)
        self._progress, self._began = request.progress, time.monotonic()
        self._is_shared = may_be_shared(self._checkpoint.settings)
        self._running: WholeRead | None = None
        self._is_stopped = False
        self.read_bytes = self.direct_bytes = self.staged_bytes = 0

    def _changed(self, **settings: Any) -> OpenedCheckpoint:
        """Return the open checkpoint with other settings."""
        changed = copy.copy(self._checkpoint)
        changed.settings = replace(changed.settings, **settings)
        return changed

    def __str__(self) -> str:
        size, direct = size_text(self.read_bytes), size_text(self.direct_bytes)
        what = f"{counted(len(self._wanted), 'tensor')}, {size} read, {direct} of it straight into parameters"
        return f"{printable(self._checkpoint.label)}: {what}, in {time.monotonic() - self._began:.2f} s"

    def is_deferrable(self) -> bool:
        """Whether parts of tensors can be read; if not, a line in the log says why."""
        opened, reason = self._checkpoint, ""
        if opened.format_name != "safetensors":
            reason = f"the format is {opened.format_name}"
        elif opened.is_sealed:
            reason = "they are encrypted"
        elif opened.verification(self._wanted) is not None:
            reason = "digests are of whole tensors (verify)"
        if reason:
            _log.info("%s: tensors are read whole, as %s", printable(opened.label), reason)
        return not reason

    def tensors(self, recorder: Recorder) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Yield the tensors in file order, small ones with data, the others deferred; then fill what is recorded."""
        recorder.checkpoints.append(self)
        most_bytes = -1 if recorder.defers_all else MOST_EAGER_BYTES
        small = [each for each in self._wanted if each.entry.end - each.entry.begin <= most_bytes]
        data: dict[str, torch.Tensor] = {}
        if small:
            gap_bytes = min(self._checkpoint.settings.coalesce_gap_bytes, MOST_EAGER_BYTES)  # each rank reads them
            opened = self._changed(share="off", coalesce_gap_bytes=gap_bytes)
            data = collected(WholeRead(opened, small, self._library, progress=False))
            self.read_bytes += sum(each.entry.end - each.entry.begin for each in small)
        forms: dict[tuple[tuple[int, ...], str], torch.Tensor] = {}  # the layers of a model are alike
        taken_bytes = 0
        for each in self._wanted:
            entry = each.entry
            if entry.name in data:
                yield entry.name, data.pop(entry.name)
                continue
            kind = entry.shape, entry.dtype
            if kind not in forms:
                with normal_tensors():
                    shape, dtype = self._library.shape(entry), self._library.dtype(entry)
                    forms[kind] = torch.empty(shape, dtype=dtype, device="meta")
            yield entry.name, Deferred.of(DeferredSource(entry.name, self, recorder, each), forms[kind])
            taken_bytes += entry.end - entry.begin
            if taken_bytes >= BATCH_BYTES and not self._is_shared:  # ranks that share are at different tensors now
                recorder.fill_ahead()
                taken_bytes = 0
        recorder.fill(is_planned=True)  # models process their parameters then, some by kernels that take addresses

    @outside_captures
    def fill(self, copies: Sequence[Copy], *, is_planned: bool = False) -> None:
        """Make copies whose destinations do not overlap, in one read; one that is not planned is of one rank."""
        gap_bytes = self._checkpoint.settings.coalesce_gap_bytes
        numbers = count()
        with collector_paused():
            parts = sorted(part for each in copies for part in _Cutting(each, gap_bytes, numbers).parts())
        direct, staged = dict[str, torch.Tensor](), dict[str, _Range]()
        wanted = list[ShardTensor]()
        for number, each in enumerate(_ranges_of(parts)):
            name = f"{each.parts[0].name} #{number}"
            runs = each.parts[0].runs() if len(each.parts) == 1 else None
            if runs is None:
                staged[name] = each
            else:
                direct[name] = each.parts[0].region.view(-1).view(torch.uint8)
            cut = Cut(*runs, 0, (prod(runs[1]),)) if runs and runs[0] != runs[1] else None
            entry = TensorEntry(name, "U8", (each.size_bytes,), each.begin, each.end)
            wanted.append(ShardTensor(each.shard, entry, cut))
            self.read_bytes += each.size_bytes
        if wanted:
            self._read(wanted, direct, staged, is_planned=is_planned)

    def _read(
        self, wanted: list[ShardTensor], direct: dict[str, torch.Tensor], staged: dict[str, _Range], *, is_planned: bool
    ) -> None:
        # Other reads than the last one happen at other moments in each rank of a node, and are not shared.
        checkpoint = self._checkpoint if is_planned else self._changed(share="off")
        progress = self._progress if is_planned else False
        _, targets = match_targets([each for each in wanted if each.entry.name in direct], direct, self._library)
        try:
            self._check_running()
            with WholeRead(checkpoint, wanted, self._library, targets=targets, progress=progress) as read:
                self._running = read
                self._check_running()  # `stop` may have come before it knew of this read
                for name, tensor in read:
                    self._check_running()
                    if name in targets.in_place:
                        self.direct_bytes += direct[name].nbytes
                        continue
                    self.staged_bytes += tensor.untyped_storage().nbytes()
                    if name in staged:
                        staged[name].copy_out(tensor)
                    else:
                        _copy(tensor, direct[name])
            targets.states.check_unchanged()
        finally:
            self._running = None
            targets.lock.release()

    def _check_running(self) -> None:
        if self._is_stopped:
            raise LoadCancelledError("the load of these tensors has failed")

    def stop(self) -> None:
        """End a read in another thread within a second, and refuse others."""
        self._is_stopped, running = True, self._running
        if running is not None:
            running.close()


class _Part(NamedTuple):
    """A range of bytes of a shard, and the elements in it that are copied; sorted by place."""

    shard: int  # the number of the shard
    begin: int  # the first byte
    number: int  # a number of its own, so that sorting compares nothing else
    end: int  # the byte after the last
    name: str  # the tensor
    shape: tuple[int, ...]  # the shape of the elements, from the longest stride to the shortest
    strides: tuple[int, ...]  # their strides, in elements; the first one is at `begin`
    dtype: torch.dtype
    region: torch.Tensor  # where they are copied to: of the same shape
    casts: tuple[torch.dtype, ...]  # the dtypes to which they are cast, one after the other

    def runs(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return the number of runs of bytes with their distance, and with their length; None if these are not all."""
        if self.casts or self.dtype != self.region.dtype or not self.region.is_contiguous():
            return None
        run, levels = levels_of(self.shape, self.strides)
        number, stride = levels[0] if levels else (1, run)
        if len(levels) > 1 or stride < run:
            return None
        return (number, stride * self.dtype.itemsize), (number, run * self.dtype.itemsize)


class _Cutting:
    """Cuts one copy into parts: long runs of bytes that lie apart are read alone, and other ranges are not too long."""

    def __init__(self, wanted: Copy, gap_bytes: int, numbers: Iterator[int]) -> None:
        self._copy, self._gap_bytes, self._numbers = wanted, gap_bytes, numbers
        destination, deferred = wanted
        self._view, self._stored = deferred.late_view, deferred.late_stored.wanted
        self._is_same = not deferred.late_casts.dtypes and self._view.dtype == destination.dtype
        self._item_bytes = self._view.element_size()

    def parts(self) -> Iterator[_Part]:
        """Yield the parts."""
        destination, view = self._copy.destination, self._view
        sizes = zip(view.stride(), view.shape, destination.stride(), strict=True)
        dims = sorted((each for each in sizes if each[1] != 1), key=lambda each: -each[0])
        yield from self._cut(int(view.storage_offset()), int(destination.storage_offset()), dims)

    def _cut(self, first: int, place: int, dims: list[_Dim]) -> Iterator[_Part]:
        """Cut the elements from `first` in the stored tensor, which go to `place` in the destination's memory."""
        step = self._step(dims)
        if step is None:
            yield self._part(first, place, dims)
            return
        (stride, size, there), inner = dims[0], dims[1:]
        for at in range(0, size, step):
            count_here = min(step, size - at)
            outer = [(stride, count_here, there)] if count_here > 1 else []
            yield from self._cut(first + at * stride, place + at * there, outer + inner)

    def _step(self, dims: list[_Dim]) -> int | None:
        """Return how many positions of the first dimension a part gets; None if it is not cut."""
        run, levels = 1, list(dims)
        while levels and levels[-1][0] == run and (levels[-1][2] == run or not self._is_same):
            run *= levels.pop()[1]
        if not levels:
            return None if self._is_same else self._slab(dims)
        is_long = run * self._item_bytes >= LEAST_PIECE_BYTES
        gap = (levels[-1][0] - run) * self._item_bytes
        is_apart = gap > self._gap_bytes or (gap == 0 and self._is_same)  # there, or only in the destination
        return 1 if is_long and is_apart else self._slab(dims)

    def _slab(self, dims: list[_Dim]) -> int | None:
        if not dims or _reach(dims) * self._item_bytes <= LARGEST_RANGE_BYTES:
            return None
        stride, size, _ = dims[0]
        step = max(1, LARGEST_RANGE_BYTES // (stride * self._item_bytes))
        return step if step < size else None

    def _part(self, first: int, place: int, dims: list[_Dim]) -> _Part:
        destination, casts = self._copy.destination, self._copy.deferred.late_casts.dtypes
        begin = self._stored.entry.begin + first * self._item_bytes
        shape, strides = tuple(size for _, size, _ in dims), tuple(stride for stride, _, _ in dims)
        region = destination.as_strided(shape, [there for _, _, there in dims], place)
        end = begin + _reach(dims) * self._item_bytes
        name, number = self._stored.entry.name, next(self._numbers)
        return _Part(self._stored.shard, begin, number, end, name, shape, strides, self._view.dtype, region, casts)


def _reach(dims: Sequence[_Dim]) -> int:
    return 1 + sum((size - 1) * stride for stride, size, _ in dims)


class _Range(NamedTuple):
    """A range of bytes of a shard that is read once, for the parts in it."""

    shard: int
    begin: int
    end: int
    parts: list[_Part]

    @property
    def size_bytes(self) -> int:
        """The length of the range."""
        return self.end - self.begin

    def copy_out(self, read: torch.Tensor) -> None:
        """Copy the parts to their regions, out of the bytes of the range."""
        for part in self.parts:
            piece = read[part.begin - self.begin : part.end - self.begin]
            if piece.data_ptr() % part.dtype.itemsize:
                piece = piece.clone()
            elements = piece.view(part.dtype)
            elements = elements.as_strided(part.shape, part.strides, elements.storage_offset())
            for dtype in part.casts:
                elements = elements.to(dtype)
            _copy(elements, part.region)


def _copy(elements: torch.Tensor, region: torch.Tensor) -> None:
    with torch.inference_mode(region.is_inference()):  # such a tensor is only written so
        region.copy_(elements)


def _ranges_of(parts: Sequence[_Part]) -> Iterator[_Range]:
    """Join sorted parts whose bytes overlap."""
    joined = list[_Part]()
    end = 0
    for each in parts:
        if joined and (each.shard != joined[0].shard or each.begin >= end):
            yield _Range(joined[0].shard, joined[0].begin, end, joined)
            joined = []
        end = max(end, each.end) if joined else each.end
        joined.append(each)
    if joined:
        yield _Range(joined[0].shard, joined[0].begin, end, joined)
