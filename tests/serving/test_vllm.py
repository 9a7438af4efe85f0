"""``--load-format streamer`` in the real vLLM, on a CPU: what its own loader gives, from a real S3 server.

``make test-serving`` installs vLLM beside this package, and runs them; elsewhere they are skipped.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

pytest.importorskip("vllm", reason="vLLM is installed by make test-serving alone")

from tiny_models import save_llama, save_mixtral
from vllm.config import set_current_vllm_config
from vllm.config.load import LoadConfig
from vllm.model_executor import model_loader
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import compute_local_expert_ids
from vllm.model_executor.model_loader.reload.inplace import reload_weights
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.transformers_utils import runai_utils
from vllm_engine import assert_equal, config_of, created, fill, loaded, save_state

import streamer
from streamer.compat import hooks
from streamer.integrations import vllm as plugin
from streamer.integrations.serving import weights_stream
from streamer.integrations.serving.planned_reads import PlannedCheckpoint
from streamer.integrations.serving.weights_stream import for_place
from streamer.integrations.vllm import configuration

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(configuration, "get_cache_dir", lambda: str(tmp_path / "cache"))


def test_the_private_names_are_there():
    of_default = DefaultModelLoader(LoadConfig())
    assert {"_encoder_only_lm_prefixes", "_encoder_only_weights_mapper"} <= vars(of_default).keys()
    assert {"_render_default_pattern", "_filter_subtensors"} <= vars(ShardedStateLoader).keys()


@pytest.fixture
def _names_are_tried_again(monkeypatch):
    """And what was registered before is there afterwards."""
    monkeypatch.setattr(hooks, "_REASONS", {})
    monkeypatch.setattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", dict(model_loader._LOAD_FORMAT_TO_MODEL_LOADER))
    hooks._log_misfit.cache_clear()


def registered(caplog):
    """Register again; give the warnings, which vLLM's log has, too."""
    with caplog.at_level(logging.WARNING, logger="streamer"):
        plugin.register.__wrapped__()
    return {each.getMessage() for each in caplog.records if each.name == "streamer"}


@pytest.mark.usefixtures("_names_are_tried_again")
def test_no_version_is_refused(monkeypatch, caplog):
    monkeypatch.setattr("vllm.__version__", "99.0")
    monkeypatch.setattr("importlib.metadata.version", lambda library: "99.0")
    assert registered(caplog) == set()
    assert type(get_model_loader(LoadConfig(load_format="streamer"))).__name__ == "StreamerModelLoader"


@pytest.mark.usefixtures("_names_are_tried_again")
def test_a_loader_that_vllm_has_changed_says_what_to_use_instead(monkeypatch, caplog):
    monkeypatch.setattr(DefaultModelLoader, "load_weights", lambda self, model: None)
    (told,) = registered(caplog)
    assert "DefaultModelLoader.load_weights" in told
    with pytest.raises(streamer.UsageError, match=r"python -m streamer pull URI DIR, then vllm serve DIR"):
        get_model_loader(LoadConfig(load_format="streamer"))
    assert type(get_model_loader(LoadConfig(load_format="streamer_sharded"))).__name__ == "StreamerShardedLoader"


@pytest.mark.usefixtures("_names_are_tried_again")
def test_a_configuration_that_vllm_has_changed_leaves_local_folders(monkeypatch, caplog):
    monkeypatch.delattr(runai_utils, "is_runai_obj_uri")
    (told,) = registered(caplog)
    assert "is_runai_obj_uri" in told
    assert "python -m streamer pull URI DIR" in told
    assert type(get_model_loader(LoadConfig(load_format="streamer"))).__name__ == "StreamerModelLoader"


@pytest.mark.usefixtures("_names_are_tried_again")
def test_a_vllm_that_asks_for_no_weights_is_an_error(folder, monkeypatch):
    config = config_of(folder)
    model = created(config)
    monkeypatch.setattr(DefaultModelLoader, "load_weights", lambda self, model, model_config: None)
    with pytest.raises(streamer.UsageError, match="requested no tensor"):
        fill(model, config)


def test_a_model_on_s3(url, expected, caplog):
    with caplog.at_level(logging.INFO):
        config = config_of(url)
        assert config.model_config.model_weights == url
        pulled = {name for name in os.listdir(config.model_config.model) if not name.startswith(".")}
        assert pulled == {"config.json", "generation_config.json", "model.safetensors.index.json"}
        assert_equal(fill(created(config), config), expected)
    assert [each for each in caplog.records if each.name == "streamer" and f"{url}: 39 tensors" in each.message]


def test_a_local_folder(folder, expected):
    assert_equal(loaded(folder), expected)


@pytest.mark.parametrize("place", ["url", "folder"])
def test_the_loader_of_run_ai_with_our_library(place, expected, readers, request):
    assert_equal(loaded(request.getfixturevalue(place), "runai_streamer"), expected)
    assert readers


def test_a_scheme_that_only_streamer_reads_needs_no_flag(folder, expected):
    config = config_of(folder.as_uri(), "auto")
    assert config.load_config.load_format == "streamer"
    assert_equal(fill(created(config), config), expected)


def test_the_small_files_are_pulled_once(url, s3_server):
    first = config_of(url).model_config.model
    stamps = {name: os.stat(os.path.join(first, name)).st_mtime_ns for name in os.listdir(first)}
    second = config_of(url).model_config.model
    assert second == first
    assert {name: os.stat(os.path.join(first, name)).st_mtime_ns for name in os.listdir(first)} == stamps


@pytest.mark.parametrize("has_other", [True, False])
def test_a_scheme_whose_package_is_missing(url, has_other, monkeypatch, caplog):
    def pull(*_, **__):
        raise streamer.UsageError("s3fs is missing", hint="install the extra streamer[s3]")

    monkeypatch.setattr(configuration, "pull_small_files", pull)
    monkeypatch.setattr(configuration, "find_spec", lambda _: has_other or None)
    if not has_other:
        with pytest.raises(ValueError, match="s3fs is missing"):
            config_of(url, "runai_streamer")
        return
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    asked = []
    monkeypatch.setattr(runai_utils, "get_cache_dir", configuration.get_cache_dir)
    monkeypatch.setattr(runai_utils, "runai_pull_files", lambda *arguments: asked.append(arguments))
    with pytest.raises(Exception, match="config"):  # nothing was pulled
        config_of(url, "runai_streamer")
    assert asked
    assert "Run:ai's package pulls" in caplog.text


def test_a_url_that_is_no_model_s_folder_is_named_regression(url, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    index = f"{url}/model.safetensors.index.json"
    with pytest.raises(ValueError, match="Invalid repository ID"):  # vLLM names the folder of its cache
        config_of(index)
    assert f"{index}: no config.json or params.json. Name the folder that holds it" in caplog.text


def test_other_load_formats_are_refused_as_before(url):
    with pytest.raises(ValueError, match="must be 'modelexpress', 'runai_streamer'"):
        config_of(url, "safetensors")


def test_weights_are_reloaded_from_another_url(tmp_path, url, expected, s3_server):
    other = save_llama(tmp_path / "other", seed=1)
    config = config_of(url)
    model = created(config)
    assert_equal(fill(model, config), expected)
    there = s3_server.upload_folder(other, "private", "vllm/other")
    with set_current_vllm_config(config):
        reload_weights(config, model, None, there, is_checkpoint_format=True)
    assert_equal(dict(model.named_parameters()), loaded(other, "safetensors"))


@pytest.mark.parametrize("extra", [{}, {"deferred": False}, {"verify": "manifest"}])
@pytest.mark.parametrize("missing", ["s3://private/vllm/nothing", "/nowhere/at/all"])
def test_a_reload_that_cannot_be_opened_changes_nothing_regression(url, expected, caplog, extra, missing):
    config = config_of(url)
    model = created(config)
    fill(model, config)
    config.load_config.model_loader_extra_config = extra
    with set_current_vllm_config(config), pytest.raises(streamer.ObjectNotFoundError, match=missing):
        reload_weights(config, model, None, missing, is_checkpoint_format=True)
    assert_equal(dict(model.named_parameters()), expected)
    assert "load_weights" not in vars(model)
    assert "The load failed" not in caplog.text
    config.load_config.model_loader_extra_config = {}
    with set_current_vllm_config(config):
        reload_weights(config, model, None, url, is_checkpoint_format=True)
    assert_equal(dict(model.named_parameters()), expected)


def test_a_reload_after_one_that_failed_in_the_middle_fills_the_model(url, expected, monkeypatch, caplog):
    config = config_of(url)
    model = created(config)
    fill(model, config)
    with set_current_vllm_config(config), monkeypatch.context() as broken:
        broken.setattr(PlannedCheckpoint, "_read", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reload_weights(config, model, None, None, is_checkpoint_format=True)
    assert any(each.is_meta for each in model.parameters())  # vLLM has taken them away
    assert "parameters hold old, new or partly new values, or none" in caplog.text
    with set_current_vllm_config(config):
        reload_weights(config, model, None, None, is_checkpoint_format=True)
    assert_equal(dict(model.named_parameters()), expected)


def test_a_mixture_of_experts(tmp_path, s3_server):
    folder = save_mixtral(tmp_path / "model")
    there = s3_server.upload_folder(folder, "private", "vllm/experts")
    assert_equal(loaded(there), loaded(folder, "safetensors"))


def test_each_of_four_ranks_reads_its_experts_alone(tmp_path, reports):
    folder = save_mixtral(tmp_path / "model")
    every = {name: tensor.nbytes for name, tensor in streamer.load(folder).items()}
    own = {name for name in every if ".experts." in name}
    assert len(own) == 2 * 8 * 3
    config = config_of(folder)
    seen = set()
    for rank in range(4):
        of_rank = get_model_loader(config.load_config)
        of_rank.local_expert_ids = compute_local_expert_ids(8, 4, rank)
        names = {name for name, _ in of_rank.get_all_weights(config.model_config, torch.nn.Module())}
        assert names >= every.keys() - own
        assert len(names & own) == len(own) / 4
        assert reports[-1].report.bytes == sum(every[name] for name in names)
        seen |= names
    assert seen == every.keys()


def test_a_draft_reads_its_own_tensors_alone(folder, reports):
    draft = SimpleNamespace(is_unused_checkpoint_weight=lambda name: not name.startswith("model.layers.3."))
    config = config_of(folder)
    tensors = dict(get_model_loader(config.load_config).get_all_weights(config.model_config, draft))
    assert len(tensors) == 9
    assert reports[-1].report.bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_secondary_weights_and_their_prefix(folder, tmp_path):
    other = save_llama(tmp_path / "other", seed=1)
    second = DefaultModelLoader.Source(str(tmp_path), None, subfolder="other", prefix="draft.")
    config = config_of(folder)
    tensors = dict(
        get_model_loader(config.load_config).get_all_weights(
            config.model_config, SimpleNamespace(secondary_weights=[second])
        )
    )
    expected = streamer.load(folder) | {f"draft.{name}": tensor for name, tensor in streamer.load(other).items()}
    assert_equal(tensors, expected)


def test_tensors_own_their_memory(url):
    config = config_of(url)
    tensors = list(get_model_loader(config.load_config).get_all_weights(config.model_config, torch.nn.Module()))
    assert len({tensor.untyped_storage().data_ptr() for _, tensor in tensors}) == len(tensors)
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for _, tensor in tensors)


@pytest.mark.parametrize("extra", [{}, {"max_attempts": 3}, {"storage_options": {}}, {"verify": "off"}])
def test_files_in_the_page_cache_are_mapped_unless_something_is_said_of_reading(folder, extra):
    config = config_of(folder, model_loader_extra_config=extra)
    tensors = dict(get_model_loader(config.load_config).get_all_weights(config.model_config, torch.nn.Module()))
    assert_equal(tensors, streamer.load(folder))
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [[int(each, 16) for each in line[0].split("-")] for line in maps if line[-1].startswith(str(folder))]
    are_mapped = {any(begin <= tensor.data_ptr() < end for begin, end in ranges) for tensor in tensors.values()}
    assert are_mapped == {not extra}


def test_consolidated_shards_beside_an_index_are_not_read_twice(folder, tmp_path, reports):
    both = shutil.copytree(folder, tmp_path / "both")
    shutil.copy(min(both.glob("model-*.safetensors")), both / "consolidated.safetensors")
    config = config_of(both)
    names = [name for name, _ in get_model_loader(config.load_config).get_all_weights(config.model_config, None)]
    assert sorted(names) == sorted(streamer.load(folder))


def test_patterns_of_files(folder, tmp_path):
    both = shutil.copytree(folder, tmp_path / "both")
    (both / "model.safetensors.index.json").unlink()
    whole = streamer.load(folder)
    for path in both.glob("model-*"):
        path.rename(both / f"part{path.name.removeprefix('model')}")
    safetensors.torch.save_file(dict(whole), both / "consolidated.safetensors")
    config = config_of(both, ignore_patterns=["part-*"])
    model = torch.nn.Module()
    assert_equal(dict(get_model_loader(config.load_config).get_all_weights(config.model_config, model)), whole)
    config = config_of(both)
    model.allow_patterns_overrides = ["absent*.safetensors", "part-*.safetensors"]
    assert_equal(dict(get_model_loader(config.load_config).get_all_weights(config.model_config, model)), whole)


def test_the_state_of_a_rank_on_s3(folder, expected, tmp_path, s3_server):
    saved = save_state(folder, tmp_path / "state", max_bytes=200_000)
    assert len(list(saved.glob("model-rank-0-part-*.safetensors"))) > 2
    assert_equal(loaded(s3_server.upload_folder(saved, "private", "vllm/state"), "streamer_sharded"), expected)
    assert_equal(loaded(saved, "streamer_sharded"), expected)


def test_options_come_from_the_extra_config(folder, expected):
    assert_equal(loaded(folder, model_loader_extra_config={"memory_limit_bytes": 1 << 20}), expected)


@pytest.mark.parametrize("is_deferred", [True, False])
def test_parameters_are_filled_as_the_extra_config_says(url, expected, is_deferred, caplog):
    with caplog.at_level(logging.INFO, "streamer"):
        assert_equal(loaded(url, model_loader_extra_config={"deferred": is_deferred}), expected)
    assert ("straight into parameters" in caplog.text) == is_deferred


def test_tensors_that_no_model_takes_have_data(url, folder):
    config = config_of(url)
    model = created(config)
    tensors = get_model_loader(config.load_config).get_all_weights(config.model_config, model)
    assert "load_weights" in vars(model)
    assert_equal(dict(tensors), streamer.load(folder))
    assert "load_weights" not in vars(model)


def test_a_load_that_fails_leaves_the_model_s_own_loader(url, expected, monkeypatch):
    config = config_of(url)
    model = created(config)
    fill(model, config)
    with set_current_vllm_config(config), monkeypatch.context() as broken:
        broken.setattr(type(model), "load_weights", lambda self, weights: [next(iter(weights)), 1 / 0])
        with pytest.raises(ZeroDivisionError):
            fill(model, config)
    assert "load_weights" not in vars(model)
    assert_equal(fill(model, config), expected)


@pytest.mark.parametrize(
    ("place", "given", "limit"),
    [
        ("/model", None, 256 << 20),
        ("/model", streamer.Options(max_attempts=3), 256 << 20),
        ("/model", streamer.Options(memory_limit_bytes=5), 5),
        ("s3://bucket/model", streamer.Options(max_attempts=3), 512 << 20),
        ("s3://bucket/model", streamer.Options(memory_limit_bytes=5), 5),
    ],
)
def test_less_is_held_ahead(place, given, limit, monkeypatch):
    monkeypatch.setattr(weights_stream, "memory_bytes", lambda: 16 << 30)
    options = for_place(given, place)
    assert options.memory_limit_bytes == limit
    assert given is None or options.max_attempts == given.max_attempts


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"memory_limit_byte": 1}, "memory_limit_bytes"),
        ({"max_attempts": "many"}, "max_attempts"),
        ({"deferred": "no"}, "deferred"),
    ],
)
def test_a_wrong_extra_config(folder, extra, told):
    with pytest.raises(streamer.OptionError, match=told):
        loaded(folder, model_loader_extra_config=extra)


def test_a_shard_that_is_missing(folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    min(broken.glob("*.safetensors")).unlink()
    with pytest.raises(streamer.ObjectNotFoundError, match="the index names shard"):
        loaded(broken)


def test_a_folder_of_pickles(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"pytorch_model\.bin has another format"):
        loaded(tmp_path)


def test_no_such_folder(s3_server):
    with pytest.raises(Exception, match="s3://private/vllm/none"):
        config_of("s3://private/vllm/none")


def test_a_path_that_is_not_there_is_no_repository_of_the_hub(folder, tmp_path):
    config = config_of(folder)
    config.model_config.model = str(tmp_path / "none")
    with pytest.raises(streamer.ObjectNotFoundError, match="none"):
        dict(get_model_loader(config.load_config).get_all_weights(config.model_config, None))


def test_a_url_with_a_load_format_of_files(folder):
    with pytest.raises(ValueError, match="read with --load-format streamer, and not safetensors"):
        config_of(folder.as_uri(), "safetensors")


def test_an_architecture_that_vllm_does_not_have(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "architectures": ["NoSuchModel"], "model_type": "llama"})
    )
    with pytest.raises(ValueError, match="NoSuchModel"):
        config_of(tmp_path)
