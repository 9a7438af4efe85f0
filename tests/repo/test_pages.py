"""Pages are true: their examples run one after another and give what the pages say, and what they name exists."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from pathlib import Path

import pytest
import torch
from comparison import assert_same
from group_ranks import ranks_tell, values
from huggingface_hub import constants
from pages import ROOT, Names, blocks, run_examples, text_of
from safetensors.torch import save, save_file
from servers.hub import TOKEN, HubServer
from servers.one_file import one_file, place_of
from servers.scripted_http import ScriptedServer
from transformers import LlamaConfig, LlamaForCausalLM

import streamer
from streamer import _native
from streamer._commands.cache import cache
from streamer.core.format.manifest import parse_manifest
from streamer.core.options.options import Options
from streamer.plugins.formats import formats_for


def masked(text: str) -> str:
    """Replace times and speeds, which differ in each run, and leave out what bounded a load."""
    text = re.sub(r", bound by [^0-9]+ \d+ %(, [a-z ]+ \d+ %)*", "", text)
    return re.sub(r"[\d.]+ (s|[kMG]B/s)\b", r"# \1", re.sub(r"[\d.]+ [kMG]B/s", "# GB/s", text)).strip()


def test_examples_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_examples("docs/start.md", {"__name__": "start"})
    assert masked(capsys.readouterr().out) == "\n".join(masked(each) for each in blocks("docs/start.md", "text"))
    assert not names["model"].head.weight.is_meta


def test_examples_of_the_guide_and_its_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {"embed.weight": torch.eye(32)[:, :16].contiguous(), "head.weight": torch.eye(32)[:, :16].contiguous()}
    save_file(weights, tmp_path / "model.safetensors")
    names = run_examples("docs/guide.md", {"folder": str(tmp_path)})
    printed = capsys.readouterr().out
    assert f"<Checkpoint {tmp_path}: 2 tensors, 4.10 kB in 1 shard>" in printed
    assert "(32, 16) torch.float32 2048" in printed
    assert names["rows"].shape == (4, 16)
    assert names["halves"]["embed.weight"].dtype == torch.float16
    assert set(names["tensors"]) == {"embed.weight", "head.weight"}
    assert "absent.safetensors: " in printed

    server = names["server"]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}", data=json.dumps([3, 5]).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            assert json.load(answer) == [3, 5]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_examples_of_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer(save({"weight": torch.rand(64, 64)})) as server:
        names = run_examples("docs/traces.md", {"uri": server.url})
    printed = capsys.readouterr().out
    assert printed.endswith(f"{names['facts']['advice']}\n")
    assert names["facts"]["is_complete"] is True


def test_examples_of_shared_loads(capsys: pytest.CaptureFixture[str]) -> None:
    whole = {f"{part}.o_proj.weight": torch.rand(64, 64) for part in "ab"}
    with ScriptedServer(save(whole)) as server:
        names = run_examples("docs/share.md", {"uri": server.url, "rank": 1, "ranks": 4})
    assert_same(names["tensors"], whole)
    assert_same(names["alone"], whole)
    assert_same(names["mine"], {name: each[:, 16:32].contiguous() for name, each in whole.items()})
    size = 2 * 64 * 64 * 4
    assert capsys.readouterr().out == f"{size} bytes, {size} read here, 0 read by other processes\n"


@pytest.mark.slow
def test_examples_of_groups_on_two_ranks(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=64, tie_word_embeddings=False)).save_pretrained(tmp_path)
    page = "docs/groups.md"
    (ranks,) = ranks_tell(2, ("page", {"llama": str(tmp_path), "examples": blocks(page), "page": str(ROOT / page)}))
    for each in values(ranks):
        assert each["is_filled"]
        assert each["shapes"]["model.layers.0.mlp.down_proj.weight"] == [32, 24]
        assert each["shapes"]["model.layers.0.mlp.up_proj.weight"] == [24, 32]
        assert each["shapes"]["model.norm.weight"] == [32]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:Use 'content=:DeprecationWarning")
def test_examples_of_saving(tmp_path: Path, hub_server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(blocks("docs/saving.md")) == 7
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    names = run_examples("docs/saving.md", {"target": str(tmp_path / "model"), "repository": "hf://page/saved"})
    copied = streamer.load(tmp_path / "model-bf16", verify="manifest")
    assert {tensor.dtype for tensor in copied.values()} == {torch.bfloat16}
    assert torch.equal(streamer.load(tmp_path / "model-one.safetensors")["0.bias"], names["model"][0].bias)
    assert (tmp_path / "model-dcp/.metadata").exists()
    assert (tmp_path / "model-optimizer/.metadata").exists()
    assert len([*(tmp_path / "model-bf16").glob("model-*-of-*.safetensors")]) == 2


def test_the_example_of_the_cache(tmp_path: Path) -> None:
    assert len(blocks("docs/cache.md")) == 1
    with one_file() as server:
        names = run_examples("docs/cache.md", {"uri": place_of("http", server)[0], "folder": tmp_path / "cache"})
        assert_same(names["second"], names["first"])
    assert _native.finish_cache_writes(10)
    assert list(tmp_path.glob("cache/v1/*/object.json"))


def test_commands_and_options_of_the_cache_exist() -> None:
    page = text_of("docs/cache.md")
    assert set(re.findall(r"streamer cache (\w+)", page)) == set(cache.commands)
    assert {"cache_dir", "cache_bytes"} <= set(Options.__dataclass_fields__)
    for option in re.findall(r"STREAMER_(\w+)", page):
        assert option.lower() in Options.__dataclass_fields__


def test_examples_of_formats(tmp_path: Path) -> None:
    assert len(blocks("docs/formats.md")) == 5
    names = run_examples("docs/formats.md", {"folder": str(tmp_path), "__name__": "page"})
    assert torch.equal(names["rows"], torch.ones(2, 8))
    assert torch.equal(streamer.load(tmp_path / "converted")["layer.weight"], torch.ones(4, 8))
    suite = names["TestJson"]()
    tests = [name for name in dir(suite) if name.startswith("test_")]
    assert len(tests) == 6
    for name in tests:
        getattr(suite, name)()


def test_the_table_lists_every_format() -> None:
    formats = formats_for()
    for each in formats:
        row = next(line for line in text_of("docs/formats.md").splitlines() if line.startswith(f"| {each.name} |"))
        assert all(f"`*{suffix}`" in row or f"`{suffix}`" in row for suffix in each.suffixes), row
    assert [each.name for each in formats]


def test_examples_of_verification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"lm_head.weight": torch.arange(1000.0)}, tmp_path / "model.safetensors")
    assert len(blocks("docs/verify.md")) == 3
    for number in range(3):
        names: Names = {"streamer": streamer, "folder": tmp_path}
        run_examples("docs/verify.md", names, slice(number, number + 1))
    printed = capsys.readouterr().out
    assert "model.safetensors.manifest.json" in printed
    assert "not verified: its storage keeps no digest of it" in printed


def test_the_manifest_of_the_page_is_valid() -> None:
    (shown,) = blocks("docs/verify.md", "json")
    assert parse_manifest(json.dumps(json.loads(shown)).encode(), uri="docs/verify.md").shards
