"""Loads models of several kinds with `streamer.transformers`, and compares each with what the folder gives.

    python transformers_models.py SAVE FOLDER
    python transformers_models.py LOAD FOLDER URL STORAGE_OPTIONS

It is a program, so that it can meet a copy of transformers that is not the installed one.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tiny_models import SIZES, save_mixtral
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import streamer

KINDS = ("llama", "mixture", "tied", "quantised")
HOW = (
    {},
    {"dtype": torch.float32},
    {"dtype": "auto", "device_map": "cpu"},
    {"device_map": {"": "cpu"}, "output_loading_info": True},
)
BLOCK = 16  # rows and columns that share a scale


def save(folder: Path) -> None:
    """Save a model of each kind."""
    for kind in ("llama", "tied"):
        torch.manual_seed(0)
        config = LlamaConfig(num_hidden_layers=2, tie_word_embeddings=kind == "tied", **SIZES)
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / kind, max_shard_size="200KB")
    save_mixtral(folder / "mixture")
    save_quantised(folder / "quantised")


def save_quantised(folder: Path) -> None:
    """Save a Llama whose linear layers are of float8, with a scale for each block."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **SIZES)).to(torch.bfloat16).save_pretrained(folder)
    state = safetensors.torch.load_file(folder / "model.safetensors")
    for name in [each for each in state if each.endswith("_proj.weight")]:
        weight = state[name].float()
        rows, columns = (size // BLOCK for size in weight.shape)
        scale = weight.reshape(rows, BLOCK, columns, BLOCK).abs().amax((1, 3)) / 448
        whole = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        state[name] = (weight / whole).to(torch.float8_e4m3fn)
        state[f"{name}_scale_inv"] = scale
    safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(config))


def compare(kind: str, folder: Path, url: str, storage_options: dict) -> None:
    """Load a model in all ways."""
    for how in HOW:
        ours = streamer.transformers.from_pretrained(AutoModelForCausalLM, url, storage_options=storage_options, **how)
        theirs = AutoModelForCausalLM.from_pretrained(folder, **how)
        if "output_loading_info" in how:
            (ours, our_report), (theirs, their_report) = ours, theirs
            assert our_report == their_report
            assert getattr(ours, "hf_device_map", None) == getattr(theirs, "hf_device_map", None)
        assert type(ours) is type(theirs)
        state, expected = ours.state_dict(), theirs.state_dict()
        assert state.keys() == expected.keys()
        for name, tensor in state.items():
            assert tensor.dtype == expected[name].dtype, (kind, name)
            assert tensor.device == expected[name].device
            assert torch.equal(tensor, expected[name]), (kind, name)
        answer, expected_answer = _answer(ours), _answer(theirs)
        if isinstance(expected_answer, str):
            assert answer == expected_answer
        else:
            assert torch.equal(answer, expected_answer)
        assert ours.config.name_or_path == url
    is_tied = ours.get_output_embeddings().weight is ours.get_input_embeddings().weight
    assert is_tied == (kind == "tied")


def _answer(model: Any) -> torch.Tensor | str:
    """Return what a model says; or its error, as transformers 5.23 makes a quantised model that fails if it is cast."""
    try:
        with torch.no_grad():
            return model(torch.arange(1, 9)[None]).logits
    except RuntimeError as error:
        return str(error)


class Lines(logging.Handler):
    """What `streamer` logs."""

    def emit(self, record: logging.LogRecord) -> None:
        print("LOG", record.levelname, record.getMessage())


def main() -> None:
    folder = Path(sys.argv[2])
    if sys.argv[1] == "SAVE":
        save(folder)
        return
    logging.getLogger("streamer").addHandler(Lines(logging.INFO))
    url, storage_options = sys.argv[3], json.loads(sys.argv[4])
    for kind in KINDS:
        compare(kind, folder / kind, f"{url}/{kind}", storage_options)
        print("EQUAL", kind)


if __name__ == "__main__":
    main()
