"""``--load-format streamer`` in the real SGLang, on a CPU: what its own loader gives, from a real S3 server.

``make test-serving`` installs SGLang beside this package, and runs them; elsewhere they are skipped.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

if find_spec("sglang") is None:
    pytest.skip("SGLang is installed by make test-serving alone", allow_module_level=True)

from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.layers.quantization.nvfp4_online import NvFp4OnlineConfig
from sglang.srt.layers.quantization.quark.quark import QuarkConfig
from sglang.srt.layers.quantization.quark_int4fp8_moe import QuarkInt4Fp8Config
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.model_loader.loader import DefaultModelLoader, get_model_loader
from sglang.srt.model_loader.utils import should_async_load
from sglang.srt.utils.runai_utils import ObjectStorageModel, is_runai_obj_uri
from sglang_engine import assert_equal, load_config, loaded, started
from tiny_models import save_llama, save_models

import streamer
from streamer.compat import hooks
from streamer.integrations import sglang as plugin
from streamer.integrations.sglang import hooks as own_hooks
from streamer.integrations.sglang import private_names

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path / "cache"))


def tensors_of(args, config, **named):
    """Return what the loader gives to a model."""
    source = DefaultModelLoader.Source.init_new(config, named.pop("model", None))
    return dict(get_model_loader(load_config(args, **named), config)._get_weights_iterator(source))


def updated(model, config, path, load_format="streamer"):
    """Do what a running server does for ``/update_weights_from_disk``."""
    runner = SimpleNamespace(
        device="cpu",
        gpu_id=0,
        model_config=config,
        get_model=lambda: model,
        update_model_fields=lambda model, **named: None,
        _assert_weight_cache_inactive=lambda name: None,
    )
    return WeightUpdater.update_weights_from_disk(runner, str(path), load_format)


def test_a_model_on_s3(url, expected, capsys):
    assert_equal(loaded(url), expected)
    pulled = {name for name in os.listdir(ObjectStorageModel.get_path(url)) if not name.startswith(".")}
    assert pulled == {"config.json", "generation_config.json", "model.safetensors.index.json"}
    assert f"] {url}: 39 tensors" in capsys.readouterr().err  # where SGLang writes its log


def test_a_local_folder(folder, expected):
    assert_equal(loaded(folder), expected)


def test_a_scheme_that_only_streamer_reads_needs_no_flag(folder, expected):
    args, _ = started(folder.as_uri(), load_format="auto")
    assert load_config(args).load_format == "streamer"
    assert_equal(loaded(folder.as_uri(), load_format="auto"), expected)


def test_other_load_formats_are_chosen_as_before(folder, url):
    assert load_config(started(folder, load_format="auto")[0]).load_format == "auto"
    assert load_config(started(url, load_format="auto")[0]).load_format == "runai_streamer"
    assert load_config(started(url, load_format="safetensors")[0]).load_format == "runai_streamer"
    assert load_config(started(folder.as_uri(), load_format="remote")[0]).load_format == "remote"
    assert not is_runai_obj_uri("redis://host/model")
    assert type(get_model_loader(LoadConfig())) is DefaultModelLoader


def test_weights_are_updated_from_another_url(tmp_path, url, expected, s3_server):
    other = save_llama(tmp_path / "other", seed=1)
    there = s3_server.upload_folder(other, "private", "sglang/other")
    _, config = started(url)
    model = loaded(url)
    assert_equal(model, expected)
    assert updated(model, config, there) == (True, "Succeeded to update model weights.")
    assert_equal(model, loaded(other, load_format="safetensors"))


def test_weights_are_updated_from_where_they_were(url, expected):
    _, config = started(url)
    model = loaded(url)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert updated(model, config, config.model_path)[0]
    assert_equal(model, expected)


def test_loaders_pass_no_marked_tensor_to_threads():
    tensor = torch.zeros(1)
    assert should_async_load(tensor)
    private_names.load_in_this_thread(tensor)
    assert vars(tensor) == {"_sglang_runai_streamer_tensor": True}
    assert not should_async_load(tensor)


@pytest.mark.parametrize("is_deferred", [True, False])
def test_parameters_are_filled_as_the_extra_config_says(url, expected, is_deferred, capsys):
    text = json.dumps({"deferred": is_deferred, "storage_options": {}})
    assert_equal(loaded(url, f"--model-loader-extra-config={text}"), expected)
    assert ("straight into parameters" in capsys.readouterr().err) == is_deferred  # where SGLang writes its log


@pytest.mark.parametrize("quantization", ["nvfp4_online", "quark_mxfp4", "quark_int4fp8_moe"])
def test_tensors_are_read_whole_if_sglang_quantizes_each_that_arrives_regression(url, expected, quantization, capsys):
    _, config = started(url)
    model = loaded(url)
    kinds = {  # no kernel of them runs on a CPU
        "nvfp4_online": NvFp4OnlineConfig,
        "quark_mxfp4": lambda: QuarkConfig(online_scheme="quark_mxfp4", hf_config=config.hf_config),
        "quark_int4fp8_moe": QuarkInt4Fp8Config,
    }
    model.quant_config = kinds[quantization]()
    for parameter in model.parameters():
        parameter.data.zero_()
    capsys.readouterr()
    assert updated(model, config, url)[0]
    told = capsys.readouterr().err
    assert "quantizes each of them when it arrives" in told
    assert "straight into parameters" not in told
    assert_equal(model, expected)


def test_an_update_that_finds_nothing_leaves_the_model(url, expected):
    _, config = started(url)
    model = loaded(url)
    done, told = updated(model, config, "s3://private/sglang/none")
    assert not done
    assert "s3://private/sglang/none" in told
    assert_equal(model, expected)


def test_an_update_reads_as_the_command_line_says(folder):
    _, config = started(folder, '--model-loader-extra-config={"memory_limit_byte": 1}')
    with pytest.raises(streamer.OptionError, match="memory_limit_bytes"):
        get_model_loader(LoadConfig(load_format="streamer"), config)


def test_tensors_outlive_the_next_one_and_own_their_memory(folder, url):
    tensors = tensors_of(*started(url))
    whole = streamer.load(folder)
    assert tensors.keys() == whole.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in whole.items())
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == len(tensors)


def test_a_draft_of_several_reads_its_own_layer_alone(folder, tmp_path, capsys):
    tensors = {f"model.mtp.layers.{layer}.a": torch.full((4,), layer) for layer in range(3)} | {"b": torch.ones(4)}
    shutil.copy(folder / "config.json", tmp_path)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    found = tensors_of(*started(tmp_path), draft_model_idx=1)
    assert found.keys() == {"model.mtp.layers.0.a", "b"}
    assert found["model.mtp.layers.0.a"].tolist() == [1] * 4
    assert ": 2 tensors" in capsys.readouterr().err


def test_patterns_of_files(folder, tmp_path):
    both = shutil.copytree(folder, tmp_path / "both")
    (both / "model.safetensors.index.json").unlink()
    (both / "transformer").mkdir()
    for path in both.glob("model-*"):
        path.rename(both / "transformer" / path.name)
    model = SimpleNamespace(allow_patterns_overrides=["absent/*.safetensors", "transformer/*.safetensors"])
    assert tensors_of(*started(both), model=model).keys() == streamer.load(folder).keys()


@pytest.mark.parametrize(
    ("extra", "told"),
    [({"memory_limit_byte": 1}, "memory_limit_bytes"), ({"max_attempts": "many"}, "max_attempts")],
)
def test_a_wrong_extra_config(folder, extra, told):
    with pytest.raises(streamer.OptionError, match=told):
        loaded(folder, f"--model-loader-extra-config={json.dumps(extra)}")


def test_options_come_from_the_extra_config(folder, expected):
    assert_equal(loaded(folder, '--model-loader-extra-config={"memory_limit_bytes": 1048576}'), expected)


def test_checksums_need_a_local_folder(url, folder, tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"files": {"config.json": {"sha256": "0" * 64, "size": 1}}}))
    with pytest.raises(streamer.StreamerError, match="--model-checksum needs a local folder"):
        loaded(url, f"--model-checksum={wrong}")
    with pytest.raises(Exception, match="Integrity check failed"):
        loaded(folder, f"--model-checksum={wrong}")


def test_a_shard_that_is_missing(folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    min(broken.glob("*.safetensors")).unlink()
    with pytest.raises(streamer.ObjectNotFoundError, match="the index names shard"):
        loaded(broken)


def test_no_such_folder(s3_server):
    with pytest.raises(streamer.ObjectNotFoundError, match="s3://private/sglang/none"):
        started("s3://private/sglang/none")


def test_the_private_names_are_there():
    assert {"_MTP_PATTERN", "_filter_mtp_weights", "_get_weights_iterator"} <= vars(DefaultModelLoader).keys()
    assert "_verify_load_format" in vars(LoadConfig)


def hooks_of(monkeypatch, caplog):
    """Register in this SGLang; give the targets of hooks, and what was said."""
    monkeypatch.setattr(hooks, "_REASONS", {})
    hooks._log_misfit.cache_clear()
    registered = []

    def register(target, hook, kind):
        registered.append(target)

    monkeypatch.setattr("sglang.srt.plugins.hook_registry.HookRegistry.register", register)
    with caplog.at_level(logging.INFO, logger="streamer"):
        plugin.register.__wrapped__()
    return registered, [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize("version", ["0.1", "0.5.23.post1", "99.0"])
def test_no_version_is_refused(monkeypatch, caplog, version):
    monkeypatch.setattr(metadata, "version", lambda library: version)
    registered, told = hooks_of(monkeypatch, caplog)
    assert len(registered) == 8
    assert not told


def test_a_name_that_is_gone_is_one_line_that_says_what_to_use_instead(monkeypatch, caplog):
    monkeypatch.delattr(LoadConfig, "_verify_load_format")
    registered, (told,) = hooks_of(monkeypatch, caplog)
    assert not registered
    assert "LoadConfig._verify_load_format" in told
    assert "python -m streamer pull URI DIR, then sglang serve --model-path DIR" in told
    assert "STREAMER_DISABLE_PATCHES=1" in told


def test_a_loader_that_has_changed_is_an_error_that_says_what_to_use_instead(monkeypatch):
    monkeypatch.setattr(hooks, "_REASONS", {})
    monkeypatch.setattr(DefaultModelLoader, "_get_weights_iterator", lambda self: None)
    with pytest.raises(streamer.UsageError, match="python -m streamer pull URI DIR"):
        own_hooks._loader(lambda *_: None, LoadConfig(load_format="streamer"))


def test_an_sglang_that_asks_for_no_weights_is_an_error(monkeypatch):
    monkeypatch.setattr(hooks, "_REASONS", {})
    monkeypatch.setattr(DefaultModelLoader, "load_model", lambda self, **named: None)
    loader = own_hooks._loader(lambda *_: None, LoadConfig(load_format="streamer"))
    with pytest.raises(streamer.UsageError, match="requested no tensor"):
        loader.load_model(model_config=None, device_config=None)


def test_disabled_patches_turn_the_hooks_off(monkeypatch, caplog):
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    assert hooks_of(monkeypatch, caplog) == ([], [])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    ("ranks", "names"), [(2, ["llama", "qwen2", "qwen3", "mixtral", "qwen3_moe"]), (4, ["llama", "mixtral"])]
)
def test_each_rank_gets_its_parameters(ranks, names, models, s3_server, tmp_path):
    urls = {name: s3_server.upload_folder(models[name], "private", f"ranks/{name}") for name in names}
    pairs = [f"{urls[name]}={models[name]}" for name in names]
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "SGLANG_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(here / "sglang_ranks.py"), str(ranks), *pairs]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-5000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    assert len(lines) == ranks * len(names)
    for each in lines:
        assert each["is_complete"], each
        assert not each["different"], each
        assert not each["early"], each
        assert each["staged_bytes"] == 0, each
