"""Every byte of a target has one writer and one meaning; all others are refused before the first byte is read."""

from __future__ import annotations

import mmap
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from safetensors.torch import save_file
from torch._subclasses.fake_tensor import FakeTensorMode

import streamer
from streamer.core.errors import TargetError
from streamer.core.tensors.target_memory import check_apart, extent_of

Pair = tuple[Any, Any]


def ones(count: int = 12) -> torch.Tensor:
    return torch.zeros(count)


REFUSED: dict[str, tuple[Callable[[], Pair], str]] = {
    "the second starts inside the first": (lambda: ((m := ones())[:4], m[2:6]), "'a' and 'b' share a part"),
    "one lies inside the other": (lambda: ((m := ones())[:2].expand(2), m[:4].view(4)), "'a' and 'b' share a part"),
    "both start together": (lambda: ((m := ones())[:4], m[:8]), "'a' and 'b' share a part"),
    "rows and a column": (lambda: ((m := ones().view(3, 4))[1], m[:, 1]), "share a part"),
    "two columns that cross": (lambda: ((m := ones().view(3, 4))[:, :2], m[:, 1:3]), "share a part"),
    "the same bytes in another order": (lambda: ((m := ones().view(3, 4)), m.view(4, 3).t()), "share a part"),
    "an expanded tensor": (lambda: (torch.zeros(1, 3).expand(4, 3), ones()), "elements of the target 'a' share memory"),
    "a scalar expanded": (lambda: (torch.zeros(()).expand(3), ones()), "elements of the target 'a' share memory"),
    "windows": (lambda: (ones().as_strided((3, 4), (1, 1)), ones()), "elements of the target 'a' share memory"),
    "a tensor on meta": (lambda: (torch.zeros(3, device="meta"), ones()), "'a' is on the meta device"),
    "a sparse tensor": (lambda: (torch.zeros(3, 3).to_sparse(), ones()), "'a' is laid out as torch.sparse_coo"),
    "a freed storage": (lambda: (freed(ones()), ones()), "memory of the target 'a' was freed"),
    "a file mapped for reading": (lambda: (mapped_for_reading(), ones()), "memory of the target 'a' is read-only"),
    "a part of it, turned": (lambda: (mapped_for_reading().view(3, 4).t(), ones()), "'a' is read-only"),
    "an array inside another": (lambda: ((m := np.zeros(8, "f4"))[:4], m[2:6]), "share a part"),
    "a reversed array across another": (lambda: ((m := np.zeros(8, "f4"))[5::-1], m[4:]), "share a part"),
    "a broadcast array": (lambda: (as_strided(np.zeros(3, "f4"), (4, 3), (0, 4)), np.zeros(3, "f4")), "elements of"),
}


def mapped_for_reading() -> torch.Tensor:
    """torch cannot tell that a write to it ends the process; it warns when it is made."""
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.write(bytes(48))
        file.flush()
        return torch.frombuffer(mmap.mmap(file.fileno(), 48, access=mmap.ACCESS_READ), dtype=torch.float32)


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


@each_row(("pair", "message"), REFUSED.values())
def test_a_target_without_bytes_of_its_own_is_refused_before_the_first_byte(
    tmp_path: Path, pair: Callable[[], Pair], message: str
) -> None:
    targets = dict(zip("ab", pair(), strict=True))
    before = {name: snapshot(target) for name, target in targets.items()}
    with pytest.raises(TargetError, match=message):
        load_ones_into(targets, tmp_path)
    assert {name: snapshot(target) for name, target in targets.items()} == before


TAKEN: dict[str, Callable[[], Pair]] = {
    "neighbours": lambda: ((m := ones())[:4], m[4:]),
    "columns of one matrix": lambda: ((m := ones().view(3, 4))[:, :2], m[:, 2:]),
    "every other element": lambda: ((m := ones())[::2], m[1::2]),
    "blocks of one cube": lambda: ((m := torch.zeros(4, 4, 4))[1:3, :, ::2], m[1:3, 1:3, 1::2]),
    "the same tensor": lambda: ((m := ones()), m),
    "another view of all of it": lambda: ((m := ones()), m.view(3, 4)),
    "the same columns": lambda: ((m := ones().view(3, 4))[:, :2], m[:, :2]),
    "a transposed tensor": lambda: (ones().view(3, 4).t(), ones()),
    "empty ones": lambda: ((m := ones())[:0], m[:0]),
    "one dimension of one element, expanded": lambda: (torch.zeros(3).expand(1, 3), ones()),
    "a reversed array beside another": lambda: ((m := np.zeros(8, "f4"))[3::-1], m[4:]),
}


@each_row("pair", TAKEN.values())
def test_targets_that_lie_beside_each_other_or_are_tied_are_filled(tmp_path: Path, pair: Callable[[], Pair]) -> None:
    targets = dict(zip("ab", pair(), strict=True))
    load_ones_into(targets, tmp_path)
    for target in targets.values():
        assert (np.asarray(target) == 1).all()


def test_targets_can_be_resized_after_they_were_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4), "b": torch.zeros(4)}, tmp_path / "a.safetensors")
    target = torch.zeros(6)
    with pytest.raises(streamer.TargetError) as refused:
        streamer.load_into(tmp_path, {"a": target[:4], "b": target[2:]})
    assert "share" in str(refused.value)
    target.untyped_storage().resize_(0)


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    strides = tuple(draw(st.integers(-6, 6)) for _ in shape)
    low = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if stride < 0)
    return draw(st.integers(-low, -low + 12)), shape, strides


@given(windows(), windows())
def test_no_byte_of_two_accepted_targets_is_shared(one: Any, other: Any) -> None:
    memory = np.zeros(64, np.uint8)
    arrays = [as_strided(memory[first:], shape, strides) for first, shape, strides in (one, other)]
    bytes_of = [np.asarray(as_strided(np.arange(64)[first:], shape, [8 * s for s in strides])).ravel().tolist()
                for first, shape, strides in (one, other)]  # fmt: skip
    try:
        check_apart(filter(None, map(extent_of, "ab", arrays)))
    except TargetError:
        return
    for numbers in bytes_of:
        assert len(set(numbers)) == len(numbers)
    assert not set(bytes_of[0]) & set(bytes_of[1]) or sorted(bytes_of[0]) == sorted(bytes_of[1])


def snapshot(target: Any) -> object:
    if isinstance(target, torch.Tensor) and (
        target.is_meta or target.is_sparse or not target.untyped_storage().nbytes()
    ):
        return None
    return target.tolist()


def load_ones_into(targets: Mapping[str, Any], folder: Path) -> None:
    stored = {}
    for name, target in targets.items():
        dtype = target.dtype if isinstance(target, torch.Tensor) else torch.float32
        stored[name] = torch.ones(tuple(target.shape), dtype=dtype)
    save_file(stored, folder / "model.safetensors")
    framework = "pt" if isinstance(targets["a"], torch.Tensor) else "np"
    streamer.load_into(folder, targets, framework=framework, progress=False)


@each_row(
    ("target", "framework"),
    [
        (1.0, "pt"),
        (None, "pt"),
        ("x", "pt"),
        (np.float32(0), "np"),
        (np.frombuffer(bytes(12), np.float32), "np"),
        (np.ma.masked_array(np.zeros(3, np.float32), [True, False, True]), "np"),
    ],
)
def test_what_cannot_be_filled_is_refused_before_a_byte_is_read_regression(tmp_path, target, framework):
    """Another library's exception came out of it, or the masked values stayed."""
    shape = (3,) if getattr(target, "shape", None) == (3,) else ()
    save_file({"a": torch.ones(shape)}, tmp_path / "a.safetensors")
    with pytest.raises(streamer.TargetError):
        streamer.load_into(tmp_path, {"a": target}, framework=framework)


def test_a_view_with_the_sign_of_its_values_turned_gets_right_values(tmp_path: Path) -> None:
    """The bytes of a conjugate or negative view are not its values."""
    stored = {"conjugate": torch.tensor([1 + 2j, 3 - 4j]), "negative": torch.tensor([5.0, -6.0])}
    save_file(stored, tmp_path / "a.safetensors")
    conjugated = torch.zeros(2, dtype=torch.complex64)
    targets = {"conjugate": conjugated.conj(), "negative": torch.zeros(2, dtype=torch.complex64).conj().imag}
    assert targets["negative"].is_neg()
    streamer.load_into(tmp_path, targets)
    for name, target in targets.items():
        assert torch.equal(target.resolve_conj().resolve_neg(), stored[name])
    assert torch.equal(conjugated, stored["conjugate"].conj().resolve_conj())


def test_a_view_and_its_conjugate_are_tied_by_their_values(tmp_path: Path) -> None:
    stored = torch.tensor([1 + 2j, 3 - 4j])
    memory = torch.zeros(2, dtype=torch.complex64)
    save_file({"a": stored, "b": stored.conj().resolve_conj()}, tmp_path / "a.safetensors")
    streamer.load_into(tmp_path, {"a": memory, "b": memory.conj()})
    assert torch.equal(memory, stored)
    save_file({"a": stored, "b": stored.clone()}, tmp_path / "a.safetensors")
    with pytest.raises(TargetError, match="are the same memory, but the checkpoint's tensors differ"):
        streamer.load_into(tmp_path, {"a": memory, "b": memory.conj()})


class Wrapper(torch.Tensor):
    """Keeps its values in another tensor, and does not say so."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("the subclass's own")


class Secretive(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("the subclass's own")


class Impostor:
    dtype, shape = torch.float32, (3,)

    def data_ptr(self) -> int:
        raise ValueError("the impostor's own")


def a_fake_one() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(3)


def one_of_a_transform() -> torch.Tensor:
    kept: list[torch.Tensor] = []
    torch.func.grad(lambda x: (kept.append(x), x.sum())[1])(torch.zeros(3))
    return kept[0]


@pytest.mark.filterwarnings("ignore")  # torch's, of prototypes
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (a_fake_one, "is a FakeTensor"),
        (lambda: Wrapper(torch.zeros(3)), "is a Wrapper"),
        (lambda: torch.zeros(3).as_subclass(Secretive), "is a Secretive, which does not reveal its memory"),
        (Impostor, "is a Impostor"),
        (lambda: torch.masked.masked_tensor(torch.zeros(3), torch.ones(3, dtype=torch.bool)), "is a MaskedTensor"),
        (lambda: torch.nested.nested_tensor([torch.zeros(1)] * 3), "is nested"),
        (lambda: torch.nested.nested_tensor([torch.zeros(1)] * 3, layout=torch.jagged), "is a NestedTensor"),
        (lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.quint8), "its target torch.quint8"),
        (one_of_a_transform, "is inside a transform"),
        (lambda: torch._efficientzerotensor((3,)), "is a tensor of zeros"),
        (lambda: torch.nn.LazyLinear(3).bias, "is lazy, and has no shape"),
    ],
)
def test_a_tensor_that_is_not_plain_memory_is_refused_by_name_regression(
    tmp_path: Path, make: Callable[[], Any], what: str
) -> None:
    """Torch's own errors came out of it; a masked tensor was passed over in silence."""
    save_file({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "a.safetensors")
    other = torch.zeros(3)
    with pytest.raises(streamer.TargetError, match=rf"tensor 'a' .*{what}"):
        streamer.load_into(tmp_path, {"a": make(), "b": other})
    assert other.tolist() == [0, 0, 0]


def test_a_tensor_inside_of_a_transform_is_not_filled(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")

    def loading(target: torch.Tensor) -> torch.Tensor:
        streamer.load_into(tmp_path, {"a": target})
        return target.sum()

    for transform in (torch.func.grad, torch.func.vmap):
        with pytest.raises(streamer.TargetError, match="inside a transform"):
            transform(loading)(torch.zeros(2, 3)[0] if transform is torch.func.grad else torch.zeros(2, 3))


def test_a_plain_subclass_is_filled(tmp_path: Path) -> None:
    class Named(torch.Tensor):
        pass

    save_file({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "a.safetensors")
    targets = {"a": torch.zeros(3).as_subclass(Named), "b": torch.nn.Parameter(torch.zeros(3))}
    streamer.load_into(tmp_path, targets)
    assert [target.tolist() for target in targets.values()] == [[1.0] * 3] * 2


TIED: dict[str, Callable[[], Pair]] = {
    "one tensor": lambda: ((m := ones()), m),
    "two views": lambda: ((m := ones()), m.view(12)),
    "columns": lambda: ((m := torch.zeros(12, 2))[:, 0], m[:, 0]),
    "an array": lambda: ((m := np.zeros(12, "f4")), m),
    "columns of an array": lambda: ((m := np.zeros((12, 2), "f4"))[:, 0], m[:, 0]),
}


@each_row("dtype", [None, "float16"])
@each_row("pair", TIED.values())
def test_tied_targets_take_the_same_bytes_only_regression(
    tmp_path: Path, pair: Callable[[], Pair], dtype: str | None
) -> None:
    """The last of two different tensors was what both names had."""
    targets = dict(zip("ab", pair(), strict=True))
    framework = "pt" if isinstance(targets["a"], torch.Tensor) else "np"
    if dtype and framework == "pt":  # numpy casts nothing
        half = targets["a"].half()
        targets = {"a": half, "b": half}
    dtype = dtype if framework == "pt" else None
    odd = torch.tensor([float("nan"), -0.0, *range(10)])
    save_file({"a": odd, "b": odd.clone()}, tmp_path / "a.safetensors")
    streamer.load_into(tmp_path, targets, framework=framework, dtype=dtype)
    assert np.asarray(targets["b"]).tolist()[2:] == list(range(10))

    save_file({"a": odd, "b": odd + 1}, tmp_path / "a.safetensors")
    with pytest.raises(streamer.TargetError, match="'a' and 'b' are the same memory, but"):
        streamer.load_into(tmp_path, targets, framework=framework, dtype=dtype)
    streamer.load_into(tmp_path, targets, framework=framework, dtype=dtype, names="b", strict=False)
    assert np.asarray(targets["a"]).tolist()[2:] == list(range(1, 11))


def test_a_copy_that_a_target_refuses_is_reported_with_the_name(tmp_path: Path) -> None:
    class Stubborn(torch.Tensor):
        def copy_(self, *_: Any) -> torch.Tensor:  # type: ignore[override]
            raise RuntimeError("no")

    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    target = torch.zeros(3, 2)[:, 0].as_subclass(Stubborn)
    with pytest.raises(streamer.TargetError, match="target 'a' cannot be filled: RuntimeError"):
        streamer.load_into(tmp_path, {"a": target})


def test_a_class_and_names_that_are_no_text_are_refused(tmp_path):
    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    with pytest.raises(streamer.TargetError, match="not type"):
        streamer.load_into(tmp_path, torch.nn.Linear)
    with pytest.raises(streamer.TargetError, match="lacks 1 of the target's tensors: '1'"):
        streamer.load_into(tmp_path, {1: torch.zeros(3), "a": torch.zeros(3)})
