"""Parts of tensors that are several long ranges of bytes (fused experts): the ranges are read, and nothing between."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from any_dtype import DTYPES, SHAPES, file_of
from servers.one_file import is_block, one_file, place_of
from servers.scripted_http import Answer, Request
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from streamer import Options, Slice, TensorParallel
from streamer.core.checkpoint import tensor_parts
from streamer.core.format.dtypes import DTYPE_BITS

EXPERTS, FFN, HIDDEN, RANKS = 8, 1536, 512, 4
FUSED = {  # of eight experts; a rank has 384 KiB of rows of each, and 1152 KiB lie between them
    "experts.gate_up_proj": ("BF16", (EXPERTS, 2 * FFN, HIDDEN)),
    "experts.up_proj": ("BF16", (EXPERTS, FFN, HIDDEN)),
    "norm.weight": ("BF16", (HIDDEN,)),
}
PLAN = {"experts.gate_up_proj": "packed_colwise", "experts.up_proj": "colwise"}
QUIET: dict[str, Any] = {"options": Options(header_bytes=4096), "progress": False}


@pytest.fixture(scope="module")
def data() -> bytes:
    return file_of(FUSED)


@pytest.fixture
def folder(data: bytes, tmp_path: Path) -> Path:
    (tmp_path / "a.safetensors").write_bytes(data)
    return tmp_path


def expected_of(whole: dict[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """What `PLAN` keeps of whole tensors."""
    halves = whole["experts.gate_up_proj"].view(EXPERTS, 2, FFN, HIDDEN)
    rows = slice(rank * FFN // RANKS, (rank + 1) * FFN // RANKS)
    return {
        "experts.gate_up_proj": halves[:, :, rows].reshape(EXPERTS, -1, HIDDEN),
        "experts.up_proj": whole["experts.up_proj"][:, rows],
        "norm.weight": whole["norm.weight"],
    }


def check_equal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].shape == tensor.shape
        assert torch.equal(got[name].view(torch.int16), tensor.view(torch.int16)), name


@pytest.fixture
def every_run(monkeypatch: pytest.MonkeyPatch) -> Options:
    """Read even the shortest runs by themselves."""
    monkeypatch.setattr(tensor_parts, "LEAST_PIECE_BYTES", 1)
    return Options(coalesce_gap_bytes=0)


def fits(shape: tuple[int, ...], dtype: str, part: Slice) -> bool:
    if not -len(shape) <= part.dim < len(shape):
        return False
    if part.blocks > 1 and shape[part.dim] % (part.blocks * part.count):
        return False
    block = shape[part.dim] // part.blocks
    is_last = part.dim % len(shape) == len(shape) - 1
    return DTYPE_BITS[dtype] >= 8 or not is_last or all(bound % 2 == 0 for bound in (block, *part.bounds(block)))


@pytest.mark.parametrize("framework", ["pt", "np"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_for_every_dtype_and_uneven_size_the_pieces_are_the_part_of_a_whole_tensor(
    dtype: str, framework: str, every_run: Options, tmp_path: Path
) -> None:
    (tmp_path / "a.safetensors").write_bytes(file_of({name: (dtype, shape) for name, shape in SHAPES.items()}))
    ways = [(1, 3, 1), (1, 4, 1), (1, 5, 1), (-1, 2, 1), (2, 2, 1), (1, 2, 2), (0, 2, 2), (2, 2, 2)]
    in_one = Options(coalesce_gap_bytes=1 << 30)  # one range for each part
    for dim, ranks, blocks in ways:
        for rank in range(ranks):
            part = Slice(dim, rank, ranks, blocks)
            rules = {name: part for name, shape in SHAPES.items() if fits(shape, dtype, part)}
            how: dict[str, Any] = {"framework": framework, "slices": rules, "names": list(rules), "progress": False}
            expected = streamer.load(tmp_path, options=in_one, **how)
            with streamer.stream(tmp_path, options=every_run, **how) as tensors:
                got = dict(tensors)
            for name, tensor in expected.items():
                assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), (name, part)
                assert got[name].tobytes() == tensor.tobytes() if framework == "np" else _same(got[name], tensor)
            assert tensors.report.is_complete
            assert tensors.report.tensors == len(rules)
            assert tensors.report.bytes_read == tensors.report.bytes
            assert tensors.report.bytes == sum(stored_bytes(tensor, dtype) for tensor in expected.values())


def stored_bytes(tensor: Any, dtype: str) -> int:
    """Count the bytes in the file; arrays of NumPy have a byte for each value of F4."""
    return int(tensor.size * DTYPE_BITS[dtype] // 8 if isinstance(tensor, np.ndarray) else tensor.nbytes)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.numel():
        return True
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


@pytest.mark.parametrize("storage", ["s3", "http"])
def test_a_rank_reads_only_its_part_over_a_network(data: bytes, folder: Path, storage: str) -> None:
    whole = streamer.load(folder)
    with one_file(data=data) as server:
        uri, options = place_of(storage, server)
        for rank in (0, RANKS - 1):
            server.requests.clear()
            tp = TensorParallel(rank, RANKS, PLAN)
            kept = streamer.load(uri, slices=tp, storage_options=options, **QUIET)
            check_equal(kept, expected_of(whole, rank))
            blocks = [each for each in server.requests if is_block(each)]
            assert sum(each.end - each.begin for each in blocks) <= 1.05 * sum(each.nbytes for each in kept.values())


@pytest.mark.server
def test_a_real_s3_server_sends_a_rank_only_its_part(data: bytes, folder: Path, s3_server: SeaweedServer) -> None:
    s3_server.put("private", "slices/fused.safetensors", data)
    with TcpProxy(s3_server.port, http_requests) as proxy:
        options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        kept = streamer.load(
            "s3://private/slices/fused.safetensors",
            slices=TensorParallel(1, RANKS, PLAN),
            storage_options=options,
            **QUIET,
        )
        check_equal(kept, expected_of(streamer.load(folder), 1))
        kept_bytes = sum(each.nbytes for each in kept.values())
        assert kept_bytes <= proxy.passed_bytes <= 1.05 * kept_bytes


def test_a_rank_reads_only_its_part_of_a_file_in_every_way_to_read(folder: Path) -> None:
    whole = streamer.load(folder)
    for rank in range(RANKS):
        tp, expected = TensorParallel(rank, RANKS, PLAN), expected_of(whole, rank)
        for order in ("completion", "file"):
            with streamer.stream(folder, slices=tp, order=order, **QUIET) as tensors:
                got = list(tensors)
            assert order == "completion" or [name for name, _ in got] == list(FUSED)
            check_equal(dict(got), expected)
            kept_bytes = sum(each.nbytes for each in expected.values())
            assert tensors.report.bytes == kept_bytes
            assert tensors.report.bytes_read <= 1.05 * kept_bytes  # a gap between two tensors may be read
        little = streamer.load(folder, slices=tp, options=Options(memory_limit_bytes=1), progress=False)
        check_equal(little, expected)
        target = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
        report = streamer.load_into(folder, target, slices=tp, progress=False)
        assert report.bytes_read <= 1.05 * kept_bytes
        check_equal(target, expected)
        with streamer.open(folder, slices=tp) as checkpoint:
            check_equal(checkpoint.get_tensors(progress=False), expected)
            check_equal({name: checkpoint.get_tensor(name) for name in checkpoint}, expected)
        cast = streamer.load(folder, slices=tp, dtype="float32", progress=False)
        assert torch.equal(cast["norm.weight"].nan_to_num(), expected["norm.weight"].float().nan_to_num())
        assert cast["experts.up_proj"].dtype == torch.float32


def test_rows_of_each_expert_are_read_by_a_slice_too(folder: Path) -> None:
    whole = streamer.load(folder)["experts.up_proj"]
    part = Slice(1, 1, 2)
    with streamer.stream(folder, names="experts.up_proj", slices={"*": part}, **QUIET) as tensors:
        got = dict(tensors)["experts.up_proj"]
    assert torch.equal(got.view(torch.int16), whole.chunk(2, 1)[1].contiguous().view(torch.int16))
    assert tensors.report.bytes_read == got.nbytes


def test_tensors_that_are_verified_are_read_whole(folder: Path) -> None:
    streamer.write_manifest(folder)
    tp = TensorParallel(2, RANKS, PLAN)
    with streamer.stream(folder, slices=tp, verify="manifest", **QUIET) as tensors:
        check_equal(dict(tensors), expected_of(streamer.load(folder), 2))
    (check,) = tensors.report.verified
    assert check.verified_by


def test_ranges_that_lie_close_together_are_read_as_one(folder: Path) -> None:
    """So are two halves of a tensor with 384 KiB between them: another request costs as much as 512 KiB."""
    columns = {"experts.*": Slice(2, 0, 2)}
    with streamer.stream(folder, slices=columns, **QUIET) as tensors:
        dict(tensors)
    size = sum(int(np.prod(shape)) * 2 for _, shape in FUSED.values())
    assert tensors.report.bytes_read == size


def test_a_stream_that_is_closed_while_pieces_arrive_hands_out_no_tensor(data: bytes) -> None:
    arrived, goes_on = threading.Event(), threading.Event()

    def change(request: Request, answer: Answer) -> None:
        if is_block(request) and request.begin > 5 << 20:
            arrived.set()
            goes_on.wait(10)

    with one_file(change, data) as server:
        uri, options = place_of("http", server)
        stream = streamer.stream(
            uri, slices=TensorParallel(0, RANKS, PLAN), names="experts.*", storage_options=options, **QUIET
        )

        def close() -> None:
            arrived.wait(10)
            stream.close()
            goes_on.set()

        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(streamer.LoadCancelledError):
            dict(stream)
        closer.join()
