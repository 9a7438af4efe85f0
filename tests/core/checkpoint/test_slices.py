"""What a Slice is, which tensor gets which, and which bytes are read for it: before any storage is involved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

import streamer
from streamer import Slice, TensorParallel
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.slices import sliced
from streamer.core.checkpoint.tensor_parts import LEAST_SAVED, cut_out
from streamer.core.engine.plan import plan_reads
from streamer.core.format.dtypes import byte_length
from streamer.core.format.header import TensorEntry
from streamer.core.tensors.frameworks import framework_of

NAMES = ["model.embed.weight", "model.layers.0.up.weight", "model.layers.0.up.bias", "model.layers.1.up.weight", "step"]


def stored(name: str = "w", shape: tuple[int, ...] = (10, 6), dtype: str = "U8") -> ShardTensor:
    return ShardTensor(0, TensorEntry(name, dtype, shape, 100, 100 + byte_length(shape, dtype)))


CHECKPOINT = [stored(name, () if name == "step" else (10, 6)) for name in NAMES]


def parts(slices: Any) -> dict[str, tuple[int, ...]]:
    return {each.entry.name: each.kept.shape for each in sliced(CHECKPOINT, slices, NAMES)}


@given(size=st.integers(0, 40), count=st.integers(1, 12))
def test_the_parts_are_those_of_chunk_and_then_empty_ones(size: int, count: int) -> None:
    chunks = [each.tolist() for each in torch.arange(size).chunk(count)]
    chunks += [[]] * (count - len(chunks))
    assert [list(range(*Slice(0, index, count).bounds(size))) for index in range(count)] == chunks


@each_row(
    "given",
    [(0, 0, 2, 0), (0, 2, 2), (0, -1, 2), (0, 0, 0), (0, 0, -1), (0, 0, 1, 0), ("0", 0, 1), (0, True, 2), (0, 0.0, 1)],
)
def test_a_slice_that_cannot_be_is_refused(given: Any) -> None:
    with pytest.raises(streamer.UsageError):
        Slice(*given)


def test_integers_of_numpy_are_integers() -> None:
    assert Slice(np.int8(0), np.int8(3), np.int8(4)).bounds(1 << 40) == (3 << 38, 1 << 40)  # type: ignore[arg-type]
    assert TensorParallel(np.int64(1), np.int64(2), {}) == TensorParallel(1, 2, {})  # type: ignore[arg-type]


def test_the_first_pattern_that_matches_counts() -> None:
    rows, columns = Slice(0, 0, 2), Slice(-1, 0, 2)
    shapes = parts({"*.0.up.bias": None, "model.layers.*": rows, "model.*": columns})
    assert shapes == {
        "model.embed.weight": (10, 3),
        "model.layers.0.up.weight": (5, 6),
        "model.layers.0.up.bias": (10, 6),
        "model.layers.1.up.weight": (5, 6),
        "step": (),
    }


def test_a_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(streamer.UsageError, match=r"'\*\.bias' .* earlier ones match .*put it before"):
        parts({"model.*": Slice(0, 0, 2), "*.bias": None})


def test_a_pattern_that_matches_nothing_names_what_is_near() -> None:
    with pytest.raises(streamer.UnknownTensorError, match=r"'model\.layers\.0\.up\.weigth'.*Near: 'model\.layers\.0"):
        parts({"model.layers.0.up.weigth": Slice(0, 0, 2)})


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dimension_that_a_tensor_lacks_is_refused(dim: int) -> None:
    with pytest.raises(streamer.UsageError, match=rf"'model\.embed\.weight'.*\[10, 6\] has no dimension {dim}"):
        parts({"*.weight": Slice(dim, 0, 2)})


@pytest.mark.parametrize("dim", [0, -1])
def test_a_scalar_is_refused(dim: int) -> None:
    with pytest.raises(streamer.UsageError, match=r"'step'.*is a scalar.*whole"):
        parts({"step": Slice(dim, 0, 2)})


def test_a_callable_gets_name_shape_and_dtype_and_decides() -> None:
    seen: list[Any] = []

    def rule(name: str, shape: tuple[int, ...], dtype: str) -> Slice | None:
        seen.append((name, shape, dtype))
        return Slice(0, 1, 4) if name.endswith("bias") else None

    assert parts(rule)["model.layers.0.up.bias"] == (3, 6)
    assert (seen[0], seen[-1]) == (("model.embed.weight", (10, 6), "U8"), ("step", (), "U8"))


def test_a_callable_that_returns_something_else_is_refused() -> None:
    with pytest.raises(streamer.UsageError, match=r"Slice or None for tensor 'model\.embed\.weight', not int"):
        parts(lambda _name, _shape, _dtype: 1)


@pytest.mark.parametrize(
    ("dtype", "shape", "part"),
    [("F4", (2, 3), Slice(0, 0, 2)), ("F4", (4, 6), Slice(1, 0, 2)), ("F6_E2M3", (4, 8), Slice(1, 1, 4))],
)
def test_a_part_that_begins_or_ends_inside_of_a_byte_is_refused(dtype: str, shape: Any, part: Slice) -> None:
    with pytest.raises(streamer.UsageError, match="inside of a byte"):
        sliced([stored("w", shape, dtype)], {"w": part}, ["w"])


@each_row(
    ("shape", "part", "elements"),
    [
        ((10, 6), Slice(0, 1, 3), (24, 48)),  # rows
        ((10, 6), Slice(0, 2, 4), (36, 54)),
        ((1, 10, 6), Slice(1, 3, 4), (54, 60)),  # as good as rows
        ((10, 6), Slice(1, 0, 3), (0, 60)),  # columns
        ((2, 10, 6), Slice(1, 0, 2), (0, 90)),  # a band
        ((2, 10, 6), Slice(1, 1, 2), (30, 120)),
        ((64, 10, 6), Slice(1, 1, 2), (0, 64 * 60)),  # a band that would save too little
        ((3, 6), Slice(0, 3, 4), (0, 0)),  # an empty part
        ((3, 6), Slice(1, 7, 8), (0, 0)),
        ((10, 6), Slice(1, 0, 1), (0, 60)),  # all of it
    ],
)
def test_the_bytes_that_hold_a_part_are_read(shape: Any, part: Slice, elements: tuple[int, int]) -> None:
    for dtype, size in (("U8", 1), ("F64", 8)):
        (wanted,) = sliced([stored("w", shape, dtype)], {"w": part}, ["w"])
        assert (wanted.entry.begin, wanted.entry.end) == tuple(100 + each * size for each in elements)


boxes = st.lists(st.integers(1, 6), min_size=1, max_size=4).flatmap(
    lambda shape: st.tuples(
        st.just(tuple(shape)),
        st.tuples(*[st.tuples(st.integers(0, n - 1), st.integers(1, n)).map(sorted) for n in shape]),
    )
)


@given(boxes)
def test_any_block_of_a_tensor_is_cut_out_of_what_is_read(drawn: Any) -> None:
    shape, bounds = drawn
    box = tuple(slice(first, max(last, first)) for first, last in bounds)
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    entry, cut = cut_out(TensorEntry("w", "I64", shape, 0, 8 * whole.numel()), box)
    read = whole[entry.begin // 8 : entry.end // 8].reshape(entry.shape)
    expected = whole.reshape(shape)[box]
    got = read if cut is None else cut.copy(read, entry, framework_of("pt"))
    assert torch.equal(got, expected)
    assert got.is_contiguous()
    if cut is not None:
        assert torch.equal(torch.from_numpy(cut.copy(read.numpy(), entry, framework_of("np"))), expected)
        assert (whole.numel() - read.numel()) * LEAST_SAVED >= whole.numel() or read.numel() == whole.numel()


PLAN = {
    "model.embed_tokens": "embedding_rowwise",
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.experts": "moe_tp_experts",
    "model.layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
    "lm_head": "colwise_rep",
}


@each_row(
    ("name", "shape", "dim"),
    [
        ("model.embed_tokens.weight", (32, 8), 0),
        ("model.layers.11.self_attn.q_proj.weight", (8, 8), -2),
        ("model.layers.0.self_attn.q_proj.bias", (8,), -1),
        ("model.layers.0.self_attn.o_proj.weight", (8, 8), -1),
        ("model.layers.0.self_attn.o_proj.bias", (8,), None),
        ("model.layers.0.mlp.experts.gate_up_proj", (4, 8, 8), 0),
        ("model.layers.0.mlp.experts.down_proj", (4, 8, 8), None),
        ("model.layers.0.inner.self_attn.q_proj.weight", (8, 8), None),
        ("vision.model.layers.0.self_attn.q_proj.weight", (8, 8), None),
        ("model.norm.weight", (8,), None),
        ("lm_head.weight", (32, 8), -2),
    ],
)
def test_a_plan_cuts_as_transformers_does(name: str, shape: tuple[int, ...], dim: int | None) -> None:
    part = TensorParallel(1, 4, PLAN).slice_of(name, shape)
    assert part == (None if dim is None else Slice(dim, 1, 4))


def test_an_unknown_way_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(streamer.UsageError, match=r"'up' is 'columnwise', which is unknown.*colwise, .*rowwise"):
        TensorParallel(0, 2, {"up": "columnwise"})


@pytest.mark.parametrize(
    ("way", "shape", "dim"),
    [
        ("packed_colwise", (8, 4), -2),
        ("packed_colwise", (3, 8, 4), -2),
        ("packed_rowwise", (4, 8), -1),
        ("local_packed_rowwise", (3, 4, 8), -1),
        ("packed_rowwise", (8,), None),
    ],
)
def test_packed_ways_cut_each_half(way: str, shape: tuple[int, ...], dim: int | None) -> None:
    part = TensorParallel(1, 2, {"gate_up": way}).slice_of("gate_up", shape)
    assert part == (None if dim is None else Slice(dim, 1, 2, blocks=2))


def test_a_packed_bias_needs_a_rule_of_its_own() -> None:
    with pytest.raises(streamer.UsageError, match=r"packed_colwise does not say how 'up\.bias', which"):
        TensorParallel(0, 2, {"up": "packed_colwise"}).slice_of("up.bias", (8,))


@pytest.mark.parametrize("shape", [(10, 6), (9, 6)])
def test_blocks_that_do_not_divide_a_dimension_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(streamer.UsageError, match="2 blocks of 2 parts do not divide dimension 0"):
        sliced([stored("w", shape)], {"w": Slice(0, 0, 2, blocks=2)}, ["w"])


@each_row("given", [(2, 2, {}), (0, 0, {}), ("0", 2, {}), (0, 2, None), (0, 2, {3: "colwise"}), (0, 2, {"a": 3})])
def test_a_plan_of_another_kind_is_refused(given: Any) -> None:
    with pytest.raises(streamer.UsageError):
        TensorParallel(*given)


def test_a_rule_that_matches_nothing_is_refused_unless_it_cuts_nothing() -> None:
    assert parts(TensorParallel(0, 2, {"absent": "replicate", "model.layers.*.up": "rowwise"}))["step"] == ()
    with pytest.raises(streamer.UnknownTensorError, match=r"plan's rule 'layers\.\*\.up' matches no tensor"):
        parts(TensorParallel(0, 2, {"layers.*.up": "rowwise"}))


def test_a_scale_of_a_cut_module_needs_its_own_rule() -> None:
    plan = {"up": "colwise"}
    with pytest.raises(streamer.UsageError, match=r"'up' colwise.*how its 'weight_scale' is cut.*'up\.weight_scale'"):
        TensorParallel(0, 2, plan).slice_of("up.weight_scale", (1,))
    with_rule = TensorParallel(0, 2, {"up.weight_scale": "replicate", **plan})
    assert with_rule.slice_of("up.weight_scale", (1,)) is None


def llama_3_8b() -> Iterator[ShardTensor]:
    begin = 0
    shapes = {
        "input_layernorm": (4096,),
        "mlp.down_proj": (4096, 14336),
        "mlp.gate_proj": (14336, 4096),
        "mlp.up_proj": (14336, 4096),
        "post_attention_layernorm": (4096,),
        "self_attn.k_proj": (1024, 4096),
        "self_attn.o_proj": (4096, 4096),
        "self_attn.q_proj": (4096, 4096),
        "self_attn.v_proj": (1024, 4096),
    }
    layers = {f"model.layers.{layer}.{name}": shape for layer in range(32) for name, shape in shapes.items()}
    ends = {"model.embed_tokens": (128256, 4096), "lm_head": (128256, 4096), "model.norm": (4096,)}
    for name, shape in {**layers, **ends}.items():
        size_bytes = byte_length(shape, "BF16")
        yield ShardTensor(0, TensorEntry(f"{name}.weight", "BF16", shape, begin, begin + size_bytes))
        begin += size_bytes


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_a_rank_of_eight_reads_of_llama_3_8b_what_the_page_says(rank: int) -> None:
    plan = {
        **{f"model.layers.*.self_attn.{name}": "colwise" for name in ("q_proj", "k_proj", "v_proj")},
        **{f"model.layers.*.mlp.{name}": "colwise" for name in ("gate_proj", "up_proj")},
        **{f"model.layers.*.{name}": "rowwise" for name in ("self_attn.o_proj", "mlp.down_proj")},
        "model.embed_tokens": "embedding_rowwise",
        "lm_head": "colwise_rep",
    }
    whole = list(llama_3_8b())
    kept = sliced(whole, TensorParallel(rank, 8, plan), [each.entry.name for each in whole])
    rows = [each for each in kept if each.cut is None]

    def read_bytes(wanted: list[ShardTensor]) -> int:
        items = [(0, each.entry.begin, each.entry.end, 0, 0) for each in wanted]
        return plan_reads(items, streamer.Options().coalesce_gap_bytes).span_bytes

    def kept_bytes(wanted: list[ShardTensor]) -> int:
        return sum(byte_length(each.kept.shape, "BF16") for each in wanted)

    assert read_bytes(rows) <= 1.0001 * kept_bytes(rows)
    figures = [read_bytes(whole), kept_bytes(kept), read_bytes(kept), read_bytes(rows)]
    assert [round(each / 1e9, 1) for each in figures] == [16.1, 2.0, 6.2, 1.4]


@each_row(("rank", "size"), [(2, 2), (-1, 2), (0, 0), ("0", 2), (0, 1.5), (True, 2)])
def test_the_error_for_a_wrong_rank_names_its_argument_regression(rank: Any, size: Any) -> None:
    with pytest.raises(streamer.UsageError, match=f"^a TensorParallel cannot have rank {rank!r} of size {size!r}"):
        TensorParallel(rank, size, {})
