"""`load_into` where names differ, or only some are there: prefixes, new names, and what the report says of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import streamer

STORED = {
    "model.norm.weight": torch.arange(3.0),
    "model.layers.0.weight": torch.ones(2),
    "lm_head.weight": torch.ones(4),
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_file(STORED, tmp_path / "model.safetensors")
    return tmp_path


def targets(*names: str) -> dict[str, torch.Tensor]:
    """Tensors for some of the stored ones, by a part of their names."""
    return {name: torch.zeros_like(next(t for stored, t in STORED.items() if stored.endswith(name))) for name in names}


def test_a_prefix_chooses_a_module_and_takes_its_name_away(checkpoint: Path) -> None:
    inner = targets("norm.weight", "layers.0.weight")
    report = streamer.load_into(checkpoint, inner, prefix="model.")
    assert torch.equal(inner["norm.weight"], STORED["model.norm.weight"])
    assert (report.tensors, report.bytes) == (2, 20)
    assert report.unexpected == ()  # nobody asked for the others


def test_names_are_chosen_before_the_prefix_is_taken_away(checkpoint: Path) -> None:
    inner = targets("norm.weight", "layers.0.weight")
    assert streamer.load_into(checkpoint, inner, prefix="model", names="model.norm.*").tensors == 1
    assert not inner["layers.0.weight"].any()


def test_modules_are_renamed_by_a_mapping_or_a_function(checkpoint: Path) -> None:
    renamed = {f"net.{name}": each for name, each in targets("norm.weight", "layers.0.weight").items()}
    for rename in (
        {"model": "net", "lm_head": None},
        lambda name: name.replace("model.", "net.") if name[0] == "m" else None,
    ):
        for each in renamed.values():
            each.zero_()
        streamer.load_into(checkpoint, renamed, rename=rename)
        assert torch.equal(renamed["net.norm.weight"], STORED["model.norm.weight"])


def test_a_module_on_meta_is_filled_under_its_own_names(checkpoint: Path) -> None:
    wrapped = nn.ModuleDict({"module": nn.RMSNorm(3, device="meta")})
    streamer.load_into(checkpoint, wrapped, prefix="model.norm", rename={"": "module"}, device={"module": "cpu"})
    assert torch.equal(wrapped["module"].weight, STORED["model.norm.weight"])
    again = nn.ModuleDict({"module": nn.RMSNorm(3, device="meta")})
    with pytest.raises(streamer.OptionError, match=r"none for tensor 'module.weight'"):
        streamer.load_into(checkpoint, again, prefix="model.norm", rename={"": "module"}, device={"model": "cpu"})


def test_two_tensors_for_one_name_are_refused_before_a_byte_is_read(checkpoint: Path) -> None:
    inner = targets("norm.weight")
    with pytest.raises(streamer.TargetError, match=r"would both be 'norm.weight'"):
        streamer.load_into(checkpoint, inner, rename=lambda _: "norm.weight")
    assert not inner["norm.weight"].any()
    streamer.load_into(checkpoint, inner, rename=lambda _: "norm.weight", names="model.norm.weight")
    assert inner["norm.weight"].any()


def test_a_renamed_tensor_without_a_target_is_reported_under_both_names(checkpoint: Path) -> None:
    with pytest.raises(
        streamer.TargetError, match=r"lacks 2 of .*'lm_head.weight', 'model.layers.0.weight as x.0.weight'"
    ):
        streamer.load_into(checkpoint, {"n.weight": torch.zeros(3)}, rename={"model.norm": "n", "model.layers": "x"})


def test_the_advice_says_that_names_cannot_be_paired(checkpoint: Path) -> None:
    with pytest.raises(streamer.TargetError, match=r"rename= pairs one with one; .*from_pretrained"):
        streamer.load_into(checkpoint, {"norm.fused": torch.zeros(3)})


def test_what_names_left_out_is_not_lacking(checkpoint: Path) -> None:
    all_of_them = {name: torch.zeros_like(tensor) for name, tensor in STORED.items()}
    report = streamer.load_into(checkpoint, all_of_them, names="model.*")
    assert report.missing == report.unexpected == ()
    assert all_of_them["model.norm.weight"].any()
    assert not all_of_them["lm_head.weight"].any()
    with pytest.raises(streamer.TargetError, match="the checkpoint lacks 1 of the target's tensors: 'more'"):
        streamer.load_into(checkpoint, {**all_of_them, "more": torch.zeros(1)}, names="model.*")


def test_what_is_tied_to_what_names_left_out_is_not_lacking(checkpoint: Path) -> None:
    head = torch.zeros(4)
    tied = {
        **{name: torch.zeros_like(tensor) for name, tensor in STORED.items()},
        "lm_head.weight": head,
        "embed": head,
    }
    streamer.load_into(checkpoint, tied, names="model.*")


def test_the_report_lists_what_stayed_alone(checkpoint: Path) -> None:
    inner = {**targets("norm.weight"), "more": torch.zeros(1)}
    report = streamer.load_into(checkpoint, inner, prefix="model", strict=False)
    assert report.missing == ("more",)
    assert report.unexpected == ("model.layers.0.weight",)
    assert str(report).endswith(", 1 missing, 1 unexpected")
    reported = json.loads(json.dumps(report.to_dict()))
    assert (reported["missing"], reported["unexpected"]) == (["more"], ["model.layers.0.weight"])


def test_a_module_under_another_name_is_reported_with_both_names(checkpoint: Path) -> None:
    with pytest.raises(
        streamer.TargetError, match=r"'model.norm.scale'. It holds 'model.norm.weight', which the target"
    ):
        streamer.load_into(
            checkpoint, {**targets("model.layers.0.weight", "lm_head.weight"), "model.norm.scale": torch.zeros(3)}
        )


def test_a_prefix_of_the_other_side_is_suggested(checkpoint: Path) -> None:
    with pytest.raises(streamer.TargetError, match=r"checkpoint's names begin with 'model.': pass prefix='model.'"):
        streamer.load_into(checkpoint, targets("norm.weight", "layers.0.weight"))
    with pytest.raises(streamer.UnknownTensorError, match=r"rename={'': 'module'} puts it before them"):
        streamer.load_into(checkpoint, {f"module.{name}": each for name, each in STORED.items()}, prefix="module.")


@pytest.mark.parametrize("verify", ["manifest", "auto"])
def test_renamed_tensors_are_verified(checkpoint: Path, verify: Any) -> None:
    streamer.write_manifest(checkpoint)
    renamed = {f"net.{name}": torch.zeros_like(tensor) for name, tensor in STORED.items()}
    report = streamer.load_into(checkpoint, renamed, rename={"": "net"}, verify=verify)
    assert report.is_verified == (verify == "manifest")
    assert all(torch.equal(renamed[f"net.{name}"], tensor) for name, tensor in STORED.items())
