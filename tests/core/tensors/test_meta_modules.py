"""`load_into` gives memory to a module on the meta device: weights and buffers, ties, and what it was told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from safetensors.torch import save_file
from torch import nn

import streamer


class Model(nn.Module):
    """Parameters, buffers, a buffer that is never saved, and an output that is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("positions", torch.arange(5.0), persistent=False)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight


def on_meta() -> Model:
    with torch.device("meta"):
        return Model()


@pytest.fixture
def trained() -> Model:
    torch.manual_seed(1)
    model = Model()
    model.norm.running_mean.normal_()
    return model


@pytest.fixture
def checkpoint(trained: Model, tmp_path: Path) -> Path:
    weights = {name: tensor.detach().clone() for name, tensor in trained.state_dict().items()}
    del weights["output.weight"]  # as savers write tied weights
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def assert_filled(model: nn.Module, trained: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name]), name


def test_a_module_on_meta_gets_weights_and_buffers(checkpoint: Path, trained: Model) -> None:
    model = on_meta()
    report = streamer.load_into(checkpoint, model)
    assert_filled(model, trained)
    assert isinstance(model.hidden.weight, nn.Parameter)
    assert model.hidden.weight.requires_grad
    assert model.norm.num_batches_tracked.dtype == torch.int64
    (remark,) = report.remarks
    assert remark.startswith("these buffers stay on the meta device, as their module does not save them: positions.")
    assert report.missing == report.unexpected == ()


def test_what_stays_on_meta_is_in_the_text_of_the_report_and_in_a_warning_regression(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = streamer.load_into(checkpoint, on_meta())
    left = "these buffers stay on the meta device, as their module does not save them: positions. Make the module under"
    assert f"; note: {left} accelerate.init_empty_weights()" in str(report)
    assert [each.getMessage() for each in caplog.records] == [f"{checkpoint}: {report.remarks[0]}"]
    caplog.clear()
    with init_empty_weights():
        model = Model()
    with pytest.raises(streamer.TargetError, match=r"'output\.weight'\. Tie them first .*tie_weights\(\)"):
        streamer.load_into(checkpoint, model)
    model.output.weight = model.embedding.weight
    report = streamer.load_into(checkpoint, model)
    assert report.remarks == ()
    assert not caplog.records
    assert model.positions.tolist() == [0, 1, 2, 3, 4]
    more = on_meta()
    more.register_parameter("more", nn.Parameter(torch.empty(4, 4, device="meta")))
    assert "note: these tensors of the target stay on the meta device: more" in str(
        streamer.load_into(checkpoint, more, strict=False)
    )


@pytest.fixture
def half(trained: Model, tmp_path: Path) -> Path:
    """The checkpoint in bfloat16, but for its norm and its counter."""
    weights = {
        name: tensor if "norm" in name else tensor.to(torch.bfloat16) for name, tensor in trained.state_dict().items()
    }
    del weights["output.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def test_auto_gives_a_meta_module_the_dtypes_of_the_checkpoint_regression(half: Path, trained: Model) -> None:
    with pytest.raises(streamer.TargetError, match=r'dtype="auto" to give the target the dtypes of the checkpoint'):
        streamer.load_into(half, on_meta())
    model = on_meta()
    streamer.load_into(half, model, dtype="auto")
    assert isinstance(model.hidden.weight, nn.Parameter)
    assert torch.equal(model.hidden.weight, trained.hidden.weight.to(torch.bfloat16))
    assert torch.equal(model.norm.running_mean, trained.norm.running_mean)
    assert model.norm.num_batches_tracked.dtype == torch.int64
    assert model.output.weight is model.embedding.weight


def test_auto_leaves_the_dtypes_of_what_has_memory_and_of_what_cannot_be_cast(half: Path, tmp_path: Path) -> None:
    with pytest.raises(streamer.TargetError, match=r'Pass dtype="target" to cast it$'):
        streamer.load_into(half, Model(), dtype="auto")
    save_file({"weight": torch.ones(4, 4, dtype=torch.int8)}, tmp_path / "quantized.safetensors")
    with torch.device("meta"):
        linear = nn.Linear(4, 4, bias=False)
    with pytest.raises(streamer.TargetError, match=r"is torch\.int8, its target torch\.float32"):
        streamer.load_into(tmp_path / "quantized.safetensors", linear, dtype="auto")
    assert linear.weight.is_meta


def test_auto_casts_nothing_elsewhere(half: Path) -> None:
    assert streamer.load(half, dtype="auto")["hidden.weight"].dtype == torch.bfloat16
    assert streamer.load(half, dtype="auto", framework="np", names="norm.*")["norm.weight"].dtype == "f4"
    with streamer.open(half, dtype="float32") as opened:
        assert opened.get_tensor("hidden.weight").dtype == torch.float32
        assert opened.get_tensor("hidden.weight", dtype="auto").dtype == torch.bfloat16


def test_tied_weights_stay_one_tensor(checkpoint: Path) -> None:
    model = on_meta()
    streamer.load_into(checkpoint, model)
    assert model.output.weight is model.embedding.weight


def test_ties_may_be_stored_twice_if_their_bytes_are_equal(trained: Model, tmp_path: Path) -> None:
    weights = {name: tensor.detach().clone() for name, tensor in trained.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors")
    model = on_meta()
    streamer.load_into(tmp_path, model)
    assert_filled(model, trained)
    weights["output.weight"] += 1
    save_file(weights, tmp_path / "model.safetensors")
    model = on_meta()
    with pytest.raises(streamer.TargetError, match=r"'embedding.weight' and 'output.weight' are the same memory"):
        streamer.load_into(tmp_path, model)
    assert model.embedding.weight.is_meta


def test_what_has_memory_is_filled_in_place_beside_what_has_none(checkpoint: Path, trained: Model) -> None:
    model = on_meta()
    model.hidden.to_empty(device="cpu")
    weight = model.hidden.weight
    streamer.load_into(checkpoint, model)
    assert model.hidden.weight is weight
    assert_filled(model, trained)


def test_a_parameter_keeps_the_attributes_of_its_owner(checkpoint: Path) -> None:
    model = on_meta()
    model.hidden.weight.requires_grad_(False)
    model.hidden.weight.weight_loader = print  # as servers of models do
    streamer.load_into(checkpoint, model)
    assert not model.hidden.weight.requires_grad
    assert model.hidden.weight.weight_loader is print


def test_a_cast_is_made_on_the_way(checkpoint: Path, trained: Model) -> None:
    model = on_meta().to(torch.bfloat16)
    streamer.load_into(checkpoint, model, dtype="bfloat16")
    assert torch.equal(model.hidden.weight, trained.hidden.weight.to(torch.bfloat16))


def test_a_load_that_fails_leaves_the_module_as_it_was(checkpoint: Path) -> None:
    model = on_meta()

    def fail(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streamer.load_into(checkpoint, model, progress=fail)
    assert all(parameter.is_meta for parameter in model.parameters())


class Strange(nn.Parameter):
    pass


def _another_shape(model: Model) -> Any:
    model.hidden.weight = nn.Parameter(torch.empty(4, 5, device="meta"))


def _a_class_of_its_own(model: Model) -> Any:
    model.hidden.weight = Strange(torch.empty(4, 4, device="meta"))


def _a_name_more(model: Model) -> Any:
    model.register_parameter("more", nn.Parameter(torch.empty(4, 4, device="meta")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_another_shape, r"has shape \[4, 4\], its target \[4, 5\]"),
        (_a_class_of_its_own, "is a Strange on the meta device"),
        (_a_name_more, "the checkpoint lacks 1 of the target's tensors: 'more'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_replaced(checkpoint: Path, change: Any, words: str) -> None:
    model = on_meta()
    change(model)
    with pytest.raises(streamer.TargetError, match=words):
        streamer.load_into(checkpoint, model)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_device_is_for_what_has_none(checkpoint: Path, trained: Model) -> None:
    model = on_meta()
    streamer.load_into(checkpoint, model, device="cpu")
    assert_filled(model, trained)
    with pytest.raises(streamer.UsageError, match="device= is for targets on the meta device"):
        streamer.load_into(checkpoint, model, device="cpu")


def test_a_mapping_of_meta_tensors_is_refused_because_it_would_not_show_the_loaded_ones(checkpoint: Path) -> None:
    with pytest.raises(streamer.TargetError, match="on the meta device"):
        streamer.load_into(checkpoint, on_meta().state_dict(), strict=False)


@pytest.mark.parametrize("strict", [True, False])
def test_the_prefix_between_the_names_is_suggested(checkpoint: Path, strict: bool) -> None:
    wrapped = nn.ModuleDict({"model": on_meta()})
    with pytest.raises(streamer.TargetError, match=r"target's names begin with 'model.': load into its submodule"):
        streamer.load_into(checkpoint, wrapped, strict=strict)
    with pytest.raises(streamer.TargetError, match="a compiled module: load into its attribute _orig_mod"):
        streamer.load_into(checkpoint, nn.ModuleDict({"_orig_mod": on_meta()}), strict=strict)


def test_a_checkpoint_of_something_else_is_no_success(tmp_path: Path) -> None:
    save_file({"lora.A": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(streamer.TargetError, match=r"no tensor of the target's: it holds 'lora.A'.* The target has"):
        streamer.load_into(tmp_path, on_meta(), strict=False)
