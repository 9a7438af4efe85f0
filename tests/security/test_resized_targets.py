"""What `load_into` writes lands in its targets or nowhere: their memory cannot be given back under it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from each_row import each_row
from safetensors.torch import save, save_file
from servers.gated_files import GatedFileSystem

import streamer
from streamer.core.tensors import target_states
from streamer.core.tensors.target_states import ResizeLock

ELEMENTS = 1 << 20


@contextmanager
def loading(target: object, framework: str = "pt") -> Iterator[None]:
    """Run the body while a load into the target waits for its first bytes; then the load must succeed."""
    fs = GatedFileSystem()
    fs.pipe_file("/model.safetensors", save({"a": torch.arange(ELEMENTS, dtype=torch.float32)}))
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(
            streamer.load_into, "/model.safetensors", {"a": target}, fs=fs, framework=framework, progress=False
        )
        try:
            assert fs.is_reading.wait(60), load.exception(0)
            yield
        finally:
            fs.gate.set()
        load.result(60)


RESIZES: dict[str, Callable[[torch.Tensor], object]] = {
    "its storage is freed": lambda tensor: tensor.untyped_storage().resize_(0),
    "its storage grows": lambda tensor: tensor.untyped_storage().resize_(16 * ELEMENTS),
}


@pytest.mark.parametrize("resize", RESIZES.values(), ids=RESIZES)
def test_a_tensor_cannot_be_resized_while_it_is_filled_and_can_afterwards(
    resize: Callable[[torch.Tensor], object],
) -> None:
    target = torch.zeros(ELEMENTS)
    memory = target.view(-1)
    address = target.data_ptr()
    with loading(target), pytest.raises(RuntimeError, match="not resizable"):
        resize(target)
    assert memory.data_ptr() == address
    assert torch.equal(memory, torch.arange(ELEMENTS, dtype=torch.float32))
    resize(target)


def test_a_tensor_that_was_to_grow_is_no_success_regression() -> None:
    """torch gives it its new shape, and refuses the memory for it only then: to look at it would crash."""
    target = torch.zeros(ELEMENTS)
    with (
        pytest.raises(streamer.TargetError, match="replaced while it was filled"),
        loading(target),
        pytest.raises(RuntimeError, match="not resizable"),
    ):
        target.resize_(4 * ELEMENTS)


def test_a_target_that_is_filled_by_a_copy_cannot_be_resized_either() -> None:
    target = torch.zeros(2 * ELEMENTS)
    with loading(target[::2]), pytest.raises(RuntimeError, match="not resizable"):
        target.untyped_storage().resize_(0)
    assert torch.equal(target[::2], torch.arange(ELEMENTS, dtype=torch.float32))


def test_an_array_cannot_be_resized_while_it_is_filled_and_can_afterwards() -> None:
    target = np.zeros(ELEMENTS, np.float32)
    with loading(target, "np"), pytest.raises(ValueError, match="resize"):
        target.resize(4 * ELEMENTS, refcheck=False)
    assert target.tolist() == list(range(ELEMENTS))
    target.resize(4 * ELEMENTS, refcheck=False)


def test_the_array_behind_a_view_cannot_be_resized_while_the_view_is_filled() -> None:
    owner = np.zeros((2, ELEMENTS), np.float32)
    with loading(owner[1].view(), "np"), pytest.raises(ValueError, match="resize"):
        owner.resize((2, 4 * ELEMENTS), refcheck=False)
    assert owner[1].tolist() == list(range(ELEMENTS))


REPLACEMENTS: dict[str, Callable[[torch.Tensor], object]] = {
    "other data": lambda tensor: setattr(tensor, "data", torch.zeros(3)),
    "another storage": lambda tensor: tensor.set_(torch.zeros(3)),
    "another dtype": lambda tensor: setattr(tensor, "data", tensor.data.half()),
}


@each_row("replace", REPLACEMENTS.values())
@each_row("step", [1, 2])
def test_a_target_that_got_other_memory_is_not_called_filled_regression(
    tmp_path: Path, replace: Callable[[torch.Tensor], object], step: int
) -> None:
    """The load succeeded, and the target held nothing of it."""
    save_file({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "a.safetensors")
    target = torch.zeros(3 * step)[::step]
    with pytest.raises(streamer.TargetError, match="'a' was replaced while it was filled"):
        streamer.load_into(tmp_path, {"a": target, "b": torch.zeros(3)}, progress=lambda _done, _total: replace(target))


def test_a_storage_that_is_replaced_as_a_whole_is_reported(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "a.safetensors")
    target = torch.zeros(3)
    kept: list[object] = []

    def replace(_done: int, _total: int) -> None:
        if not kept:
            kept.append(target.numpy().copy())
            target.share_memory_()

    with pytest.raises(streamer.TargetError, match="'a' was replaced while it was filled"):
        streamer.load_into(tmp_path, {"a": target, "b": torch.zeros(3)}, progress=replace)


def test_targets_can_be_resized_after_a_load_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(ELEMENTS)}, path)
    target = torch.zeros(ELEMENTS)

    def fail(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streamer.load_into(path, {"a": target}, progress=fail)
    target.untyped_storage().resize_(0)


def test_the_last_of_several_locks_gives_the_memory_back() -> None:
    tensor = torch.zeros(8)
    first, second = ResizeLock([tensor]), ResizeLock([tensor, tensor[2:]])
    first.release()
    first.release()
    assert not tensor.untyped_storage().resizable()
    del second
    gc.collect()
    assert tensor.untyped_storage().resizable()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_tensors_of_any_dtype_are_locked_also_where_torch_hides_its_flag(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.empty(8, dtype=dtype)
    lock = ResizeLock([tensor])
    assert not tensor.untyped_storage().resizable()
    lock.release()
    assert tensor.untyped_storage().resizable()
    monkeypatch.setattr(target_states, "_flag_offset", lambda: None)
    lock = ResizeLock([tensor])
    lock.release()
    assert not tensor.untyped_storage().resizable()  # torch has no way back


def test_memory_that_was_never_to_be_resized_stays_so() -> None:
    tensor = torch.from_numpy(np.zeros(8))
    ResizeLock([tensor]).release()
    assert not tensor.untyped_storage().resizable()
