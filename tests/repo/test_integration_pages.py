"""The pages of ``docs/integrations``: their code runs."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from servers.seaweedfs import SeaweedServer
from tiny_pipelines import assert_same_pipeline, assert_same_weights, make_pipeline
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import streamer
import streamer.compat.runai

PAGES = Path(__file__).resolve().parents[2] / "docs/integrations"


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_index_names_every_page() -> None:
    listed = set(re.findall(r"\]\(([a-z-]+\.md)\)", (PAGES / "README.md").read_text()))
    assert listed == {path.name for path in PAGES.glob("*.md")} - {"README.md"}


def test_patches(capsys: pytest.CaptureFixture[str]) -> None:
    for example in examples("README.md"):
        exec(compile(example, "README.md", "exec"), {})
    assert "'safetensors.safe_open'" in capsys.readouterr().out


def test_safetensors(capsys: pytest.CaptureFixture[str]) -> None:
    model = {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}
    fsspec.filesystem("memory").pipe_file("/page/model.safetensors", safetensors.torch.save(model))
    names = {"url": "memory://page/model.safetensors", "torch": torch}
    for example in examples("safetensors.md"):
        exec(compile(example, "safetensors.md", "exec"), names)
    reported = capsys.readouterr().out
    assert "weight [3, 4]" in reported
    assert "weight torch.Size([2, 4])" in reported
    assert names["rows"].shape == (2, 4)
    assert (names["missing"], names["unexpected"]) == (set(), [])


def test_arrays() -> None:
    model = {"embed": torch.ones(4, 3, dtype=torch.bfloat16), "bias": torch.arange(3)[1:].int()}
    fsspec.filesystem("memory").pipe_file("/arrays/model.safetensors", safetensors.torch.save(model))
    names: dict[str, Any] = {"url": "memory://arrays/model.safetensors"}
    for example in examples("arrays.md"):
        exec(compile(example, "arrays.md", "exec"), names)
    assert str(names["weights"]["embed"].dtype) == str(names["params"]["embed"].dtype) == "bfloat16"
    assert names["params"]["bias"].tolist() == [1, 2]
    assert names["params"]["embed"].sharding is names["rows"]


def test_runai(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))  # install() appends to it
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    model = {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}
    fsspec.filesystem("memory").pipe_file("/runai/model.safetensors", safetensors.torch.save(model))
    names: dict[str, Any] = {"url": "memory://runai"}
    for example in examples("runai.md"):
        exec(compile(example, "runai.md", "exec"), names)
    assert "librunai_file_streamer.so" in capsys.readouterr().out
    assert torch.equal(names["tensors"]["weight"], model["weight"])
    assert names["tensors"].keys() == model.keys()
    assert names["SafetensorsStreamer"] is streamer.compat.runai.SafetensorsStreamer


@pytest.mark.server
def test_fsspec(s3_server: SeaweedServer, tmp_path: Path) -> None:
    content = bytes(range(256))
    s3_server.put("private", "page/bytes", content)
    options, target = s3_server.storage_options(), tmp_path / "copy"
    names: dict[str, Any] = {"key": "private/page/bytes", "options": options, "target": str(target)}
    for example in examples("fsspec.md"):
        exec(compile(example, "fsspec.md", "exec"), names)
    assert (names["first"], names["whole"]) == (content[:16], content)
    assert names["parts"] == [content[:16], content[100:116]]
    assert target.read_bytes() == names["same"].cat_file("private/page/bytes") == content


def test_transformers(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path)
    small = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
    LlamaForCausalLM(small).save_pretrained(tmp_path)
    fsspec.filesystem("memory").put(str(tmp_path), "/transformers", recursive=True)
    names: dict[str, Any] = {"url": "memory://transformers", "AutoConfig": AutoConfig}
    for example in examples("transformers.md"):
        exec(compile(example, "transformers.md", "exec"), names)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path)
    words_of_one = torch.tensor([names["tokenizer"]("hello")["input_ids"]])
    assert torch.equal(names["model"](words_of_one).logits, theirs(words_of_one).logits)
    assert names["config"].hidden_size == 32


def test_accelerate(tmp_path: Path) -> None:
    small = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
    LlamaForCausalLM(small).save_pretrained(tmp_path)
    fsspec.filesystem("memory").put(str(tmp_path), "/accelerate", recursive=True)
    names: dict[str, Any] = {
        "url": "memory://accelerate",
        "config": small,
        "AutoModelForCausalLM": AutoModelForCausalLM,
    }
    for example in examples("accelerate.md"):
        exec(compile(example, "accelerate.md", "exec"), names)
    theirs, words = LlamaForCausalLM.from_pretrained(tmp_path), torch.ones(1, 3, dtype=torch.int64)
    for ours in (names["model"], names["other"].eval()):
        assert torch.equal(ours(words).logits, theirs(words).logits)


def test_diffusers(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")  # needs Python 3.11
    make_pipeline(tmp_path).save_pretrained(tmp_path / "pipeline")
    fsspec.filesystem("memory").put(str(tmp_path / "pipeline"), "/diffusers", recursive=True)
    names: dict[str, Any] = {"url": "memory://diffusers", "torch": torch, "AutoencoderKL": diffusers.AutoencoderKL}
    for example in examples("diffusers.md"):
        exec(compile(example, "diffusers.md", "exec"), names)
    theirs = diffusers.DiffusionPipeline.from_pretrained(tmp_path / "pipeline")
    assert_same_pipeline(names["pipeline"], theirs)
    assert_same_weights(names["vae"], theirs.vae)
    assert names["pipeline"].unet is names["unet"]


class StateDictAdapter:
    """Stands for torchtitan's."""


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, model = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    dcp.save({"model": saved.state_dict()}, checkpoint_id=tmp_path / "step")
    shutil.copytree(tmp_path / "step", tmp_path / "truncated")
    for path in (tmp_path / "truncated").glob("*.distcp"):
        path.write_bytes(path.read_bytes()[:-1])
    safetensors.torch.save_file(saved.state_dict(), tmp_path / "model.safetensors")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "step"), "/dcp", recursive=True)
    memory.put(str(tmp_path / "model.safetensors"), "/dcp-hf/model.safetensors")
    names: dict[str, Any] = {
        "url": "memory://dcp",
        "hf_url": "memory://dcp-hf",
        "truncated_url": str(tmp_path / "truncated"),
        "model": model,
        "hf_state": {name: torch.zeros_like(each) for name, each in saved.state_dict().items()},
        "torch": torch,
        "StateDictAdapter": StateDictAdapter,
    }
    for example in examples("dcp.md"):
        exec(compile(example, "dcp.md", "exec"), names)
    for name, tensor in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
        assert torch.equal(names["hf_state"][name], tensor)
    adapter: Any = StateDictAdapter()
    assert isinstance(adapter.get_hf_storage_reader("memory://dcp-hf"), streamer.dcp.HuggingFaceStorageReader)
    assert adapter.get_hf_storage_reader("memory://dcp-hf", True).target_dtype == torch.float32
    reported = capsys.readouterr().out
    assert "memory://dcp" in reported
    assert "TruncatedError" in reported
