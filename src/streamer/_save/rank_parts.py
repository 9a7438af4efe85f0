"""What the ranks of a group hold of the tensors that they save together, and whether this is one checkpoint.

A DTensor, or ``slices=``, says which part a rank holds; other tensors are whole. Each rank describes its tensors to all
others, and so all find the same errors. Refuses tensors whose descriptions differ, parts of several ranks whose bytes
differ (a sample of large ones is compared), parts that overlap or leave gaps, and partial sums.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any, NamedTuple, TypeAlias

from streamer._save.rank_plan import Held
from streamer._save.saved_tensors import SavedTensors
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.parallel_plans import Placements
from streamer.core.checkpoint.slices import SlicesOption, asked, rule_of
from streamer.core.checkpoint.tensor_parts import Slice, cut_out
from streamer.core.errors import TargetError, UsageError
from streamer.core.format.dtypes import byte_length
from streamer.core.format.header_entries import TensorEntry
from streamer.core.format.header_writer import TensorLayout
from streamer.core.group.assembly import part_of, size_of
from streamer.core.group.member import Member
from streamer.core.quoting import quoted
from streamer.core.tensors import sharded_tensors
from streamer.core.tensors.tensor_bytes import dtype_name

Box: TypeAlias = tuple[tuple[int, int], ...]


class Chunk(NamedTuple):
    """One of several parts of a dimension, or of a part of it that an earlier `Chunk` describes."""

    dim: int
    number: int
    parts: int
    unit: int = 1  # positions that stay together


class Description(NamedTuple):
    """What a rank says of one tensor."""

    dtype: str  # of the format
    # Of the whole tensor, or with chunks of what the rank holds; the blocks of a dimension are a dimension before it.
    shape: tuple[int, ...]
    box: Box | None  # bounds of what the rank holds in each dimension; None if it holds nothing
    digest: int | None = None  # of a sample of it
    blocks_dim: int | None = None  # dimension of the blocks
    chunks: tuple[Chunk, ...] = ()  # which part the rank holds

    @property
    def header_shape(self) -> tuple[int, ...]:
        """The shape as the header has it."""
        shape, dim = self.shape, self.blocks_dim
        return shape if dim is None else (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])

    @property
    def is_empty(self) -> bool:
        """Whether the rank holds no element of the tensor."""
        return 0 in self.shape if self.chunks else self.box is None or any(begin == end for begin, end in self.box)


def own_parts(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Description | None]]:
    """Return the tensors with local parts in place of DTensors; and for all names what these parts are, or None."""
    local, parts = dict[str, Any](), dict[str, Description | None]()
    for name, tensor in tensors.items():
        if not sharded_tensors.is_sharded(tensor):
            local[name], parts[name] = tensor, None
            continue
        box = None
        if tensor.device_mesh.get_coordinate() is not None:
            try:
                slices, local[name] = sharded_tensors.part_of(name, tensor)
            except TargetError as error:
                what = error.message.replace("the target of tensor", "tensor")
                hint = "Redistribute it: Shard and Replicate can be saved"
                raise UsageError(what, hint=hint) from error
            box = [(each.start, each.stop) for each in slices]
        dtype, shape = dtype_name(name, tensor.dtype), list(tensor.shape)
        if dtype == "F4" and shape:  # torch has two values in one element
            shape[-1] *= 2
            box = box and [*box[:-1], (2 * box[-1][0], 2 * box[-1][1])]
        parts[name] = Description(dtype, tuple(shape), None if box is None else tuple(box))
    return local, parts


def sliced_parts(slices: SlicesOption, layouts: Sequence[TensorLayout]) -> dict[str, Description]:
    """Return what ``slices=`` says of those of some plain tensors that are parts."""
    if slices is None:
        return {}
    found, rule = dict[str, Description](), rule_of(slices, [each.name for each in layouts])
    for layout in layouts:
        name, shape, dtype = layout.name, layout.shape, layout.dtype
        if isinstance(slices, Placements):
            shards = [each.dim if each.is_shard() else None for each in rule(name, shape, dtype) or ()]
            places = zip(shards, slices.mesh.get_coordinate(), slices.mesh.shape, strict=False)
            parts = [Slice(dim, index, count) for dim, index, count in places if dim is not None]
        else:
            part = asked(rule, name, shape, dtype)
            parts = [] if part is None else [part]
        chunks, blocks_dim = list[Chunk](), None
        for each in parts:
            dim, block = Slice(each.dim, 0, 1, each.blocks).place(name, layout.shape)
            is_packed = isinstance(slices, Placements) and dtype == "F4" and dim == len(shape) - 1
            if each.blocks > 1:
                blocks_dim, shape, dim = dim, (*shape[:dim], each.blocks, block, *shape[dim + 1 :]), dim + 1
            chunks.append(Chunk(dim, each.index, each.count, 2 if is_packed else 1))
        if chunks:
            found[name] = Description(dtype, shape, None, None, blocks_dim, tuple(chunks))
    return found


def _whole(layout: TensorLayout) -> Description:
    return Description(layout.dtype, layout.shape, tuple((0, each) for each in layout.shape))


class Agreed(NamedTuple):
    """What all ranks save together."""

    layouts: list[TensorLayout]  # all tensors, in the order of the first rank that has each
    held: dict[str, list[Held]]  # who holds what of them
    metadata: Mapping[str, str]


def agree(
    member: Member | None,
    tensors: SavedTensors,
    parts: Mapping[str, Description | None],
    dropped: Mapping[str, str],
    facts: Mapping[str, Any],
) -> Agreed:
    """Exchange what each rank holds, and compare what has to be the same on all of them.

    Args:
        member: This rank; None without others.
        tensors: What it holds.
        parts: What that is of DTensors; None for whole tensors.
        dropped: Names of tensors that are left out, as the metadata name them, too.
        facts: The metadata, as ``metadata=``, and other arguments by name.
    """
    layouts = {each.name: each for each in tensors.layouts}
    own = {
        name: (_whole(layouts[name]) if part is None else part)._replace(digest=tensors.samples.get(name))
        for name, part in parts.items()
        if name not in dropped
    }
    all_told = {"tensors": own, "dropped": dropped, "facts": facts}
    told = [json.loads(json.dumps(all_told))] if member is None else member.gather(all_told)
    try:
        return _agreed(told)
    except UsageError:
        if member is not None:
            member.is_over = True  # each rank finds this by itself
        raise


def _agreed(told: Sequence[Mapping[str, Any]]) -> Agreed:
    dropped = {name: kept for each in told for name, kept in each["dropped"].items()}
    fullest = max(told, key=lambda each: len(each["dropped"]))  # a rank without rows of a tensor does not see its ties
    for rank, each in enumerate(told):
        facts, expected = (
            {**who["facts"], "metadata=": _without(who["facts"]["metadata="], dropped)} for who in (each, told[0])
        )
        for name in expected:
            if facts[name] != expected[name]:
                raise UsageError(f"{name} differs in the group: on rank {rank} from that of rank 0", hint=_ALIKE)
        for name, kept in each["dropped"].items():
            if dropped[name] != kept:
                what = f"tensor {quoted(name)} shares the memory of other tensors on rank {rank} than on others"
                raise UsageError(what, hint=_ALIKE)
    dropped = {name: _written(kept, dropped) for name, kept in dropped.items()}
    said = [{name: _parsed(part) for name, part in each["tensors"].items()} for each in told]
    _check_tied(said, dropped)
    layouts, held = joined_parts(placed([{name: each[name] for name in each if name not in dropped} for each in said]))
    return Agreed(layouts, held, {**fullest["facts"]["metadata="], **dropped})


def _written(name: str, dropped: Mapping[str, str]) -> str:
    """Return the tensor that is written for one that is dropped on other ranks, too."""
    for _ in dropped:
        name = dropped.get(name, name)
    if name in dropped:
        what = f"tensor {quoted(name)} is left out for another on one rank, and this one for it on another"
        raise UsageError(what, hint=_ALIKE)
    return name


def _check_tied(told: Sequence[Mapping[str, Description]], dropped: Mapping[str, str]) -> None:
    """Compare a tensor that shares memory on other ranks alone with the one that is written for it."""
    for rank, own in enumerate(told):
        for name in (each for each in own if each in dropped):
            part, kept = own[name], dropped[name]
            others = [own] if kept in own else told
            if not part.is_empty and part not in (each.get(kept) for each in others):
                what = f"tensor {quoted(name)} of rank {rank} differs from {quoted(kept)}"
                raise UsageError(f"{what}, whose memory it shares on others", hint=_UNTIED)


def _without(metadata: Mapping[str, str], names: Container[str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if key not in names}


def _parsed(told: Sequence[Any]) -> Description:
    dtype, shape, box, digest, blocks_dim, chunks = told
    bounds = None if box is None else tuple((begin, end) for begin, end in box)
    return Description(dtype, tuple(shape), bounds, digest, blocks_dim, tuple(Chunk(*each) for each in chunks))


def placed(told: Sequence[Mapping[str, Description]]) -> list[dict[str, Description]]:
    """Find the whole tensors of which ranks hold chunks, and where in them these are."""
    found = [dict(each) for each in told]
    for name in dict.fromkeys(name for each in told for name, part in each.items() if part.chunks):
        chunked = {rank: each[name] for rank, each in enumerate(told) if name in each and each[name].chunks}
        boxes: dict[int, list[tuple[int, int]]] = {rank: [] for rank in chunked}
        shape = list[int]()
        for dim in range(max(len(each.shape) for each in chunked.values())):
            shape.append(_placed_in(name, dim, chunked, boxes))
        for rank, each in chunked.items():
            found[rank][name] = each._replace(shape=tuple(shape), box=tuple(boxes[rank]), chunks=())
    return found


def _placed_in(name: str, dim: int, told: Mapping[int, Description], boxes: Mapping[int, list[tuple[int, int]]]) -> int:
    """Return the size of a dimension, and add the bounds in it of what each rank holds."""
    what, chunks = f"tensor {quoted(name)} cannot be put together", dict[int, tuple[Chunk, ...]]()
    sizes = dict[tuple[int, ...], tuple[int, int]]()  # by indices: positions, and the first rank that has them
    for rank, each in told.items():
        chunks[rank] = tuple(chunk for chunk in each.chunks if chunk.dim == dim)
        size = each.shape[dim] if dim < len(each.shape) else -1
        expected, other = sizes.setdefault(tuple(chunk.number for chunk in chunks[rank]), (size, rank))
        first = next(iter(told))
        cuts = [[(chunk.parts, chunk.unit) for chunk in chunks[of]] for of in (rank, first)]
        if expected != size or cuts[0] != cuts[1]:
            other = first if other == rank else other
            raise UsageError(f"{what}: dimension {dim} differs on rank {rank} and rank {other}", hint=_ALIKE)
    counts = [chunk.parts for chunk in next(iter(chunks.values()))]
    if len(sizes) != prod(counts):
        had = f"the ranks of the group hold {len(sizes)} of the {prod(counts)} parts of dimension {dim}"
        raise UsageError(f"{what}: {had}", hint=_INCOMPLETE)
    whole = sum(size for size, _ in sizes.values())
    for rank, cuts_of_rank in chunks.items():
        low, high, unit = 0, whole, 1
        for _, index, count, unit in cuts_of_rank:
            begin, end = Slice(0, index, count).bounds((high - low) // unit)
            low, high = low + unit * begin, low + unit * end
        if high - low != told[rank].shape[dim]:
            has = f"rank {rank} has {told[rank].shape[dim]} of {whole} positions of dimension {dim}, not {high - low}"
            raise UsageError(f"{what}: {has}", hint="A rank holds the part that `streamer.Slice` describes")
        boxes[rank].append((low, high))
    return whole


def joined_parts(told: Sequence[Mapping[str, Description]]) -> tuple[list[TensorLayout], dict[str, list[Held]]]:
    """Check what all ranks said; return all tensors, in the order of the first rank with each, and who holds what."""
    layouts, held = list[TensorLayout](), dict[str, list[Held]]()
    for name in dict.fromkeys(name for each in told for name in each):
        said = {rank: each[name] for rank, each in enumerate(told) if name in each}
        first_rank, first = next(iter(said.items()))
        for rank, each in said.items():
            if (each.dtype, each.shape, each.blocks_dim) != (first.dtype, first.shape, first.blocks_dim):
                one, other = (f"{it.dtype} {list(it.header_shape)}" for it in (first, each))
                what = f"tensor {quoted(name)} is {one} on rank {first_rank}, and {other} on rank {rank}"
                raise UsageError(what, hint=_DIFFERENT)
        boxes: dict[Box, list[int]] = {}
        for rank, each in said.items():
            if each.box is not None:
                boxes.setdefault(each.box, []).append(rank)
        for ranks in boxes.values():
            _check_equal(name, [(said[rank].digest, rank) for rank in ranks])
        size_bytes = byte_length(first.shape, first.dtype)
        _check_complete(name, first.shape, tuple(boxes))
        layouts.append(TensorLayout(name, first.dtype, first.header_shape, size_bytes))
        entry = TensorEntry(name, first.dtype, first.shape, 0, size_bytes)
        found = [(part_of(_cut(entry, box), 0), tuple(ranks)) for box, ranks in boxes.items()]
        held[name] = [Held(part, ranks) for part, ranks in found if size_of(part)]
    return layouts, held


_ALIKE = "All ranks of the group call it with the same arguments, except for the parts of the tensors"
_DIFFERENT = (
    "Give tensors that differ between ranks other names; or pass DTensors, or slices=, which say what each rank holds"
)
_INCOMPLETE = "Pass a group of all ranks that hold a part of it, and tensors that are placed alike on all of them"
_UNTIED = "Tie it on all ranks, or save copies of both, which have memory of their own: {name: tensor.clone()}"
_UNEQUAL = (
    "Broadcast it from one rank before the save, as buffers (BatchNorm) and copies that drifted apart need it; if all"
    " of the values count, give them other names, or pass a DTensor that says which part each rank holds"
)


def _cut(entry: TensorEntry, box: Box) -> ShardTensor:
    return ShardTensor(0, *cut_out(entry, [slice(*bounds) for bounds in box]))


def _check_equal(name: str, digests: Sequence[tuple[int | None, int]]) -> None:
    """Refuse a part that several ranks hold, with other bytes."""
    first = {digest: rank for digest, rank in reversed(digests) if digest is not None}
    if len(first) > 1:
        one, other = sorted(first.values())[:2]
        what = f"tensor {quoted(name)} has other values on rank {one} than on rank {other}, which hold the same part"
        raise UsageError(what, hint=_UNEQUAL)


@lru_cache(maxsize=4096)
def _fault(shape: tuple[int, ...], boxes: tuple[Box, ...]) -> str | None:
    sizes = [prod(end - begin for begin, end in box) for box in boxes]
    there = [box for box, size in zip(boxes, sizes, strict=True) if size]
    for one, other in combinations(there, 2):
        if all(a[0] < b[1] and b[0] < a[1] for a, b in zip(one, other, strict=True)):
            return f"the parts {_text(one)} and {_text(other)} overlap"
    if sum(sizes) != prod(shape):
        return f"the ranks of the group hold {sum(sizes)} of its {prod(shape)} elements"
    return None


def _text(box: Box) -> str:
    return f"[{', '.join(f'{begin}:{end}' for begin, end in box)}]"


def _check_complete(name: str, shape: tuple[int, ...], boxes: tuple[Box, ...]) -> None:
    if fault := _fault(shape, boxes):
        raise UsageError(f"tensor {quoted(name)} of {list(shape)} is not held whole: {fault}", hint=_INCOMPLETE)
