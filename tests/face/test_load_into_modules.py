"""`load_into` an ``nn.Module`` as its ``load_state_dict`` does: dtypes, hooks, autograd; and what cannot be filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from each_row import each_row
from safetensors.torch import save_file
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import streamer

WEIGHTS = {"0.weight": torch.linspace(-1, 1, 12).view(4, 3), "0.bias": torch.arange(4.0), "1.weight": torch.ones(4)}


def model(device: str = "cpu") -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4, device=device), nn.RMSNorm(4, device=device))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_each_tensor_is_cast_to_the_dtype_of_its_target(checkpoint: Path, device: str) -> None:
    mixed = model(device)
    mixed[0].to(torch.bfloat16)
    with pytest.raises(streamer.TargetError, match=r'is torch.float32, its target torch.bfloat16.*Pass dtype="target"'):
        streamer.load_into(checkpoint, mixed)
    with pytest.raises(
        streamer.TargetError, match=r"is torch.float16, its target .*Convert the target to torch.float16"
    ):
        streamer.load_into(checkpoint, mixed, dtype=torch.float16)
    streamer.load_into(checkpoint, mixed, dtype="target")
    for name, tensor in mixed.state_dict().items():
        assert tensor.dtype == (torch.bfloat16 if name.startswith("0") else torch.float32)
        assert torch.equal(tensor, WEIGHTS[name].to(tensor.dtype))


def test_tied_targets_are_compared_in_their_own_dtype(checkpoint: Path, tmp_path: Path) -> None:
    save_file({"a": torch.tensor([1.001]), "b": torch.tensor([1.0])}, tmp_path / "model.safetensors")
    half = torch.zeros(1, dtype=torch.bfloat16)  # in which these are one number
    streamer.load_into(tmp_path, {"a": half, "b": half}, dtype="target")
    assert half.item() == 1.0


def test_integers_and_quantized_weights_are_not_cast(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3, dtype=torch.int32)}, tmp_path / "a.safetensors")
    with pytest.raises(streamer.TargetError, match=r"is torch.int32, its target torch.int64. Cast the target"):
        streamer.load_into(tmp_path, {"a": torch.zeros(3, dtype=torch.int64)}, dtype="target")
    with pytest.raises(streamer.OptionError, match="dtype= casts torch tensors only"):
        streamer.load_into(tmp_path, {}, dtype="target", framework="np")
    with pytest.raises(streamer.OptionError, match="dtype is one of"):
        streamer.load(tmp_path, dtype="target")


@pytest.mark.parametrize("how", ["in place", "by a copy", "by a cast", "a load that fails"])
def test_a_backward_through_old_weights_raises_as_after_load_state_dict(checkpoint: Path, how: str) -> None:
    trained = model()
    if how == "by a copy":
        trained[0].weight.data = torch.zeros(3, 4).t()
    if how == "by a cast":
        trained = trained.double()
    inputs = torch.ones(2, 3, dtype=trained[0].weight.dtype, requires_grad=True)
    loss = trained(inputs).sum()
    if how == "a load that fails":
        fail: Callable[[int, int], None] = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
        with pytest.raises(KeyboardInterrupt):
            streamer.load_into(checkpoint, trained, progress=fail)
    else:
        streamer.load_into(checkpoint, trained, dtype="target")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_targets_made_in_inference_mode_are_filled(checkpoint: Path) -> None:
    with torch.inference_mode():
        made = model()
    streamer.load_into(checkpoint, made)
    assert torch.equal(made[0].bias, WEIGHTS["0.bias"])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_hooks_that_come_after_are_run_inner_modules_first(checkpoint: Path, device: str) -> None:
    seen: list[Any] = []
    hooked = model(device)

    def note(module: nn.Module, keys: Any) -> None:
        seen.append((type(module).__name__, module.state_dict().popitem()[1].is_meta, *keys))

    for module in (hooked, hooked[1]):
        module.register_load_state_dict_post_hook(note)
    hooked.more = nn.Parameter(torch.zeros(1))
    streamer.load_into(checkpoint, hooked, strict=False, names="1.*")
    assert seen == [("RMSNorm", False, ["more"], []), ("Sequential", False, ["more"], [])]


class ByItself(nn.Linear):
    def _load_from_state_dict(self, *arguments: Any) -> None:
        raise AssertionError


def test_code_that_comes_before_is_named_as_skipped(checkpoint: Path) -> None:
    hooked = nn.Sequential(ByItself(3, 4), nn.RMSNorm(4))

    def rename_old_names(*_: Any) -> None:
        raise AssertionError

    hooked.register_load_state_dict_pre_hook(rename_old_names)
    (remark,) = streamer.load_into(checkpoint, hooked).remarks
    assert remark.startswith("code that load_state_dict runs before it copies was skipped: the module itself (")
    assert "rename_old_names" in remark
    assert "0 (ByItself._load_from_state_dict)" in remark
    assert streamer.load_into(checkpoint, {**hooked.state_dict()}).remarks == ()


def test_torch_s_own_modules_leave_no_remark(tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(3)
    save_file(norm.state_dict(), tmp_path / "model.safetensors")
    assert streamer.load_into(tmp_path, norm).remarks == ()


def test_wrappers_of_torch_s_are_seen_through(checkpoint: Path) -> None:
    """Their hooks give other names to a state_dict than their modules have."""
    wrapped = model("meta")
    wrapped[0] = checkpoint_wrapper(wrapped[0])
    assert streamer.load_into(checkpoint, wrapped).remarks == ()
    assert torch.equal(next(wrapped[0].parameters()), WEIGHTS["0.weight"])


class WithExtraState(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"scale": 1}

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError


def test_what_is_no_tensor_in_a_state_dict_is_left_alone(checkpoint: Path) -> None:
    streamer.load_into(checkpoint, nn.Sequential(WithExtraState(3, 4), nn.RMSNorm(4)))


def _with_copies() -> nn.Module:
    """Its state_dict is not its parameters, as those of quantizing libraries are not."""
    converted = model()
    converted.register_state_dict_post_hook(
        lambda _, state, *__: state.update({name: each.clone() for name, each in state.items()})
    )
    return converted


def _generator() -> Iterator[Any]:
    yield from model().parameters()


@each_row(
    ("target", "words"),
    [
        (lambda: nn.Linear, "not type. Make a module of this class first"),
        (lambda: torch.optim.SGD(model().parameters()), "not SGD. Give the model that it optimizes"),
        (lambda: torch.zeros(3), "not Tensor. Give it its name in the checkpoint"),
        (lambda: list(model().parameters()), "not list. Tensors are found by their names"),
        (lambda: "model", "not str. The checkpoint comes first, then its target"),
        (_generator, "not generator. Tensors are found by their names"),
        (_with_copies, "the state_dict of the target makes a new '0.weight'"),
    ],
)
def test_a_target_without_tensors_is_refused_before_the_first_request(target: Any, words: str) -> None:
    with pytest.raises(streamer.TargetError, match=words):
        streamer.load_into("http://127.0.0.1:9/a.safetensors", target())


class HalfView(nn.Module):
    """One buffer, which its state_dict shows in two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("both", torch.zeros(6))
        self.register_state_dict_post_hook(self._halved)

    @staticmethod
    def _halved(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        both = state.pop(f"{prefix}both")
        state |= {f"{prefix}first": both[:3], f"{prefix}second": both[3:]}


def test_views_of_a_module_s_own_memory_are_filled(tmp_path: Path) -> None:
    save_file({"first": torch.ones(3), "second": torch.full((3,), 2.0)}, tmp_path / "a.safetensors")
    halved = HalfView()
    streamer.load_into(tmp_path, halved)
    assert halved.both.tolist() == [1, 1, 1, 2, 2, 2]


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda device: nn.LazyLinear(4, device=device), "is lazy, and has no shape .* Call the module once"),
        (
            lambda device: _sparse(nn.Linear(3, 4), device),
            "target.* '0.weight' is laid out as torch.sparse_coo",
        ),
    ],
    ids=["lazy", "sparse"],
)
def test_what_cannot_be_filled_is_refused_before_a_byte_is_read(
    checkpoint: Path, change: Any, words: str, device: str
) -> None:
    changed = nn.Sequential(change(device), nn.RMSNorm(4))
    with pytest.raises(streamer.TargetError, match=words):
        streamer.load_into(checkpoint, changed, progress=lambda *_: pytest.fail("read"))


def _sparse(linear: nn.Linear, device: str) -> nn.Linear:
    empty = torch.empty(4, 3, layout=torch.sparse_coo, device=device)
    linear.weight = nn.Parameter(empty, requires_grad=False)
    return linear


class WithTensorState(WithExtraState):
    def get_extra_state(self) -> Any:
        return torch.arange(3.0)


def test_extra_state_that_a_checkpoint_holds_is_named_as_such_regression(tmp_path: Path) -> None:
    saved = nn.Sequential(WithTensorState(3, 4))
    streamer.save_model(saved, tmp_path)
    target = nn.Sequential(WithTensorState(3, 4))
    with pytest.raises(streamer.TargetError, match=r"extra state of modules, .*: '0._extra_state'.*strict=False"):
        streamer.load_into(tmp_path, target)
    assert streamer.load_into(tmp_path, target, strict=False).unexpected == ("0._extra_state",)
    assert torch.equal(target[0].weight, saved[0].weight)


def test_extra_state_is_not_proposed_as_another_name_of_a_weight_regression(tmp_path: Path) -> None:
    save_file({"_extra_state": torch.ones(3), "bias": torch.ones(4)}, tmp_path / "a.safetensors")
    with pytest.raises(streamer.TargetError, match="lacks 1 of the target's tensors: 'weight'") as caught:
        streamer.load_into(tmp_path, nn.Linear(3, 4))
    assert "_extra_state" not in str(caught.value)
