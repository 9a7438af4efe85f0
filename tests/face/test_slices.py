"""``slices=``: what a rank gets is equal to cutting whole tensors after a load; of rows, it is all that is read."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import jax
import numpy as np
import pytest
import torch
from any_dtype import DTYPES, SHAPES, file_of
from comparison import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from servers.one_file import is_block, one_file, place_of
from servers.scripted_http import ScriptedServer
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from streamer import Slice, TensorParallel
from streamer.core.checkpoint import tensor_parts
from streamer.core.format.dtypes import DTYPE_BITS, byte_length

WAYS = [(0, 3), (0, 4), (0, 16), (1, 4), (1, 3), (-1, 2), (-1, 4), (-2, 2)]  # dimension and number of ranks


def chunk(tensor: Any, part: Slice, packed: int = 1) -> Any:
    """Cut a whole tensor, as torch does; `packed` values lie in an element of the last dimension."""
    dim = part.dim % len(tensor.shape)
    factor = packed if dim == len(tensor.shape) - 1 else 1
    first, end = part.bounds(tensor.shape[dim] * factor)
    return tensor[(*[slice(None)] * dim, slice(first // factor, end // factor))]


def fits(name: str, dtype: str, part: Slice) -> bool:
    """Say whether a tensor has the dimension, and the part whole bytes."""
    shape = SHAPES[name]
    if not -len(shape) <= part.dim < len(shape):
        return False
    is_last = part.dim % len(shape) == len(shape) - 1
    return DTYPE_BITS[dtype] >= 8 or not is_last or all(bound % 2 == 0 for bound in part.bounds(shape[-1]))


def bytes_of(tensor: Any) -> bytes:
    if hasattr(tensor, "data_ptr"):
        return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return np.ascontiguousarray(tensor).tobytes()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return {dtype: file_of({name: (dtype, shape) for name, shape in SHAPES.items()}) for dtype in DTYPES}


def check_equal(uri: Any, dtype: str, framework: str, **how: Any) -> None:
    whole = streamer.load(uri, framework=framework, **how)
    packed = 2 if dtype == "F4" and framework == "pt" else 1
    for dim, count in WAYS:
        for index in range(count):
            part = Slice(dim, index, count)
            rules = {name: part for name in SHAPES if fits(name, dtype, part)}
            loaded = streamer.load(uri, framework=framework, slices=rules, **how)
            for name, tensor in whole.items():
                expected = chunk(tensor, part, packed) if name in rules else tensor
                got = loaded[name]
                assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (name, part)
                assert bytes_of(got) == bytes_of(expected), (name, part)


@pytest.mark.parametrize("framework", ["pt", "np"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_part_is_equal_to_that_of_a_whole_tensor(dtype: str, framework: str, files: Any, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(files[dtype])
    check_equal(tmp_path, dtype, framework)


@pytest.mark.parametrize("framework", ["pt", "np"])
@pytest.mark.parametrize("dtype", ["F4", "F8_E4M3", "BF16", "C64"])
def test_each_block_of_a_joint_tensor_is_cut(dtype: str, framework: str, files: Any, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(files[dtype])
    whole = streamer.load(tmp_path, framework=framework)
    join: Any = torch.cat if framework == "pt" else np.concatenate
    raw = {name: tensor.view(torch.uint8 if framework == "pt" else np.uint8) for name, tensor in whole.items()}
    for name, dim in [("cube", 1), ("matrix", 1), ("pair", 1), ("one", 2), ("vector", 0), ("none", 1), ("none", 0)]:
        for index in range(2):
            got = streamer.load(tmp_path, framework=framework, slices={name: Slice(dim, index, 2, blocks=2)})[name]
            size = raw[name].shape[dim]
            quarters = [slice(size * quarter // 4, size * (quarter + 1) // 4) for quarter in (index, 2 + index)]
            expected = join([raw[name][(*[slice(None)] * dim, each)] for each in quarters], dim)
            assert bytes_of(got) == bytes_of(expected)
            assert got.shape[:dim] == expected.shape[:dim]
            assert got.shape[dim] * 2 == whole[name].shape[dim]


def test_targets_are_filled_with_blocks(tmp_path: Path) -> None:
    save_file({"up": torch.arange(32.0).view(8, 4)}, tmp_path / "a.safetensors")
    target = {"up": torch.empty(4, 4)}
    streamer.load_into(tmp_path, target, slices=TensorParallel(1, 2, {"up": "packed_colwise"}))
    assert target["up"][:, 0].tolist() == [8, 12, 24, 28]


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "I32"])
def test_arrays_of_jax_are_equal_too(dtype: str, files: Any, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(files[dtype])
    check_equal(tmp_path, dtype, "jax")
    sharding = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    arrays = streamer.load(tmp_path, framework="jax", device=sharding, slices={"matrix": Slice(1, 0, 4)})
    assert arrays["matrix"].shape == (10, 4)


@pytest.mark.parametrize("dtype", ["F4", "BF16"])
def test_slices_over_http_are_equal(dtype: str, files: Any) -> None:
    with one_file(data=files[dtype]) as server:
        uri, options = place_of("http", server)
        check_equal(uri, dtype, "np", storage_options=options)


@pytest.mark.parametrize(("dtype", "framework"), [("F4", "np"), ("BF16", "pt"), ("F8_E4M3", "pt"), ("C64", "np")])
def test_short_runs_are_equal_if_the_engine_places_them(
    dtype: str, framework: str, files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_parts, "LEAST_RUN_BYTES", 1)
    (tmp_path / "a.safetensors").write_bytes(files[dtype])
    check_equal(tmp_path, dtype, framework)


@settings(max_examples=60)
@given(st.data())
def test_targets_get_the_columns_of_any_tensor(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 300)))
    dim, count = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 4))
    part = Slice(dim, data.draw(st.integers(0, count - 1)), count)
    block_bytes = data.draw(st.sampled_from([64 << 10, 1 << 20]))
    whole = torch.arange(prod(shape), dtype=torch.int32).view(shape).float()
    content = {"first": torch.zeros(7), "weight": whole, "last": torch.ones(5)}
    expected, way = chunk(whole, part), data.draw(st.sampled_from(["file", "http", "cast", "rows"]))
    target = {**content, "weight": torch.empty_like(expected)}
    if way == "cast":
        target["weight"] = target["weight"].to(torch.float64)
    if way == "rows":  # a target that is no range of memory is filled by a copy
        target["weight"] = torch.empty(*expected.shape, 2)[..., 0]
    how: Any = {"slices": {"weight": part}, "dtype": "target", "options": streamer.Options(block_bytes=block_bytes)}
    with one_file(data=save(content)) as server:
        uri, storage = place_of("http", server)
        if way == "file":
            with NamedTemporaryFile(suffix=".safetensors") as file:
                Path(file.name).write_bytes(save(content))
                streamer.load_into(file.name, target, **how)
        else:
            streamer.load_into(uri, target, storage_options=storage, **how)
    assert torch.equal(target["weight"], expected.to(target["weight"].dtype))
    assert torch.equal(target["last"], content["last"])


def test_no_memory_holds_the_bytes_between_columns(llama: ScriptedServer) -> None:
    uri, options = place_of("http", llama)
    names = [name for name in LLAMA if "o_proj" in name or "down_proj" in name]
    parts = TensorParallel(3, RANKS, BY_COLUMNS)
    with streamer.stream(uri, names=names, slices=parts, storage_options=options) as tensors:
        kept_bytes = sum(tensor.nbytes for _, tensor in tensors)
    assert tensors.report.peak_held_bytes <= tensors.report.bytes == kept_bytes


@pytest.mark.server
def test_slices_from_s3_are_equal(s3_server: SeaweedServer, files: Any) -> None:
    s3_server.put("private", "slices/a.safetensors", files["BF16"])
    uri = "s3://private/slices/a.safetensors"
    check_equal(uri, "BF16", "pt", storage_options=s3_server.storage_options())


@pytest.mark.parametrize("dtype", ["F6_E2M3", "F6_E3M2"])
def test_a_dtype_that_torch_lacks_is_refused_as_it_is_whole(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(file_of({"a": (dtype, (4, 8))}))
    for slices in (None, {"a": Slice(0, 0, 2)}):
        with pytest.raises(streamer.UnsupportedDtypeError):
            streamer.load(tmp_path, slices=slices)


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    (tmp_path / "a.safetensors").write_bytes(file_of({"a": ("F32", (6, 8)), "b": ("F32", (5,))}))
    return tmp_path


COLUMNS = {"a": Slice(1, 1, 4)}


def test_slices_are_contiguous_own_their_memory_and_may_be_changed(matrix: Path) -> None:
    first = streamer.load(matrix, slices=COLUMNS)["a"]
    assert first.is_contiguous()
    assert first.untyped_storage().nbytes() == first.nbytes == 6 * 2 * 4
    array = streamer.load(matrix, slices=COLUMNS, framework="np")["a"]
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.base is None
    rows = streamer.load(matrix, slices={"a": Slice(0, 1, 3)})["a"]
    assert rows.is_contiguous()
    rows.zero_()
    array[:] = 0


def test_every_way_to_read_gives_the_same_parts(matrix: Path) -> None:
    expected = streamer.load(matrix, slices=COLUMNS)
    assert expected["a"].shape == (6, 2)
    with streamer.stream(matrix, slices=COLUMNS) as tensors:
        assert_same(dict(tensors), expected)
    with streamer.open(matrix, slices=COLUMNS) as checkpoint:
        assert_same(checkpoint.get_tensors(), expected)
        assert_same({name: checkpoint.get_tensor(name) for name in checkpoint}, expected)
        assert_same({"a": pickle.loads(pickle.dumps(checkpoint)).get_tensor("a")}, {"a": expected["a"]})
        assert_same(checkpoint.get_tensors(dtype="float16"), {name: each.half() for name, each in expected.items()})
    assert_same(asyncio.run(streamer.aload(matrix, slices=COLUMNS)), expected)
    target = {"a": torch.empty(6, 2), "b": torch.empty(5)}
    report = streamer.load_into(matrix, target, slices=COLUMNS)
    assert report.tensors == 2
    assert_same(target, expected)

    async def streamed() -> dict[str, torch.Tensor]:
        return {name: tensor async for name, tensor in streamer.astream(matrix, slices=COLUMNS)}

    assert_same(asyncio.run(streamed()), expected)


@pytest.mark.parametrize("part", [Slice(0, 1, 3), Slice(1, 1, 4)])
def test_a_part_in_an_open_checkpoint_is_described_and_indexed_as_itself(matrix: Path, part: Slice) -> None:
    expected = chunk(streamer.load(matrix)["a"], part)
    with streamer.open(matrix, slices={"a": part}) as checkpoint:
        lazy = checkpoint["a"]
        assert (lazy.shape, lazy.get_shape(), lazy.nbytes) == (expected.shape, list(expected.shape), expected.nbytes)
        for key in (np.s_[...], np.s_[1], np.s_[1:, 0], np.s_[:1, ::2], np.s_[[1, 0]], np.s_[..., -1], np.s_[None]):
            assert torch.equal(lazy[key], expected[key])
        with pytest.raises(streamer.TensorIndexError):
            lazy[6]


def test_targets_of_another_shape_are_refused(matrix: Path) -> None:
    with pytest.raises(streamer.TargetError, match=r"has shape \[6, 2\], its target \[6, 8\]"):
        streamer.load_into(matrix, {"a": torch.empty(6, 8)}, slices=COLUMNS, names="a")


def test_parts_replace_parameters_on_the_meta_device(matrix: Path) -> None:
    module = torch.nn.Module()
    module.register_parameter("a", torch.nn.Parameter(torch.empty(6, 2, device="meta")))
    streamer.load_into(matrix, module, slices=COLUMNS, names="a")
    assert torch.equal(module.a.detach(), streamer.load(matrix, slices=COLUMNS)["a"])
    assert module.a.untyped_storage().nbytes() == module.a.nbytes


def test_a_part_that_does_not_fit_is_refused_before_a_byte_of_data_is_read() -> None:
    with one_file(data=file_of({"a": ("F32", (600, 800)), "b": ("F32", ())})) as server:
        uri, options = place_of("http", server)
        for slices in (
            {"a": Slice(2, 0, 2)},
            {"b": Slice(0, 0, 2)},
            {"c": Slice(0, 0, 2)},
            TensorParallel(0, 2, {"x": "colwise"}),
        ):
            with pytest.raises(streamer.UsageError):
                streamer.load(uri, slices=slices, storage_options=options, options=streamer.Options(header_bytes=4096))
        assert sum(each.end - each.begin for each in server.requests if is_block(each)) < 4 * 5000


LLAMA = {  # a layer and the embeddings of Llama 3 8B, with half of each dimension, and a sixteenth of its vocabulary
    "model.embed_tokens.weight": ("BF16", (8016, 2048)),
    **{
        f"model.layers.0.{name}": ("BF16", shape)
        for name, shape in {
            "input_layernorm.weight": (2048,),
            "mlp.down_proj.weight": (2048, 7168),
            "mlp.gate_proj.weight": (7168, 2048),
            "mlp.up_proj.weight": (7168, 2048),
            "post_attention_layernorm.weight": (2048,),
            "self_attn.k_proj.weight": (512, 2048),
            "self_attn.o_proj.weight": (2048, 2048),
            "self_attn.q_proj.weight": (2048, 2048),
            "self_attn.v_proj.weight": (512, 2048),
        }.items()
    },
    "lm_head.weight": ("BF16", (8016, 2048)),
    "model.norm.weight": ("BF16", (2048,)),
}
BY_ROWS = {
    "model.embed_tokens": "embedding_rowwise",
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.k_proj": "colwise",
    "model.layers.*.self_attn.v_proj": "colwise",
    "model.layers.*.mlp.gate_proj": "colwise",
    "model.layers.*.mlp.up_proj": "colwise",
    "lm_head": "colwise_gather_output",
}
BY_COLUMNS = {"model.layers.*.self_attn.o_proj": "rowwise", "model.layers.*.mlp.down_proj": "rowwise"}
RANKS = 8


@pytest.fixture(scope="module")
def llama() -> Iterator[ScriptedServer]:
    with one_file(data=file_of(LLAMA)) as server:
        yield server


def data_bytes(server: ScriptedServer) -> tuple[int, int]:
    """Count requests for data, and the bytes of their answers."""
    blocks = [each for each in server.requests if is_block(each)]
    return len(blocks), sum(each.end - each.begin for each in blocks)


@pytest.mark.parametrize("storage", ["s3", "http"])
def test_a_rank_reads_only_its_rows(llama: ScriptedServer, storage: str) -> None:
    uri, options = place_of(storage, llama)
    names = [name for name in LLAMA if "o_proj" not in name and "down_proj" not in name]
    for rank in (0, RANKS - 1):
        _, before = data_bytes(llama)
        tp = TensorParallel(rank, RANKS, BY_ROWS)
        how = {"storage_options": options, "options": streamer.Options(header_bytes=4096)}
        kept = streamer.load(uri, names=names, slices=tp, **how)
        kept_bytes = sum(each.nbytes for each in kept.values())
        assert kept["lm_head.weight"].shape == (8016 // RANKS, 2048)
        assert data_bytes(llama)[1] - before <= 1.05 * kept_bytes


def test_a_rank_reads_each_tensor_of_columns_once_in_a_few_requests(llama: ScriptedServer) -> None:
    uri, options = place_of("http", llama)
    names = [name for name in LLAMA if "o_proj" in name or "down_proj" in name]
    stored_bytes = sum(byte_length(LLAMA[name][1], "BF16") for name in names)
    requests, before = data_bytes(llama)
    kept = streamer.load(
        uri,
        names=names,
        slices=TensorParallel(3, RANKS, BY_COLUMNS),
        storage_options=options,
        options=streamer.Options(header_bytes=4096),
    )
    assert sum(each.nbytes for each in kept.values()) == stored_bytes // RANKS
    requests_after, after = data_bytes(llama)
    assert after - before <= 1.05 * stored_bytes
    assert requests_after - requests < 50  # of about a megabyte each; the columns are 4096 runs of bytes


def test_experts_of_other_ranks_are_not_read() -> None:
    experts = {f"layers.0.experts.{number}.up.weight": ("BF16", (1024, 512)) for number in range(16)}
    data = file_of({**experts, "layers.0.norm.weight": ("BF16", (512,))})
    with one_file(data=data) as server:
        uri, options = place_of("http", server)

        def is_mine(name: str) -> bool:
            parts = name.split(".")
            return "experts" not in parts or int(parts[parts.index("experts") + 1]) // 2 == 5

        how = {"storage_options": options, "options": streamer.Options(header_bytes=4096)}
        kept = streamer.load(uri, names=is_mine, **how)
        assert sorted(kept) == [f"layers.0.experts.{number}.up.weight" for number in (10, 11)] + [
            "layers.0.norm.weight"
        ]
        assert data_bytes(server)[1] <= sum(each.nbytes for each in kept.values()) + 2 * 4096


@pytest.mark.server
def test_a_real_s3_server_sends_the_rows_alone(s3_server: SeaweedServer) -> None:
    s3_server.put("private", "slices/rows.safetensors", file_of({"a": ("BF16", (8000, 512))}))
    uri = "s3://private/slices/rows.safetensors"
    with TcpProxy(s3_server.port, http_requests) as proxy:
        options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        how = {"storage_options": options, "options": streamer.Options(header_bytes=4096)}
        kept = streamer.load(uri, slices={"a": Slice(0, 7, 8)}, **how)["a"]
        assert kept.nbytes <= proxy.passed_bytes <= 1.05 * kept.nbytes


@pytest.fixture
def with_manifest(tmp_path: Path) -> Path:
    (tmp_path / "a.safetensors").write_bytes(file_of({"a": ("F32", (16, 8)), "b": ("F32", (5,))}))
    streamer.write_manifest(tmp_path)
    return tmp_path


@pytest.mark.parametrize("part", [Slice(0, 1, 3), Slice(1, 1, 4)])
def test_parts_are_verified_where_whole_tensors_are_read_and_reported_where_not(
    with_manifest: Path, part: Slice
) -> None:
    with streamer.stream(with_manifest, verify="manifest", slices={"a": part}) as tensors:
        dict(tensors)
    (check,) = tensors.report.verified
    assert (check.verified_by is None) == (part.dim == 0)


def test_a_damaged_tensor_is_found_though_columns_of_it_are_kept(with_manifest: Path) -> None:
    path = with_manifest / "a.safetensors"
    data = bytearray(path.read_bytes())
    data[-21] ^= 1  # the last byte of the matrix
    path.write_bytes(data)
    with pytest.raises(streamer.ChecksumError):
        streamer.load(with_manifest, verify="manifest", slices=COLUMNS)
