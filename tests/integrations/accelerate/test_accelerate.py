"""``load_checkpoint_in_model`` and ``load_checkpoint_and_dispatch`` of the real accelerate: what the originals give."""

from __future__ import annotations

import tempfile
from pathlib import Path

import accelerate
import pytest
import safetensors
import safetensors.torch
import torch
from accelerate import init_empty_weights
from accelerate.utils import modeling
from transformers import LlamaConfig, LlamaForCausalLM

import streamer
from streamer.integrations import read_ahead, shard_handles
from streamer.integrations.accelerate import HOOK

pytestmark = pytest.mark.server

WORDS = torch.arange(1, 17)[None]
CONFIG = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=12,  # layers.10 lies before layers.2 in a file
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=128,
    tie_word_embeddings=False,
)
IN_MEMORY = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
ON_DISK = {"model.layers": "disk", **dict.fromkeys(IN_MEMORY, "cpu")}


@pytest.fixture(scope="session", params=["sharded", "single"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "model"
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).to(torch.bfloat16)
    model.save_pretrained(path, max_shard_size="70KB" if request.param == "sharded" else "1GB")
    assert len(list(path.glob("*.safetensors"))) > 2 or request.param == "single"
    return path


@pytest.fixture(scope="session")
def url(folder, s3_server):
    return s3_server.upload_folder(folder, "private", f"accelerate/{folder.parent.name}")


@pytest.fixture
def s3(s3_server):
    return {"storage_options": s3_server.storage_options()}


@pytest.fixture(autouse=True)
def private(tmp_path_factory, monkeypatch):
    """Where private folders are made; none is left, and the names are accelerate's again."""
    folder = tmp_path_factory.mktemp("private")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())
    assert modeling.safe_open is safetensors.safe_open
    assert modeling.safe_load_file is safetensors.torch.load_file


@pytest.fixture
def streams(monkeypatch):
    """The plans that were read."""
    assert HOOK.fits()  # a dry run reads, too
    made = []

    def noted(*arguments, **named):
        made.append(streamer.Stream(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(read_ahead, "Stream", noted)
    return made


def empty():
    with init_empty_weights():
        return LlamaForCausalLM(CONFIG)


def full():
    return LlamaForCausalLM(CONFIG)


def logits(model):
    with torch.no_grad():
        return model.eval()(WORDS).logits


def assert_same_weights(ours, theirs):
    expected = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert tensor.device == expected[name].device
        assert tensor.is_meta or torch.equal(tensor, expected[name]), name


def assert_one_plan_read_all(streams, url, s3):
    with streamer.stream(url, **s3) as all_tensors:
        names = {name for name, _ in all_tensors}
    assert len(streams) == 1
    assert set(streams[0].names) == names
    assert streams[0].report.requests <= all_tensors.report.requests


@pytest.mark.parametrize(
    "how",
    [{}, {"strict": True}, {"device_map": {"": "cpu"}}, {"device_map": {"": "cpu"}, "dtype": "float16"}],
    ids=str,
)
def test_a_model_is_filled_as_the_original_fills_it_from_a_disk(url, folder, s3, streams, how):
    ours, theirs = ((empty() if "device_map" in how else full()) for _ in range(2))
    streamer.accelerate.load_checkpoint_in_model(ours, url, **how, **s3)
    accelerate.load_checkpoint_in_model(theirs, folder, **how)
    assert_same_weights(ours, theirs)
    assert torch.equal(logits(ours), logits(theirs))
    assert_one_plan_read_all(streams, url, s3)


@pytest.mark.parametrize("device_map", ["auto", "sequential", {"": "cpu"}, None], ids=str)
def test_a_model_is_dispatched(url, folder, s3, streams, device_map):
    how = {"device_map": device_map, "dtype": torch.bfloat16, "no_split_module_classes": ["LlamaDecoderLayer"]}
    ours, theirs = ((empty() if device_map else full()) for _ in range(2))
    ours = streamer.accelerate.load_checkpoint_and_dispatch(ours, url, **how, **s3)
    theirs = accelerate.load_checkpoint_and_dispatch(theirs, folder, **how)
    assert_same_weights(ours, theirs)
    assert torch.equal(logits(ours), logits(theirs))
    assert_one_plan_read_all(streams, url, s3)


def test_what_is_offloaded_to_a_disk_is_all_that_is_written(url, folder, s3, streams, private, tmp_path):
    how = {"device_map": ON_DISK, "offload_state_dict": False, "dtype": torch.bfloat16}
    ours = streamer.accelerate.load_checkpoint_and_dispatch(empty(), url, offload_folder=tmp_path / "ours", **how, **s3)
    theirs = accelerate.load_checkpoint_and_dispatch(empty(), folder, offload_folder=tmp_path / "theirs", **how)
    assert_same_weights(ours, theirs)
    assert torch.equal(logits(ours), logits(theirs))
    written = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    assert len(written) == 9 * CONFIG.num_hidden_layers + 1
    assert not list(private.iterdir())
    assert_one_plan_read_all(streams, url, s3)


def test_offloading_while_the_model_is_filled_works_as_with_the_original(url, folder, s3, private, tmp_path):
    how = {"device_map": ON_DISK}  # offload_state_dict is on
    ours = streamer.accelerate.load_checkpoint_and_dispatch(empty(), url, offload_folder=tmp_path / "a", **how, **s3)
    theirs = accelerate.load_checkpoint_and_dispatch(empty(), folder, offload_folder=tmp_path / "b", **how)
    assert torch.equal(logits(ours), logits(theirs))


def test_a_device_map_of_too_little_memory_offloads(url, folder, s3, tmp_path):
    how = {"device_map": "auto", "max_memory": {"cpu": "150KB"}, "no_split_module_classes": ["LlamaDecoderLayer"]}
    ours = streamer.accelerate.load_checkpoint_and_dispatch(empty(), url, offload_folder=tmp_path / "a", **how, **s3)
    theirs = accelerate.load_checkpoint_and_dispatch(empty(), folder, offload_folder=tmp_path / "b", **how)
    assert ours.hf_device_map == theirs.hf_device_map
    assert "disk" in ours.hf_device_map.values()
    assert torch.equal(logits(ours), logits(theirs))


def test_nothing_of_the_weights_is_in_the_private_folder(url, s3, private, monkeypatch):
    seen = []
    original = accelerate.load_checkpoint_in_model

    def looked_into(model, checkpoint, **how):
        original(model, checkpoint, **how)
        seen.extend(path.name for path in Path(checkpoint).rglob("*"))

    monkeypatch.setattr(accelerate, "load_checkpoint_in_model", looked_into)
    streamer.accelerate.load_checkpoint_in_model(full(), url, **s3)
    assert seen == ["model.safetensors.index.json"]


def test_a_file_and_an_index_are_named_as_well(url, folder, s3):
    name = "model.safetensors.index.json" if (folder / "model.safetensors.index.json").exists() else "model.safetensors"
    for uri, how in ((f"{url}/{name}", s3), (folder / name, {}), (str(folder), {"options": streamer.Options()})):
        ours, theirs = full(), full()
        streamer.accelerate.load_checkpoint_in_model(ours, uri, **how)
        accelerate.load_checkpoint_in_model(theirs, str(folder / name))
        assert_same_weights(ours, theirs)


@pytest.mark.parametrize(("cached", "plans"), [(1.0, 0), (0.5, 1)])
@pytest.mark.parametrize("device_map", [None, {"": "cpu"}, ON_DISK], ids=str)
def test_a_local_file_in_the_page_cache_is_mapped(folder, streams, monkeypatch, tmp_path, cached, plans, device_map):
    monkeypatch.setattr(shard_handles, "cached_fraction", lambda *_: cached)
    ours, theirs = ((empty() if device_map else full()) for _ in range(2))
    for model, load in ((ours, streamer.accelerate.load_checkpoint_in_model), (theirs, None)):
        (load or accelerate.load_checkpoint_in_model)(
            model, folder, device_map=device_map, offload_folder=tmp_path / str(load)
        )
    assert_same_weights(ours, theirs)
    assert len(streams) == plans


@pytest.mark.parametrize("device_map", [None, ON_DISK], ids=str)
def test_what_is_to_be_verified_is_read_by_the_engine(url, folder, s3, streams, monkeypatch, tmp_path, device_map):
    monkeypatch.setenv("STREAMER_VERIFY", "auto")
    how = {"device_map": device_map, "offload_folder": tmp_path}
    for uri, where in ((url, s3), (folder, {})):
        ours, theirs = ((empty() if device_map else full()) for _ in range(2))
        streamer.accelerate.load_checkpoint_in_model(ours, uri, **how, **where)
        accelerate.load_checkpoint_in_model(theirs, folder, **how)
        assert_same_weights(ours, theirs)
    assert len(streams) == 2


def test_little_memory_changes_nothing(url, folder, s3, tmp_path):
    options = streamer.Options(memory_limit_bytes=1)
    for device_map in (None, {"": "cpu"}, ON_DISK):
        ours, theirs = ((empty() if device_map else full()) for _ in range(2))
        how = {"device_map": device_map, "offload_folder": tmp_path}
        streamer.accelerate.load_checkpoint_in_model(ours, url, options=options, **how, **s3)
        accelerate.load_checkpoint_in_model(theirs, folder, **how)
        assert_same_weights(ours, theirs)


def test_shards_that_the_index_names_in_another_order_are_read_in_one_plan(tmp_path, streams):
    tensors = {f"{i}.weight": torch.full((64, 64), float(i)) for i in range(12)}
    for name, tensor in tensors.items():  # 10 before 2 in the order of names, and after it by value
        safetensors.torch.save_file(
            {name: tensor}, tmp_path / f"m-{name.partition('.')[0]}.safetensors", {"format": "pt"}
        )
    options = streamer.Options(memory_limit_bytes=1 << 14)
    ours = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(12)))
    streamer.accelerate.load_checkpoint_in_model(ours, tmp_path, options=options)
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in tensors.items())
    assert len(streams) == 1


def test_a_patch_before_or_during_a_load_is_undone_all_the_same(folder, monkeypatch):
    original = accelerate.load_checkpoint_in_model

    def patched_meanwhile(*arguments, **named):
        streamer.patch()
        original(*arguments, **named)

    monkeypatch.setattr(accelerate, "load_checkpoint_in_model", patched_meanwhile)
    streamer.accelerate.load_checkpoint_in_model(full(), folder)
    assert modeling.safe_load_file is safetensors.torch.load_file  # the patch's
    streamer.unpatch()
    with streamer.patched():
        monkeypatch.undo()
        streamer.accelerate.load_checkpoint_in_model(full(), folder)


def test_weights_for_several_devices_come_from_one_plan(url, folder, s3, streams):
    names = ["model.embed_tokens", "model.norm", "model.rotary_emb", *(f"model.layers.{i}" for i in range(12))]
    how = {"device_map": {**dict.fromkeys(names, "cpu"), "model.layers.3": "meta", "lm_head": "meta"}}
    ours, theirs = empty(), empty()
    streamer.accelerate.load_checkpoint_in_model(ours, url, **how, **s3)
    accelerate.load_checkpoint_in_model(theirs, folder, device_map=dict.fromkeys([*names, "lm_head"], "cpu"))
    expected = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        assert tensor.is_meta == name.startswith(("model.layers.3.", "lm_head")), name
        assert tensor.is_meta or torch.equal(tensor, expected[name]), name
    assert_one_plan_read_all(streams, url, s3)


def test_disabled_patches_turn_the_hook_off(monkeypatch, caplog, folder, streams):
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    ours, theirs = full(), full()
    streamer.accelerate.load_checkpoint_in_model(ours, str(folder))
    accelerate.load_checkpoint_in_model(theirs, folder)
    assert_same_weights(ours, theirs)
    assert not streams
