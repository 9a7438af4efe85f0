"""On a real CUDA device; skipped, and said to be, where there is none.

Needs torch built for CUDA, safetensors, pytest and this package, and nothing of tests/conftest.py:

    pytest -c /dev/null --noconftest -rs tests/gpu/test_real_gpu.py
"""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import streamer
from streamer import _native
from streamer.core.tensors.target_states import ResizeLock

HAS_GPU = bool(torch.version.cuda) and torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="NO GPU, or torch without CUDA: nothing of this was checked"),
]
MIB = 1 << 20


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A file of 600 MB with large and many small tensors, and what is in it."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    tensors = {f"large.{i}": torch.randn(8192, 4096).bfloat16() for i in range(8)}
    tensors |= {f"small.{i}": torch.randn(17 + i % 50) for i in range(5_000)}
    tensors |= {"odd": torch.arange(33_333_333, dtype=torch.int8), "empty": torch.empty(0, 4)}
    path = tmp_path_factory.mktemp("gpu") / "model.safetensors"
    save_file(tensors, path)
    return path, tensors


def assert_equal(loaded: dict[str, Any], expected: dict[str, Any]) -> None:
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].is_cuda
        assert torch.equal(loaded[name].cpu(), tensor), name


def test_every_tensor_arrives_equal_through_the_ring(stored: tuple[Path, dict[str, Any]]) -> None:
    path, expected = stored
    with streamer.stream(path, device="cuda", progress=False) as tensors:
        loaded = dict(tensors)
    assert_equal(loaded, expected)
    assert tensors.report.device_path == "ring"
    assert 0 < tensors.report.peak_pinned_bytes <= 2048 * MIB


def test_files_that_are_read_past_the_page_cache_arrive_equal(stored: tuple[Path, dict[str, Any]]) -> None:
    path, expected = stored
    options = streamer.Options(direct_io=True, gpudirect=False)
    assert_equal(streamer.load(path, device="cuda", options=options, progress=False), expected)


def test_files_that_go_straight_by_gpudirect_arrive_equal(stored: tuple[Path, dict[str, Any]]) -> None:
    if why := _native.cuda_gpudirect_problem():
        pytest.skip(f"NO GPUDIRECT STORAGE ({why}): nothing of this was checked")
    path, expected = stored
    options = streamer.Options(direct_io=True, gpudirect=True)
    with streamer.stream(path, device="cuda", options=options, progress=False) as tensors:
        loaded = dict(tensors)
    assert_equal(loaded, expected)
    report = tensors.report
    assert "gpudirect" in report.device_path or "GPUDirect Storage was not used" in report.remarks[0]


def test_a_tiny_ring_and_tiny_blocks_arrive_equal_too(stored: tuple[Path, dict[str, Any]]) -> None:
    path, expected = stored
    options = streamer.Options(pinned_bytes=MIB, block_bytes=64 << 10, memory_limit_bytes=8 * MIB)
    assert_equal(streamer.load(path, device="cuda", options=options, progress=False), expected)


def test_memory_that_a_kernel_still_writes_is_not_filled_before_it_is_done(
    stored: tuple[Path, dict[str, Any]],
) -> None:
    path, expected = stored
    torch.cuda.empty_cache()
    for _ in range(5):
        scratch = [torch.empty(8192, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(8)]
        torch.cuda._sleep(200_000_000)  # about 0.1 s: the fills below wait behind it
        for tensor in scratch:
            tensor.fill_(7)
        del scratch, tensor  # free for the same stream, and still to be written
        assert_equal(streamer.load(path, device="cuda", names="large.*", progress=False), _only("large.", expected))


def _only(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def test_a_consumer_that_drops_tensors_holds_a_fraction_of_the_model(stored: tuple[Path, dict[str, Any]]) -> None:
    path, _ = stored
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    options = streamer.Options(memory_limit_bytes=128 * MIB)
    with streamer.stream(path, device="cuda", options=options, progress=False) as tensors:
        for _ in tensors:
            pass
    assert torch.cuda.max_memory_allocated() - before < tensors.total_bytes / 2


def test_a_storage_on_a_device_cannot_be_resized_while_it_is_locked_and_can_afterwards() -> None:
    tensor = torch.zeros(MIB, device="cuda")
    lock = ResizeLock([tensor])
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)
    lock.release()
    tensor.untyped_storage().resize_(0)


def test_parameters_views_and_strided_targets_are_filled(stored: tuple[Path, dict[str, Any]]) -> None:
    path, expected = stored
    storage = torch.zeros(2, 8192, 4096, dtype=torch.bfloat16, device="cuda")
    targets = {
        "large.0": storage[1],
        "large.1": torch.zeros(4096, 8192, dtype=torch.bfloat16, device="cuda").t(),
        "odd": torch.zeros(33_333_333, dtype=torch.int8),
    }
    streamer.load_into(path, targets, names=list(targets), progress=False)
    for name, tensor in targets.items():
        assert torch.equal(tensor.cpu(), expected[name]), name
    assert not storage[0].any()


def test_a_cast_on_the_device_equals_torchs(stored: tuple[Path, dict[str, Any]]) -> None:
    path, expected = stored
    loaded = streamer.load(path, device="cuda", names="large.0", dtype=torch.float32, progress=False)
    assert torch.equal(loaded["large.0"].cpu(), expected["large.0"].float())


def test_a_full_device_is_reported_with_its_bytes(stored: tuple[Path, dict[str, Any]]) -> None:
    path, _ = stored
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 100 * MIB) / total)
    try:
        with pytest.raises(streamer.DeviceError, match="bytes asked for") as caught:
            streamer.load(path, device="cuda:0", progress=False)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert caught.value.code == "CUDA_ERROR_OUT_OF_MEMORY"


def test_an_index_beyond_the_devices_is_reported(stored: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(streamer.UnknownDeviceError, match="CUDA_ERROR_INVALID_DEVICE"):
        streamer.load(stored[0], device="cuda:99", progress=False)


def test_loads_at_once_share_the_ring(stored: tuple[Path, dict[str, Any]]) -> None:
    path, expected = stored
    found: list[dict[str, Any]] = []
    loaders = [
        threading.Thread(target=lambda: found.append(streamer.load(path, device="cuda", progress=False)))
        for _ in range(3)
    ]
    for loader in loaders:
        loader.start()
    for loader in loaders:
        loader.join()
    assert len(found) == 3
    for loaded in found:
        assert_equal(loaded, expected)


def test_a_graph_that_another_thread_captures_meanwhile_stays_valid(stored: tuple[Path, dict[str, Any]]) -> None:
    path, expected = stored
    streamer.release_pinned_memory()  # so that memory is locked during the capture
    found: list[dict[str, Any]] = []
    loader = threading.Thread(target=lambda: found.append(streamer.load(path, device="cuda", progress=False)))
    numbers = torch.arange(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # in the default mode, "global"
        loader.start()
        doubled = numbers * 2
        loader.join()
    graph.replay()
    assert torch.equal(doubled.cpu(), torch.arange(1000) * 2)
    assert_equal(found[0], expected)


def test_leaving_early_ends_within_a_second(stored: tuple[Path, dict[str, Any]]) -> None:
    with streamer.stream(stored[0], device="cuda", progress=False) as tensors:
        next(tensors)
        began = time.monotonic()
    assert time.monotonic() - began < 1


def test_pinned_memory_is_given_back_on_request(stored: tuple[Path, dict[str, Any]]) -> None:
    streamer.load(stored[0], device="cuda", progress=False)
    assert streamer.release_pinned_memory() > 0
    assert streamer.release_pinned_memory() == 0


def test_the_parts_of_ranks_arrive_equal(stored: tuple[Path, dict[str, Any]]) -> None:
    path, expected = stored
    for dim in (0, 1):
        part = streamer.Slice(dim, 3, 8)
        loaded = streamer.load(path, device="cuda", names="large.*", slices={"large.*": part}, progress=False)
        assert_equal(loaded, {name: tensor.chunk(8, dim)[3] for name, tensor in _only("large.", expected).items()})


@pytest.mark.parametrize("key", [None, b"0123456789abcdefghijklmnopqrstuv"], ids=["plain", "encrypted"])
def test_tensors_of_the_device_are_saved_and_come_back_equal(
    stored: tuple[Path, dict[str, Any]], tmp_path: Path, key: bytes | None
) -> None:
    _, expected = stored
    on_device = {name: tensor.cuda() for name, tensor in expected.items()}
    streamer.save(on_device, tmp_path, key=key, max_shard_bytes=200 * MIB, progress=False)
    assert_equal(streamer.load(tmp_path, device="cuda", key=key, progress=False), expected)


def _load_as_rank(rank: int, path: str, meeting: str, digests: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    loaded = streamer.load(path, device="cuda", group=dist.group.WORLD, progress=False)
    digests[rank] = {name: (tensor.is_cuda, _digest(tensor)) for name, tensor in loaded.items()}
    dist.destroy_process_group()


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()).digest()


def test_two_ranks_of_a_group_get_equal_tensors_on_the_device(
    stored: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, expected = stored
    context = torch.multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        digests = manager.dict()
        arguments = (str(path), f"file://{tmp_path}/meeting", digests)
        torch.multiprocessing.spawn(_load_as_rank, arguments, nprocs=2)
        want = {name: (True, _digest(tensor)) for name, tensor in expected.items()}
        assert digests[0] == digests[1] == want


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of transformers with a Llama of 4 layers in several shards, and what is in it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("llama")
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "vocab_size": 4096}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=4, **sizes))
    model.save_pretrained(folder, max_shard_size="20MB")
    return folder, dict(model.state_dict())


def test_transformers_places_what_the_ring_brought(llama: tuple[Path, dict[str, Any]]) -> None:
    from transformers import LlamaForCausalLM

    folder, expected = llama
    model = streamer.transformers.from_pretrained(LlamaForCausalLM, folder, device_map="cuda")
    assert_equal(dict(model.state_dict()), expected)
    assert model(torch.zeros(1, 4, dtype=torch.long, device="cuda")).logits.isfinite().all()


def test_accelerate_dispatches_what_the_ring_brought(llama: tuple[Path, dict[str, Any]]) -> None:
    accelerate = pytest.importorskip("accelerate")
    from transformers import AutoConfig, LlamaForCausalLM

    folder, expected = llama
    with accelerate.init_empty_weights(include_buffers=False):
        model = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
    model = streamer.accelerate.load_checkpoint_and_dispatch(model, folder, device_map={"": 0})
    assert_equal(dict(model.state_dict()), expected)
    assert model(torch.zeros(1, 4, dtype=torch.long, device="cuda")).logits.isfinite().all()


def test_diffusers_places_what_the_ring_brought(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.AutoencoderKL(block_out_channels=(32, 64), norm_num_groups=8, latent_channels=4)
    model.save_pretrained(tmp_path)
    ours = streamer.diffusers.from_pretrained(diffusers.AutoencoderKL, tmp_path, device_map="cuda:0")
    assert_equal(dict(ours.state_dict()), dict(model.state_dict()))
