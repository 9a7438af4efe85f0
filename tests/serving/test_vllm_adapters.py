"""A LoRA adapter named by a URL, in the real vLLM: its resolvers, its register of models, its reader of adapters."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch

pytest.importorskip("vllm", reason="vLLM is installed by make test-serving alone")

from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import ADAPTER, save_adapter
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.resolver import LoRAResolverRegistry

import streamer
from streamer.integrations.serving import weights_location
from streamer.integrations.vllm import configuration

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    return save_adapter(tmp_path_factory.mktemp("lora") / "adapter")


@pytest.fixture(scope="module")
def adapter_url(adapter, s3_server):
    return s3_server.upload_folder(adapter, "private", "loras/tiny")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(configuration, "get_cache_dir", lambda: str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_LORA_URL", "s3://private/loras")


def resolved(name):
    """Return what our resolver, out of vLLM's registry, says to a name."""
    return asyncio.run(LoRAResolverRegistry.get_resolver("streamer").resolve_lora("any", name))


def models_of(added):
    """Return vLLM's own register of models, whose engine is not started."""

    async def add_lora(request):
        added.append(request)

    client = SimpleNamespace(model_config=None, renderer=None, input_processor=None, add_lora=add_lora)
    client.model_config = SimpleNamespace(model="base", max_model_len=64)
    return OpenAIServingModels(client, [SimpleNamespace(name="base", model_path="base")])


def test_a_request_for_a_url_loads_the_adapter_into_vllm(adapter, adapter_url):
    added = []
    models = models_of(added)
    request = asyncio.run(models.resolve_lora(adapter_url))
    assert (request.lora_name, added) == (adapter_url, [request])
    modules = {"q_proj", "v_proj"}
    peft = PEFTHelper.from_local_dir(request.lora_path, max_position_embeddings=64)
    taken = LoRAModel.from_local_checkpoint(request.lora_path, modules, peft, lora_model_id=1, device="cpu")
    saved = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    assert len(taken.loras) == 2
    for name, each in taken.loras.items():
        assert each.lora_a.equal(saved[f"base_model.model.{name}.lora_A.weight"].to(each.lora_a.dtype))


def test_a_name_is_a_folder_below_the_first_url_of_the_variable(adapter_url, monkeypatch):
    by_url = resolved(adapter_url)
    monkeypatch.setenv("STREAMER_LORA_URL", f"{adapter_url.rpartition('/')[0]}/ s3://private/others")
    by_name = resolved("tiny")
    assert (by_name.lora_name, by_name.lora_path) == ("tiny", by_url.lora_path)
    assert by_name.lora_int_id == resolved("tiny").lora_int_id != by_url.lora_int_id
    assert resolved(adapter_url).lora_path == by_url.lora_path


@each_row("name", ["../secret", "a/../../b", ".", "a?b", "a%2f..", "", "/etc"])
def test_with_the_variable_a_client_names_nothing_else(name):
    assert resolved(name) is None


@each_row(
    "above",
    ["", "s3://private/other", "s3://private/loras/tiny", "s3://private/lora", "loras", "https://private/loras"],
)
def test_a_url_that_is_not_below_the_variable_is_refused_regression(above, adapter_url, monkeypatch):
    monkeypatch.setenv("STREAMER_LORA_URL", above)
    with pytest.raises(streamer.UsageError, match=rf"{adapter_url}.*STREAMER_LORA_URL.*Set it for the server"):
        asyncio.run(models_of([]).resolve_lora(adapter_url))  # a ValueError, which vLLM answers with 400


@each_row("inside", ["with space", "tiny?versionId=1", "/tiny", "a%2f..", ".hidden", "../other"])
def test_a_name_below_the_variable_with_other_characters_is_not_called_elsewhere_regression(inside):
    with pytest.raises(streamer.UsageError, match=r"this name of a LoRA adapter has other characters\. Below a URL"):
        resolved(f"s3://private/loras/{inside}")


def test_a_url_may_end_with_a_slash_regression(adapter_url):
    assert resolved(f"{adapter_url}/").lora_path == resolved(adapter_url).lora_path


@given(st.text("ab.-_/%?#@:\\\n ~", max_size=12), st.sampled_from(["", "s3://private/loras/", "s3://others/"]))
def test_any_name_stays_below_the_variable(inside, above):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMER_LORA_URL", "s3://private/loras s3://others")
        try:
            url = weights_location.adapter_url(above + inside)
        except streamer.UsageError:
            url = None
    inside = inside.removesuffix("/") if above else inside
    is_plain = all(re.fullmatch(r"[ab_-][ab._-]*", part) for part in inside.split("/"))
    assert url == ((above or "s3://private/loras/") + inside if is_plain else None)


def test_unknown_names_are_left_to_other_resolvers(adapter_url, monkeypatch):
    assert resolved("other") is None
    monkeypatch.delenv("STREAMER_LORA_URL")
    assert resolved("tiny") is None
    monkeypatch.setenv("STREAMER_LORA_URL", "s3://private/loras")
    answer = asyncio.run(models_of([]).resolve_lora(f"{adapter_url}/nothing"))
    assert isinstance(answer, ErrorResponse)
    assert answer.error.code == HTTPStatus.NOT_FOUND


@each_row(
    "change",
    [{"r": 0}, {"r": "4"}, {"base_model_name_or_path": None}, {"r": None}],
)
def test_what_is_no_adapter_is_an_error_that_says_what_to_name(change, adapter, tmp_path, s3_server):
    folder = save_adapter(tmp_path / "adapter")
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER | change))
    url = s3_server.upload_folder(folder, "private", f"loras/{tmp_path.name}")
    with pytest.raises(streamer.FormatError, match=rf"{re.escape(url)}.*is no LoRA adapter.*save_pretrained"):
        resolved(url)


@each_row(
    "text, said",
    [
        (None, "without adapter_config.json"),
        ("{nope", r"JSONDecodeError\(.*\) in adapter_config.json"),
        ("{}", r"KeyError\('base_model_name_or_path'\) in adapter_config.json"),
    ],
)
def test_an_error_names_the_file_of_an_adapter_that_is_wrong(text, said, tmp_path, s3_server):
    folder = save_adapter(tmp_path / f"adapter{len(said)}")
    (folder / "adapter_config.json").unlink()
    if text is not None:
        (folder / "adapter_config.json").write_text(text)
    url = s3_server.upload_folder(folder, "private", f"loras/wrong{len(said)}")
    with pytest.raises(streamer.FormatError, match=f"{url}: this is no LoRA adapter: {said}"):
        resolved(url)


def test_an_adapter_without_weights_is_an_error(tmp_path, s3_server):
    folder = save_adapter(tmp_path / "adapter")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(streamer.FormatError, match="without weights"):
        resolved(s3_server.upload_folder(folder, "private", "loras/empty"))


def test_a_new_version_of_an_adapter_is_a_new_folder_regression(tmp_path, s3_server):
    folder = save_adapter(tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    contents, folders = [], []
    for factor in (1, 2, 0.5):  # the last version is the first one again
        tensors = {name: tensor * factor for name, tensor in safetensors.torch.load_file(file).items()}
        safetensors.torch.save_file(tensors, file)
        contents.append(file.read_bytes())
        folders.append(resolved(s3_server.upload_folder(folder, "private", "loras/changing")).lora_path)
    assert [folders.index(each) for each in folders] == [0, 1, 0]
    assert [Path(each, file.name).read_bytes() for each in folders] == contents


def test_a_node_pulls_an_adapter_once(adapter, s3_server):
    url = s3_server.upload_folder(adapter, "private", "loras/once")
    requests = []
    threads = [threading.Thread(target=lambda: requests.append(resolved(url))) for _ in range(3)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    assert len({each.lora_path for each in requests}) == 1
    assert len(requests) == 3
    assert {each.name for each in Path(requests[0].lora_path).iterdir() if not each.name.startswith(".")} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
