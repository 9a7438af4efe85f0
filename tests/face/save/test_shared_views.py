"""What `save_model` writes of tensors that are views of one memory comes back whole; otherwise nothing is written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import streamer
from streamer.compat.safetensors.torch import load_model

COUNT = 24  # numbers of float32 in the memory
View = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, View] = {
    "all": lambda m: m,
    "matrix": lambda m: m.view(4, 6),
    "transposed": lambda m: m.view(4, 6).t(),
    "permuted": lambda m: m.view(2, 3, 4).permute(2, 0, 1),
    "first half": lambda m: m[:12],
    "second half": lambda m: m[12:],
    "middle": lambda m: m[6:18],
    "last third": lambda m: m[16:],
    "one number": lambda m: m[5],
    "nothing": lambda m: m[3:3],
    "left columns": lambda m: m.view(4, 6)[:, :2],
    "right columns": lambda m: m.view(4, 6)[:, 2:],
    "crossing columns": lambda m: m.view(4, 6)[:, 1:3],
    "even numbers": lambda m: m[::2],
    "odd numbers": lambda m: m[1::2],
    "a repeated row": lambda m: m.view(4, 6)[0].expand(4, 6),
    "a repeated number": lambda m: m[:1].expand(24),
    "windows": lambda m: m.as_strided((4, 4), (2, 1)),
    "windows of all": lambda m: m.as_strided((6, 9), (3, 1)),
    "steps that cross without meeting": lambda m: m.as_strided((2, 3), (3, 2)),
    "the bytes": lambda m: m.view(torch.uint8),
    "integers of a half": lambda m: m[12:].view(torch.int32),
    "halves of numbers": lambda m: m[:12].view(torch.float16),
    "complex": lambda m: torch.view_as_complex(m.view(12, 2)),
    "conjugated": lambda m: torch.view_as_complex(m.view(12, 2)).conj(),
    "imaginary, negated": lambda m: torch.view_as_complex(m.view(12, 2)).conj().imag,
    "real": lambda m: torch.view_as_complex(m.view(12, 2)).real,
}


class Views(torch.nn.Module):
    """A module whose parameters and buffers are views of one memory."""

    def __init__(self, memory: torch.Tensor, views: Sequence[str]) -> None:
        super().__init__()
        for name, view in zip("abcd", views, strict=False):
            tensor = VIEWS[view](memory)
            if tensor.is_floating_point() and name in "bd":
                self.register_parameter(name, torch.nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)


def numbers() -> torch.Tensor:
    return torch.arange(1.0, COUNT + 1)


def refused(save: Callable[[], Any]) -> str:
    try:
        save()
    except streamer.UsageError as error:
        return str(error)
    return ""


def raw(tensor: Any) -> bytes:
    return torch.as_tensor(tensor).detach().resolve_conj().resolve_neg().contiguous().view(-1).numpy().tobytes()


@given(st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=4))
@example(["all", "first half", "middle", "last third"])
@example(["a repeated row", "matrix"])
@example(["second half", "first half", "the bytes"])
def test_a_module_of_views_comes_back_whole_or_is_not_saved(views: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        model, folder = Views(numbers(), views), Path(scratch, "model")
        if refusal := refused(lambda: streamer.save_model(model, folder)):
            assert "memory" in refusal
            assert not folder.exists()
            return
        want = {name: raw(tensor) for name, tensor in model.state_dict().items()}
        ways: list[Callable[[Views], Any]] = [
            lambda fresh: streamer.load_into(folder, fresh),
            lambda fresh: load_model(fresh, folder / "model.safetensors"),
            lambda fresh: load_model(fresh, folder / "model.safetensors", options=streamer.Options()),
        ]
        for load in ways:
            fresh = Views(torch.zeros(COUNT), views)
            load(fresh)
            assert {name: raw(tensor) for name, tensor in fresh.state_dict().items()} == want


@given(st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=3), st.sampled_from(["torch", "numpy", "both"]))
def test_a_mapping_of_views_is_saved_with_every_value_or_refused(views: list[str], library: str) -> None:
    memory, tensors = numbers(), dict[str, Any]()
    for number, (name, view) in enumerate(zip("abc", views, strict=False)):
        tensor = VIEWS[view](memory)
        is_array = library == "numpy" or (library == "both" and number % 2)
        tensors[name] = tensor.numpy() if is_array and not (tensor.is_conj() or tensor.is_neg()) else tensor
    with tempfile.TemporaryDirectory() as scratch:
        if refusal := refused(lambda: streamer.save(tensors, scratch + "/model")):
            assert "share memory" in refusal
            assert len(views) > 1
            assert not Path(scratch, "model").exists()
            return
        loaded = streamer.load(scratch + "/model")
        assert {name: raw(each) for name, each in loaded.items()} == {name: raw(each) for name, each in tensors.items()}


def test_columns_of_one_matrix_share_no_byte_and_are_saved_regression(tmp_path: Path) -> None:
    matrix = numbers().view(4, 6)
    streamer.save({"left": matrix[:, :2], "right": matrix[:, 2:]}, tmp_path)
    assert torch.equal(torch.cat([*streamer.load(tmp_path).values()], 1), matrix)


def test_tensors_of_two_libraries_that_share_memory_are_refused_regression(tmp_path: Path) -> None:
    array = np.ones(4, "f4")
    with pytest.raises(streamer.UsageError, match="share memory: 'a', 'b'"):
        streamer.save({"a": array, "b": torch.from_numpy(array)}, tmp_path)


def test_a_view_of_a_view_belongs_to_the_group_of_the_whole_regression(tmp_path: Path) -> None:
    class Thirds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Parameter(torch.randn(12, 4))
            self.q, self.k, self.v = (torch.nn.Parameter(each) for each in self.qkv.detach().split(4))

    model, fresh = Thirds(), Thirds()
    streamer.save_model(model, tmp_path)
    assert [*streamer.load(tmp_path)] == ["qkv"]
    report = streamer.load_into(tmp_path, fresh)
    assert not report.missing
    assert torch.equal(fresh.v, model.v)


def test_an_unfilled_part_of_memory_is_still_missing(tmp_path: Path) -> None:
    memory = numbers()
    streamer.save({"half": memory[:12]}, tmp_path)
    with pytest.raises(streamer.TargetError, match="lacks 1 of the target's tensors: 'all'"):
        streamer.load_into(tmp_path, {"half": memory[:12], "all": memory})
