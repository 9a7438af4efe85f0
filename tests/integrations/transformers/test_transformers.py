"""``from_pretrained`` of the real transformers, from a real S3 server and from a disk: what the original gives."""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest
import safetensors
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import streamer
from streamer.backends.s3.store import S3Store
from streamer.integrations import read_ahead, shard_handles
from streamer.integrations.library_calls import Location
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.transformers.hooks import weights_hook

pytestmark = pytest.mark.server

WORDS = torch.arange(1, 17)[None]


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=12,  # layers.10 lies before layers.2 in a file
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).to(dtype)


def tokenizer():
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


@pytest.fixture(scope="session", params=["sharded", "single"])
def folder(request, tmp_path_factory):
    """A model of bfloat16 with its tokenizer, in one file or in several."""
    path = tmp_path_factory.mktemp(request.param) / "model"
    model = llama(torch.bfloat16)
    model.generation_config = GenerationConfig(max_new_tokens=7)
    model.save_pretrained(path, max_shard_size="200KB" if request.param == "sharded" else "1GB")
    tokenizer().save_pretrained(path)
    assert len(list(path.glob("*.safetensors"))) > 2 or request.param == "single"
    return path


@pytest.fixture(scope="session")
def url(folder, s3_server):
    return s3_server.upload_folder(folder, "private", f"transformers/{folder.parent.name}")


@pytest.fixture(autouse=True)
def _the_name_is_theirs_again():
    yield
    gc.collect()
    for name, module in list(sys.modules.items()):
        if name.startswith(("transformers.", "accelerate.")):
            assert vars(module).get("safe_open", safetensors.safe_open) is safetensors.safe_open


@pytest.fixture
def streams(monkeypatch):
    """The numbers of tensors of the plans that were read."""
    assert weights_hook("transformers").fits()  # a dry run reads, too
    counts = []

    def noted(checkpoint, wanted, *others, **named):
        counts.append(len(wanted))
        return streamer.Stream(checkpoint, wanted, *others, **named)

    monkeypatch.setattr(read_ahead, "Stream", noted)
    return counts


def assert_same_model(ours, theirs):
    assert type(ours) is type(theirs)
    with torch.no_grad():
        assert torch.equal(ours(WORDS).logits, theirs(WORDS).logits)
    expected = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    "how",
    [{}, {"dtype": "auto"}, {"dtype": torch.float32}, {"device_map": "cpu"}, {"device_map": "auto", "dtype": "auto"}],
    ids=str,
)
def test_a_model_from_s3_equals_the_original_from_a_disk(url, folder, s3_server, streams, how):
    ours = streamer.transformers.from_pretrained(
        AutoModelForCausalLM, url, storage_options=s3_server.storage_options(), **how
    )
    theirs = AutoModelForCausalLM.from_pretrained(folder, **how)
    assert_same_model(ours, theirs)
    assert streams == [len(theirs.state_dict())]  # one read of all tensors
    assert ours.generation_config.max_new_tokens == 7
    assert ours.name_or_path == ours.config.name_or_path == url


def test_a_folder_is_listed_once(url, s3_server, monkeypatch):
    listed, find = [], S3Store.find
    monkeypatch.setattr(S3Store, "find", lambda store, prefix: listed.append(prefix) or find(store, prefix))
    streamer.transformers.from_pretrained(AutoModelForCausalLM, url, storage_options=s3_server.storage_options())
    assert len(listed) == 1


@pytest.mark.parametrize(("cached", "options"), [(1.0, streamer.Options()), (0.5, None)], ids=["options", "cold"])
def test_a_local_folder_is_read_by_the_engine(folder, streams, monkeypatch, cached, options):
    monkeypatch.setattr(shard_handles, "cached_fraction", lambda *_: cached)
    ours = streamer.transformers.from_pretrained(LlamaForCausalLM, folder, options=options)
    assert_same_model(ours, LlamaForCausalLM.from_pretrained(folder))
    assert len(streams) == 1


def test_a_local_folder_in_the_page_cache_is_mapped_by_safetensors(folder, streams, monkeypatch):
    monkeypatch.setattr(shard_handles, "cached_fraction", lambda *_: 1.0)
    ours = streamer.transformers.from_pretrained(LlamaForCausalLM, folder)
    assert_same_model(ours, LlamaForCausalLM.from_pretrained(folder))
    assert not streams


def test_a_local_folder_that_is_to_be_verified_is_read_by_the_engine(folder, streams, monkeypatch):
    monkeypatch.setenv("STREAMER_VERIFY", "auto")
    ours = streamer.transformers.from_pretrained(LlamaForCausalLM, folder)
    assert_same_model(ours, LlamaForCausalLM.from_pretrained(folder))
    assert len(streams) == 1


def test_little_memory_changes_nothing(url, folder, s3_server, streams):
    options = streamer.Options(memory_limit_bytes=1)
    ours = streamer.transformers.from_pretrained(
        AutoModelForCausalLM, url, storage_options=s3_server.storage_options(), options=options
    )
    assert_same_model(ours, AutoModelForCausalLM.from_pretrained(folder))
    assert len(streams) == 1


def test_loading_in_one_thread_changes_nothing(url, folder, s3_server, streams, monkeypatch):
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    ours = streamer.transformers.from_pretrained(AutoModelForCausalLM, url, storage_options=s3_server.storage_options())
    assert_same_model(ours, AutoModelForCausalLM.from_pretrained(folder))
    assert len(streams) == 1


def test_tensors_that_the_model_does_not_want_are_no_obstacle(tmp_path):
    state = {**llama().state_dict(), "model.layers.0.unknown.weight": torch.ones(1 << 18)}
    llama().save_pretrained(tmp_path)
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    options = streamer.Options(memory_limit_bytes=1)
    ours, report = streamer.transformers.from_pretrained(
        LlamaForCausalLM, tmp_path, options=options, output_loading_info=True
    )
    assert report["unexpected_keys"] == {"model.layers.0.unknown.weight"}
    assert_same_model(ours, LlamaForCausalLM.from_pretrained(tmp_path))


def test_a_tokenizer_and_a_configuration_come_from_the_url_too(folder, tmp_path, s3_server):
    url = s3_server.upload_folder(folder, "private", "transformers/all/sub")
    options = s3_server.storage_options()
    words = streamer.transformers.from_pretrained(AutoTokenizer, url, storage_options=options)
    assert words("hello world")["input_ids"] == [1, 2]
    words.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")("world")["input_ids"] == [2]
    config = streamer.transformers.from_pretrained(
        AutoConfig, url.removesuffix("/sub"), subfolder="sub", storage_options=options
    )
    assert config.num_hidden_layers == 12


@pytest.mark.parametrize("size", ["200KB", "1GB"])
def test_a_variant_is_chosen(tmp_path, size):
    llama().save_pretrained(tmp_path)
    other = LlamaForCausalLM(llama().config)
    other.save_pretrained(tmp_path, variant="fp16", max_shard_size=size)
    ours = streamer.transformers.from_pretrained(LlamaForCausalLM, tmp_path, variant="fp16")
    assert_same_model(ours, LlamaForCausalLM.from_pretrained(tmp_path, variant="fp16"))


@pytest.mark.parametrize(
    "how",
    [
        {"device_map": "auto", "max_memory": {"cpu": "800KB"}},
        {"device_map": {"model": "cpu", "lm_head": "disk"}},
    ],
    ids=str,
)
def test_what_is_left_on_disk_is_read_from_the_url_while_the_model_is_used(url, folder, s3_server, how, tmp_path):
    options = s3_server.storage_options()
    ours = streamer.transformers.from_pretrained(LlamaForCausalLM, url, storage_options=options, **how)
    theirs = LlamaForCausalLM.from_pretrained(folder, **how)
    assert ours.hf_device_map == theirs.hf_device_map
    assert "disk" in ours.hf_device_map.values()
    with torch.no_grad():
        assert torch.equal(ours(WORDS).logits, theirs(WORDS).logits)
    with pytest.warns(UserWarning, match="offloaded modules"):
        ours.save_pretrained(tmp_path)
    assert_same_model(LlamaForCausalLM.from_pretrained(tmp_path), LlamaForCausalLM.from_pretrained(folder))


def test_every_name_that_transformers_has_for_safe_open_is_routed(folder, monkeypatch):
    original, seen = LlamaForCausalLM.from_pretrained, []

    def looked_around(path, **named):
        seen.extend(
            name
            for name, module in list(sys.modules.items())
            if name.startswith("transformers.") and vars(module).get("safe_open") is safetensors.safe_open
        )
        return original(path, **named)

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", looked_around)
    looked_around(folder)
    assert "transformers.modeling_utils" in seen
    seen.clear()
    streamer.transformers.from_pretrained(LlamaForCausalLM, folder)
    assert not seen


def test_the_private_folder_goes_with_the_model(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = streamer.transformers.from_pretrained(LlamaForCausalLM, folder)
    assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.rglob("*.safetensors"))
    del ours
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def _unpatched(monkeypatch):
    """Give back afterwards what transformers leaves empty, for all later models, if two of its own loads overlap."""
    for name in ("init_weights", "tie_weights"):
        monkeypatch.setattr(transformers.PreTrainedModel, name, getattr(transformers.PreTrainedModel, name))
    for name, function in vars(torch.nn.init).items():
        if callable(function):
            monkeypatch.setattr(torch.nn.init, name, function)
    monkeypatch.setattr(torch, "linspace", torch.linspace)


@pytest.mark.usefixtures("_unpatched")
def test_other_threads_load_from_disks_meanwhile(url, folder, s3_server):
    found = {}

    def load(name, loader, *args, **named):
        found[name] = loader(*args, **named)

    ours = (streamer.transformers.from_pretrained, LlamaForCausalLM, url)
    how = {"dtype": torch.float32}  # transformers makes any other one the default of all threads
    from_s3 = {"storage_options": s3_server.storage_options(), **how}
    threads = [
        threading.Thread(target=load, args=(0, *ours), kwargs=from_s3),
        threading.Thread(target=load, args=(1, *ours), kwargs=from_s3),
        threading.Thread(target=load, args=(2, LlamaForCausalLM.from_pretrained, folder), kwargs=how),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in found.values():
        assert_same_model(model, found[2])
    assert len(found) == 3


def test_a_patch_before_or_during_a_load_is_undone_all_the_same(folder, monkeypatch):
    original = LlamaForCausalLM.from_pretrained

    def patched_meanwhile(*args, **named):
        streamer.patch()
        return original(*args, **named)

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", patched_meanwhile)
    streamer.transformers.from_pretrained(LlamaForCausalLM, folder)
    assert transformers.modeling_utils.safe_open is safetensors.safe_open  # the patch's
    streamer.unpatch()
    with streamer.patched():
        monkeypatch.undo()
        streamer.transformers.from_pretrained(LlamaForCausalLM, folder)


CODE = """
from transformers import LlamaForCausalLM
class OurModel(LlamaForCausalLM):
    pass
"""


def test_code_is_pulled_only_with_trust_remote_code(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    model = llama()
    model.config.auto_map = {"AutoModelForCausalLM": "code.OurModel"}
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model/code.py").write_text(CODE)
    ours = streamer.transformers.from_pretrained(AutoModelForCausalLM, tmp_path / "model", trust_remote_code=True)
    assert type(ours).__name__ == "OurModel"
    with closing(ModelFolder(Location(uri=str(tmp_path / "model")))) as folder:
        pulled = {path.name for path in Path(folder.path).iterdir()}
    assert pulled == {"config.json", "generation_config.json", "model.safetensors.index.json"}
    assert not Path(folder.path).exists()
