"""What users of other loading software reported in public, tried here. Each test names the report."""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from servers.background import served
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from transformers import LlamaConfig, LlamaForCausalLM

import streamer
from streamer.compat.safetensors import _handle
from streamer.compat.safetensors.torch import load_file as our_load_file
from streamer.integrations import shard_handles
from streamer.integrations.library_calls import Location
from streamer.integrations.model_folder import ModelFolder

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}


# vllm-project/vllm#54230: an index assigns each tensor to a shard, and other shards hold stale tensors of these names


@pytest.fixture
def stale(tmp_path: Path) -> tuple[Path, LlamaForCausalLM]:
    """A model in shards of which the first and the last hold stale tensors of one another's names."""
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    shard_of = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    first, last = min(shard_of.values()), max(shard_of.values())
    for shard, other in ((first, last), (last, first)):
        tensors = load_file(tmp_path / shard)
        name = next(name for name, at in shard_of.items() if at == other)
        save_file({**tensors, name: torch.full_like(model.state_dict()[name], 7)}, tmp_path / shard, {"format": "pt"})
    return tmp_path, model


def assert_same(found: Any, model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        assert torch.equal(found[name], tensor), name


def test_stale_tensors_of_other_shards_are_not_loaded(stale: tuple[Path, LlamaForCausalLM]) -> None:
    folder, model = stale
    assert_same(streamer.load(folder), model)
    target = LlamaForCausalLM(model.config)
    streamer.load_into(folder, target)
    assert_same(target.state_dict(), model)


@pytest.mark.parametrize("cached", [1.0, 0.0], ids=["warm", "cold"])
def test_stale_tensors_are_not_loaded_by_transformers_and_accelerate_regression(
    stale: tuple[Path, LlamaForCausalLM], cached: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_handles, "cached_fraction", lambda *_: cached)
    folder, model = stale
    assert_same(streamer.transformers.from_pretrained(LlamaForCausalLM, folder).state_dict(), model)
    target = LlamaForCausalLM(model.config)
    streamer.accelerate.load_checkpoint_in_model(target, folder)
    assert_same(target.state_dict(), model)


# ultralytics/ultralytics#25748: what is loaded under inference_mode can neither be trained nor written afterwards


@pytest.fixture
def weight(tmp_path: Path) -> Path:
    save_file({"weight": torch.ones(3, 4)}, tmp_path / "model.safetensors")
    return tmp_path


def trained(module: nn.Module) -> torch.Tensor:
    (module.weight * 2).sum().backward()
    torch.optim.SGD(module.parameters(), 0.5).step()
    return module.weight


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_a_module_that_is_filled_under_inference_mode_can_be_trained_regression(weight: Path, place: str) -> None:
    with torch.device(place):
        module = nn.Linear(4, 3, bias=False)
    with torch.inference_mode():
        streamer.load_into(weight, module)
    assert torch.equal(trained(module), torch.zeros(3, 4))


def test_tensors_that_are_loaded_under_inference_mode_may_be_written_regression(weight: Path) -> None:
    with torch.inference_mode(), streamer.open(weight) as opened, streamer.stream(weight) as stream:
        loaded = [
            streamer.load(weight)["weight"],
            streamer.load(weight, dtype="bfloat16")["weight"],
            opened["weight"][...],
            opened["weight"][[0, 1]],
            next(stream)[1],
        ]
    for each in loaded:
        assert not each.is_inference()
        each.mul_(2)


# huggingface/transformers#41038: the checkpoint has only the other name of tied weights


def test_tied_weights_are_filled_by_whichever_name_the_checkpoint_has(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    target = LlamaForCausalLM(model.config)
    streamer.load_into(tmp_path, target)
    assert_same(target.state_dict(), model)
    assert_same(streamer.transformers.from_pretrained(LlamaForCausalLM, tmp_path).state_dict(), model)
    with torch.device("meta"):
        target = LlamaForCausalLM(model.config)
    streamer.load_into(tmp_path, target)
    assert torch.equal(target.model.embed_tokens.weight, model.lm_head.weight)


# GeeeekExplorer/nano-vllm#272: a folder whose name ends as that of a file


def test_a_checkpoint_in_a_folder_that_is_named_like_a_file_is_loaded_regression(tmp_path: Path) -> None:
    folder = tmp_path / "llama.safetensors"
    folder.mkdir()
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    assert list(streamer.load(folder)) == ["a"]


@pytest.mark.server
def test_a_checkpoint_under_a_prefix_that_is_named_like_a_file_is_loaded_regression(
    tmp_path: Path, s3_server: Any
) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    url = s3_server.upload_folder(tmp_path, "private", "reports/llama.safetensors")
    assert list(streamer.load(url, storage_options=s3_server.storage_options())) == ["a"]


def test_a_folder_in_the_place_of_a_shard_is_an_error(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "other.safetensors").mkdir()
    with pytest.raises(streamer.ObjectNotFoundError, match=r"other\.safetensors: This is a folder"):
        streamer.load(tmp_path)
    with pytest.raises(streamer.ObjectNotFoundError, match="This is a folder"):
        streamer.load(tmp_path / "other.safetensors")


# huggingface/huggingface_hub#4730: after Ctrl-C, threads of a pool go on reading, and the process waits for them


class StallingFolder(BaseHTTPRequestHandler):
    """Serves the folder `folder`, and of weights the first 64 KiB alone: whoever wants more waits for `stopping`."""

    folder: Path
    asked, stopping = threading.Event(), threading.Event()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if not name:
            return self.answer(200, "".join(f'<a href="{each.name}">-</a>' for each in self.folder.iterdir()).encode())
        data = (self.folder / name).read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            return self.answer(200, data)
        begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        if begin >= 1 << 14 and name.endswith(".safetensors"):
            self.asked.set()
            self.stopping.wait(60)
        return self.answer(206, data[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(data)}", ETag='"1"')

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content_Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        for name, value in {**headers, "Content_Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def stalling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.ones(1 << 20), "b": torch.ones(1 << 20)}, tmp_path / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(StallingFolder, "folder", tmp_path, raising=False)
    for each in (StallingFolder.asked, StallingFolder.stopping):
        each.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), StallingFolder)
    with served(server):
        yield f"http://127.0.0.1:{server.server_port}/model/"
        StallingFolder.stopping.set()


@pytest.mark.parametrize("is_stopped_first", [True, False])
def test_threads_that_outlive_a_load_read_on_no_more_regression(stalling: str, is_stopped_first: bool) -> None:
    folder = ModelFolder(Location(uri=stalling))
    errors: list[Exception] = []

    def read() -> None:
        try:
            folder.opened(f"{folder.path}/model.safetensors").get_slice("a")[...]
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert StallingFolder.asked.wait(60)
    if is_stopped_first:  # as when an error leaves from_pretrained: the thread begins a read of its own
        folder.stop()
    folder.close()
    thread.join(60)
    assert not thread.is_alive()
    assert [isinstance(error, streamer.LoadCancelledError) for error in errors] == [True]


# foundation-model-stack/fastsafetensors#88 and #96: metadata that are there, and empty


@pytest.mark.parametrize("metadata", [{}, None])
def test_empty_metadata_are_none(tmp_path: Path, metadata: Any) -> None:
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": metadata, "a": tensor}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert streamer.load(file)["a"].tolist() == load_file(file)["a"].tolist() == [0]
    assert streamer.open(file).metadata() == {}


# safetensors/safetensors#195 and #545: a file system, as mergerfs, that maps no files


def test_a_file_that_cannot_be_mapped_is_read_regression(weight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unmapped(*_: Any, **__: Any) -> None:  # stands for a mount that needs more rights than tests have
        raise OSError("No such device (os error 19)")  # as safetensors tells it, without an errno

    monkeypatch.setattr(_handle, "their_safe_open", unmapped)
    with streamer.patched():
        loaded = safetensors.torch.load_file(weight / "model.safetensors")
    assert torch.equal(loaded["weight"], torch.ones(3, 4))


# safetensors/safetensors#762 and bghira/SimpleTuner#2714: tensors are written to the file that they came from


def read_alone(file: Path) -> dict[str, Any]:
    return {"weight": streamer.open(file)["weight"][...]}


@pytest.mark.parametrize("load", [streamer.load, our_load_file, read_alone])
def test_tensors_can_be_saved_in_the_place_of_their_file(weight: Path, load: Callable[[Path], Any]) -> None:
    file = weight / "model.safetensors"
    tensors = load(file)
    save_file(tensors, file)
    assert torch.equal(tensors["weight"], torch.ones(3, 4))
    assert torch.equal(load_file(file)["weight"], torch.ones(3, 4))


# coreweave/tensorizer#206: a dtype for a model's weights discards the imaginary part of its complex buffers


def test_complex_tensors_stay_complex(tmp_path: Path) -> None:
    tensors = {"frequencies": torch.randn(3, dtype=torch.complex64), "weight": torch.randn(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = streamer.load(tmp_path, dtype="bfloat16")
    assert torch.equal(loaded["frequencies"], tensors["frequencies"])
    assert loaded["weight"].dtype == torch.bfloat16


# run-ai/runai-model-streamer#43 and #126: many tensors without bytes; scales of F8_E8M0


def test_tensors_without_bytes_and_scales_are_loaded(tmp_path: Path) -> None:
    tensors = {f"empty.{number}": torch.zeros(0, 4) for number in range(300)}
    tensors["scale"] = torch.arange(120, 128, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = streamer.load(tmp_path)
    assert loaded["scale"].view(torch.uint8).tolist() == list(range(120, 128))
    assert {loaded[name].shape for name in tensors if name != "scale"} == {(0, 4)}


# pytorch/pytorch#192485: checkpoints of torch.distributed.checkpoint with tensors of integers and truth values


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_whole_numbers_of_a_distributed_checkpoint_are_loaded(tmp_path: Path) -> None:
    tensors = {"quantized": torch.arange(6, dtype=torch.int8), "mask": torch.tensor([True, False]), "f": torch.ones(2)}
    dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(str(tmp_path)), no_dist=True)
    found = {name: torch.zeros_like(each) for name, each in tensors.items()}
    dcp.load(found, storage_reader=streamer.dcp.StorageReader(tmp_path), no_dist=True)
    assert all(torch.equal(found[name], each) for name, each in tensors.items())
