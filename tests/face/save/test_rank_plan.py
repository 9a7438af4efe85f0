"""The plan of a group's save: the bytes that each rank gives, put together, are the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer._save.rank_parts import Description, joined_parts
from streamer._save.rank_plan import PARTS_IN_FLIGHT, RankFile, SentPart, steps_of
from streamer.core.checkpoint.tensor_parts import Slice
from streamer.core.format.header_writer import TensorLayout, in_file_order
from streamer.core.group.assembly import bytes_before, clipped

ITEM_BYTES = {"U8": 1, "F16": 2, "F64": 8}


class Drawn(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    placements: tuple[int | None, ...]  # for each dimension of the mesh, the dimension that is cut, or None: replicas


def boxes_of(tensor: Drawn, mesh: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """Cut a tensor as DTensor does, for each rank of a mesh."""
    boxes = []
    for place in np.ndindex(*mesh):
        bounds = [(0, size) for size in tensor.shape]
        for at, count, dim in zip(place, mesh, tensor.placements, strict=True):
            if dim is not None:
                begin, end = bounds[dim]
                low, high = Slice(dim, at, count).bounds(end - begin)
                bounds[dim] = begin + low, begin + high
        boxes.append(tuple(bounds))
    return boxes


@st.composite
def cases(draw: Any) -> tuple[tuple[int, ...], list[Drawn]]:
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    tensors = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
        dims = st.none() | st.integers(0, len(shape) - 1) if shape else st.none()
        placements = tuple(draw(dims) for _ in mesh)
        tensors.append(Drawn(shape, draw(st.sampled_from(sorted(ITEM_BYTES))), placements))
    return mesh, tensors


def put(found: Any, part: SentPart, local: Sequence[Mapping[str, bytes]]) -> Counter[int]:
    """Assemble a part of a file from the ranks' bytes, and count the bytes that each rank gives to other ranks."""
    given_bytes: Counter[int] = Counter()
    for piece in part.pieces:
        begin, at = bytes_before(piece.part, piece.begin), 0
        source = np.frombuffer(local[piece.rank][piece.name], np.uint8)[begin : begin + piece.size_bytes]
        given_bytes[piece.rank] += piece.size_bytes if piece.rank != part.sender else 0
        for runs in clipped(piece.part, piece.begin, piece.end):
            for number in range(runs.number):
                to = part.offset + piece.at + runs.first + number * runs.stride - piece.begin
                found[to : to + runs.length] = source[at : at + runs.length]
                at += runs.length
        assert at == piece.size_bytes
    return given_bytes


@given(cases(), st.integers(1, 80), st.integers(0, 30), st.booleans(), st.sampled_from([None, 0]))
def test_what_all_ranks_give_is_the_file(
    case: tuple[tuple[int, ...], list[Drawn]], part_bytes: int, header_bytes: int, in_order: bool, sender: int | None
) -> None:
    mesh, tensors = case
    ranks = prod(mesh)
    rng = np.random.default_rng(1)
    boxes = [boxes_of(tensor, mesh) for tensor in tensors]
    told = [
        {str(n): Description(each.dtype, each.shape, boxes[n][rank]) for n, each in enumerate(tensors)}
        for rank in range(ranks)
    ]
    layouts, held = joined_parts(told)
    whole = {each.name: rng.integers(0, 256, (*each.shape, ITEM_BYTES[each.dtype]), dtype=np.uint8) for each in layouts}
    local = [
        {name: whole[name][tuple(slice(*each) for each in told[rank][name].box or ())].tobytes() for name in whole}
        for rank in range(ranks)
    ]
    file = RankFile(header_bytes, in_file_order(layouts), part_bytes, is_in_order=in_order, sender=sender)
    expected = b"h" * header_bytes + b"".join(whole[each.name].tobytes() for each in file.layouts)
    found = np.full(len(expected), ord("h"), np.uint8)
    offsets: list[int] = []
    for step in steps_of([file], held, ranks):
        assert max(Counter(part.sender for part in step).values()) == 1
        given_bytes: Counter[int] = Counter()
        for part in step:
            offsets += [part.offset]
            given_bytes += put(found, part, local)
        assert max(given_bytes.values(), default=0) <= PARTS_IN_FLIGHT * part_bytes
    assert found.tobytes() == expected
    assert sorted(offsets) == list(range(0, len(expected), part_bytes))
    assert not in_order or offsets == sorted(offsets)


def test_rows_are_not_exchanged_and_copies_are_divided() -> None:
    rows = [Description("U8", (64, 16), ((16 * rank, 16 * (rank + 1)), (0, 16))) for rank in range(4)]
    layouts, held = joined_parts([{"rows": each, "all": Description("U8", (1024,), ((0, 1024),))} for each in rows])
    parts = [part for step in steps_of([RankFile(0, layouts, 256)], held, 4) for part in step]
    assert all(piece.rank == part.sender for part in parts for piece in part.pieces)
    assert Counter(part.sender for part in parts) == dict.fromkeys(range(4), 2)


def test_a_file_that_is_sent_in_order_has_one_sender_and_another_file_another() -> None:
    layouts, held = joined_parts([{"a": Description("U8", (64,), ((0, 64),))}] * 2)
    files = [RankFile(8, [TensorLayout("a", "U8", (64,), 64)], 16, is_in_order=True)] * 2
    senders = {(part.file, part.sender) for step in steps_of(files, held, 2) for part in step}
    assert senders == {(0, 0), (1, 1)}
    assert layouts == files[0].layouts
