"""Saves of transformers, diffusers, accelerate and safetensors to a URL: the files of a local save, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import save_file
from servers.forwarding import Fault, ForwardingProxy
from servers.seaweedfs import SeaweedServer
from tiny_models import SIZES
from tiny_pipelines import make_pipeline
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import streamer
from streamer._pull.record import PullArguments
from streamer._push.push import Target, push
from streamer.compat.safetensors import torch as compat


def llama(*, tied: bool = False) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, tie_word_embeddings=tied, **SIZES)).to(torch.bfloat16)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def place(s3_server: SeaweedServer, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    return f"s3://private/hosts-{tmp_path.name}", s3_server.storage_options()


def fetched(place: tuple[str, dict[str, Any]], tmp_path: Path) -> dict[str, bytes]:
    folder = tmp_path / "fetched"
    push(place[0], Target(str(folder)), PullArguments(storage_options=place[1]), progress=False)
    return content_of(folder)


@pytest.mark.parametrize("how", [{}, {"max_shard_size": "100KB"}, {"max_shard_size": "100KB", "variant": "fp16"}])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_saves_to_s3_what_it_saves_to_a_folder(
    how: dict[str, Any], tied: bool, place: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    model = llama(tied=tied)
    report = streamer.transformers.save_pretrained(model, place[0], storage_options=place[1], **how)
    model.save_pretrained(tmp_path / "local", **how)
    expected = content_of(tmp_path / "local")
    assert fetched(place, tmp_path) == expected
    assert sorted(report.files) == sorted(expected)
    assert report.files[-1].endswith(".json" if "max_shard_size" in how else ".safetensors")
    assert report.bytes == sum(map(len, expected.values()))


def test_a_process_that_writes_nothing_says_so_regression(tmp_path: Path) -> None:
    report = streamer.transformers.save_pretrained(llama(), str(tmp_path), is_main_process=False)
    assert not list(tmp_path.iterdir())
    assert "the library wrote no file" in str(report)


def test_no_weight_is_written_to_a_disk(place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    walk = streamer.integrations.folder_saves.os.walk

    def noting(folder: str) -> Any:
        for each in walk(folder):
            seen.extend(each[2])
            yield each

    monkeypatch.setattr("streamer.integrations.folder_saves.os.walk", noting)
    streamer.transformers.save_pretrained(llama(), place[0], storage_options=place[1], max_shard_size="100KB")
    assert "config.json" in seen
    assert not [name for name in seen if name.endswith(".safetensors")]


def test_a_tokenizer_goes_with_its_model_and_both_load(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    tokenizer = make_pipeline(tmp_path).tokenizer
    model = llama()
    streamer.transformers.save_pretrained(model, place[0], tokenizer, storage_options=place[1])
    loaded = streamer.transformers.from_pretrained(AutoModelForCausalLM, place[0], storage_options=place[1])
    words = streamer.transformers.from_pretrained(AutoTokenizer, place[0], storage_options=place[1])
    assert words("a cat").input_ids == tokenizer("a cat").input_ids
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_a_folder_with_files_is_never_written(place: tuple[str, dict[str, Any]]) -> None:
    streamer.transformers.save_pretrained(llama(), place[0], storage_options=place[1])
    with pytest.raises(streamer.UsageError, match="not empty"):
        streamer.transformers.save_pretrained(llama(), place[0], storage_options=place[1])


@pytest.mark.usefixtures("short_pauses")
def test_a_save_that_fails_leaves_nothing(s3_server: SeaweedServer, place: tuple[str, dict[str, Any]]) -> None:
    def refusing(method: str, path: str) -> Fault:
        return "refuse" if method in ("PUT", "POST") and "00002-of" in path else None

    with ForwardingProxy(s3_server.port, refusing) as proxy:
        through = {**place[1], "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        with pytest.raises(streamer.StorageError, match="not saved"):
            streamer.transformers.save_pretrained(
                llama(),
                place[0],
                storage_options=through,
                options=streamer.Options(block_deadline_s=0.5),
                max_shard_size="100KB",
            )
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(place[0], storage_options=place[1])


@pytest.mark.parametrize(
    ("what", "how", "error"),
    [
        (torch.nn.Linear(2, 2), {}, streamer.UsageError),
        (LlamaForCausalLM, {}, streamer.UsageError),
        (LlamaConfig(), {"push_to_hub": True}, streamer.OptionError),
    ],
)
def test_what_cannot_be_saved_is_reported(
    what: Any, how: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        streamer.transformers.save_pretrained(what, tmp_path / "model", **how)
    assert not (tmp_path / "model").exists()


def test_a_pipeline_of_diffusers_is_saved_to_s3(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path)
    streamer.diffusers.save_pretrained(pipeline, place[0], storage_options=place[1])
    pipeline.save_pretrained(tmp_path / "local")
    assert fetched(place, tmp_path) == content_of(tmp_path / "local")


def test_accelerate_saves_a_model_to_s3(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    import accelerate

    accelerator, model = accelerate.Accelerator(cpu=True), torch.nn.Linear(100, 100)
    how = {"max_shard_size": "20KB"}
    streamer.accelerate.save_model(accelerator, model, place[0], storage_options=place[1], **how)
    accelerator.save_model(model, tmp_path / "local", **how)
    assert fetched(place, tmp_path) == content_of(tmp_path / "local")
    with pytest.raises(streamer.OptionError):
        streamer.accelerate.save_model(accelerator, model, f"{place[0]}-2", safe_serialization=False)


def test_the_names_of_safetensors_save_to_a_path_and_to_a_url(
    place: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    tensors = {"a": torch.ones(3), "b": torch.zeros(2, 2)}
    compat.save_file(tensors, tmp_path / "ours", {"x": "y"})
    save_file(tensors, tmp_path / "theirs", {"x": "y"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    url = f"{place[0]}/one.safetensors"
    for value in (1.0, 2.0):  # a file that is there is replaced, as one on a disk is
        compat.save_file({"a": torch.full((3,), value)}, url, {"x": "y"}, storage_options=place[1])
        assert float(compat.load_file(url, storage_options=place[1])["a"][0]) == value
    with pytest.raises(streamer.UsageError, match=r"must end in \.safetensors"):
        compat.save_file(tensors, f"{place[0]}/one.bin", storage_options=place[1])


def test_save_model_of_safetensors_saves_tied_weights_to_a_url(place: tuple[str, dict[str, Any]]) -> None:
    model, url = llama(tied=True), f"{place[0]}/one.safetensors"
    compat.save_model(model, url, storage_options=place[1])
    other = llama(tied=True)
    for each in other.parameters():
        torch.nn.init.zeros_(each)
    compat.load_model(other, url, storage_options=place[1])
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_metadata_of_a_saved_file_is_what_was_passed(tmp_path: Path) -> None:
    compat.save_file({"a": torch.ones(1)}, f"file://{tmp_path}/a.safetensors", {"step": "3"})
    raw = (tmp_path / "a.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["__metadata__"] == {"format": "pt", "step": "3"}


@pytest.mark.parametrize(
    "named", [{"key": bytes(32)}, {"hide_names": True}, {"overwrite": True}, {"max_shard_bytes": 1}]
)
def test_arguments_that_a_library_would_ignore_are_refused_regression(named: dict[str, Any], tmp_path: Path) -> None:
    (name,) = named
    accelerator = accelerate.Accelerator(cpu=True)
    saves = (
        lambda: streamer.transformers.save_pretrained(llama(), tmp_path / "model", **named),
        lambda: streamer.diffusers.save_pretrained(make_pipeline(tmp_path), tmp_path / "model", **named),
        lambda: streamer.accelerate.save_model(accelerator, llama(), tmp_path / "model", **named),
        lambda: streamer.accelerate.save_state(accelerator, tmp_path / "model", **named),
    )
    for save in saves:
        with pytest.raises(streamer.OptionError, match=f"^{name}= is an argument of streamer.save"):
            save()
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("named", [{"key": bytes(32)}, {"verify": "auto"}])
def test_arguments_of_a_load_are_refused_by_from_pretrained_regression(named: dict[str, Any], tmp_path: Path) -> None:
    (name,) = named
    llama().save_pretrained(tmp_path)
    for cls in (AutoModelForCausalLM, AutoConfig):
        with pytest.raises(streamer.OptionError, match=f"^{name}= is an argument of streamer.load"):
            streamer.transformers.from_pretrained(cls, tmp_path, **named)
    with pytest.raises(streamer.OptionError, match=f"^{name}= is an argument of streamer.load"):
        streamer.diffusers.from_pretrained(DiffusionPipeline, tmp_path, **named)
