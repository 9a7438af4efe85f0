"""``/load_lora_adapter`` with a URL, in the real SGLang on a CPU: the classes by which its manager opens an adapter."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest
import safetensors.torch
import torch

if find_spec("sglang") is None:
    pytest.skip("SGLang is installed by make test-serving alone", allow_module_level=True)

from sglang.srt.lora.lora_config import LoRAConfig
from sglang.srt.lora.lora_manager import LoRAManager
from sglang.srt.lora.lora_registry import LoRARef, LoRARegistry
from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang_engine import load_config, started
from tiny_models import save_adapter
from transformers import LlamaConfig

import streamer

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_LORA_URL", "s3://private/loras s3://private/serving")


def manager_of(folder, url):
    """Return SGLang's manager of adapters, of a server whose model is read by this package."""
    args, _ = started(url, "--model-loader-extra-config", '{"storage_options": {}}')
    manager = LoRAManager.__new__(LoRAManager)
    manager.__dict__.update(
        device=torch.device("cpu"),
        load_config=load_config(args),
        base_hf_config=LlamaConfig.from_pretrained(folder),
        base_model=torch.nn.Module(),
        lora_backend=None,
        speculative_algorithm=None,
        attn_dp_enabled=False,
        configs={},
        loras={},
        lora_refs={},
        num_pinned_loras=0,
    )
    return manager


@pytest.mark.parametrize("is_local", [False, True])
def test_the_manager_loads_an_adapter_with_our_load_format_regression(folder, url, tmp_path, s3_server, is_local):
    adapter = save_adapter(tmp_path / "adapter")
    manager = manager_of(folder, url)
    path = str(adapter) if is_local else s3_server.upload_folder(adapter, "private", "loras/sglang")
    reference = LoRARef(lora_name="tiny", lora_path=path, pinned=False)
    result = manager.load_lora_adapter(reference)
    assert (result.success, result.error_message) == (True, "")
    assert result.loaded_adapters == {"tiny": reference.lora_path}
    saved = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    found = manager.loras[reference.lora_id].layers[0].weights
    q_a = found["base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight"]
    assert q_a[:4].equal(saved["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"])


def test_an_error_says_what_to_name(folder, url):
    result = manager_of(folder, url).load_lora_adapter(LoRARef(lora_name="base", lora_path=url))
    assert not result.success
    assert "save_pretrained" in result.error_message


def test_a_new_version_of_an_adapter_is_a_new_folder_regression(tmp_path, s3_server):
    adapter = save_adapter(tmp_path / "adapter")
    first = LoRAConfig(s3_server.upload_folder(adapter, "private", "loras/changing")).path
    config = adapter / "adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 8', '"lora_alpha": 4'))
    second = LoRAConfig(s3_server.upload_folder(adapter, "private", "loras/changing"))
    assert second.path != first
    assert second.hf_config["lora_alpha"] == 4
    assert LoRAConfig(first).hf_config["lora_alpha"] == 8


class Registry(LoRARegistry):
    """Registers in this process alone."""

    def __init__(self):
        super().__init__()
        self.names = {}

    async def register(self, reference):
        self.names[reference.lora_name] = reference.lora_path


def test_all_ranks_get_the_version_that_was_there_at_the_request_regression(folder, url, tmp_path, s3_server):
    adapter = save_adapter(tmp_path / "adapter")
    there = s3_server.upload_folder(adapter, "private", "loras/ranks")
    config = adapter / "adapter_config.json"
    ranks = [manager_of(folder, url) for _ in range(2)]

    async def passed_to_ranks(request):
        results = []
        for rank in ranks:
            results.append(rank.load_lora_adapter(request.to_ref()))
            config.write_text(config.read_text().replace('"lora_alpha": 8', '"lora_alpha": 4'))
            s3_server.upload_folder(adapter, "private", "loras/ranks")  # between the ranks
        return results

    manager = TokenizerManager.__new__(TokenizerManager)
    manager.__dict__.update(
        auto_create_handle_loop=lambda: None,
        lora_update_lock=asyncio.Lock(),
        pending_lora_unloads={},
        lora_registry=Registry(),
        lora_ref_cache={},
        update_lora_adapter_communicator=passed_to_ranks,
    )
    started(url, "--enable-lora", "--max-lora-rank=16", "--lora-target-modules=all")
    # SGLang loads "again" from where "first" is, as it does with an adapter that it has evicted.
    for name, alphas in ("first", [8, 8]), ("again", [8, 8]), ("new", [4, 4]):
        lora_path = manager.lora_registry.names["first"] if name == "again" else there
        request = LoadLoRAAdapterReqInput(lora_name=name, lora_path=lora_path)
        result = asyncio.run(manager.load_lora_adapter(request))
        assert (result.success, result.error_message) == (True, "")
        assert [rank.configs[request.lora_id].hf_config["lora_alpha"] for rank in ranks] == alphas
    missing = LoadLoRAAdapterReqInput(lora_name="nothing", lora_path="s3://private/loras/nothing")
    assert "save_pretrained" in asyncio.run(manager.load_lora_adapter(missing)).error_message
    with pytest.raises(streamer.UsageError, match=r"no longer of version 0123.*Load it again"):
        LoRAConfig(f"{there}#version=0123")
    with pytest.raises(streamer.UsageError, match="other characters"):
        LoRAConfig(f"{there}#version=../other")


def test_a_local_folder_stays_where_it_is(tmp_path):
    adapter = save_adapter(tmp_path / "adapter")
    assert LoRAConfig(str(adapter)).path == str(adapter)
    with pytest.raises(streamer.StorageError):
        LoRAConfig("s3://private/loras/nothing")


def test_a_url_that_is_not_below_the_variable_is_refused_regression(monkeypatch):
    monkeypatch.delenv("STREAMER_LORA_URL")
    with pytest.raises(streamer.UsageError, match=r"s3://private/loras/tiny.*STREAMER_LORA_URL.*Set it for the server"):
        LoRAConfig("s3://private/loras/tiny")
