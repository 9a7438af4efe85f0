"""``STREAMER_TAKE_OVER_RUNAI=1``: the load formats of Run:ai's loader are read by this package, in the real vLLM."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("vllm", reason="vLLM is installed by make test-serving alone")

from vllm.model_executor import model_loader
from vllm_engine import assert_equal, config_of, created, fill, loaded, save_state

import streamer
from streamer.compat.runai import entry_point as door
from streamer.integrations import vllm as plugin
from streamer.integrations.vllm import configuration
from streamer.integrations.vllm.hooks import LOGGER

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(configuration, "get_cache_dir", lambda: str(tmp_path / "cache"))
    monkeypatch.setattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", dict(model_loader._LOAD_FORMAT_TO_MODEL_LOADER))
    monkeypatch.setattr(door, "RequestReader", None)  # of Run:ai's loader with our library
    monkeypatch.setenv("STREAMER_TAKE_OVER_RUNAI", "1")
    plugin.register.cache_clear()
    plugin.register()


def test_the_format_that_vllm_chooses_for_s3(url, expected):
    config = config_of(url, "auto")
    assert config.load_config.load_format == "runai_streamer"
    assert_equal(fill(created(config), config), expected)


def test_a_local_folder_and_the_extra_config_of_run_ai(folder, expected, caplog):
    extra = {"memory_limit": 1 << 20, "concurrency": 4, "distributed": False}
    with caplog.at_level(logging.DEBUG, logger=LOGGER):
        assert_equal(loaded(folder, "runai_streamer", model_loader_extra_config=extra), expected)
    assert "Not needed, and ignored: concurrency, distributed" in caplog.text


@pytest.mark.parametrize(("given", "limit"), [(-1, None), (0, 1), (5, 5)])
def test_the_memory_limit_of_run_ai(folder, given, limit):
    config = config_of(folder, "runai_streamer", model_loader_extra_config={"memory_limit": given})
    options = model_loader.get_model_loader(config.load_config).how.options
    assert (options.memory_limit_bytes if options else None) == limit


@pytest.mark.parametrize(
    ("extra", "told"), [({"memory_limit": "much"}, "memory_limit_bytes"), ({"concurency": 4}, "concurency")]
)
def test_a_wrong_extra_config(folder, extra, told):
    with pytest.raises(streamer.OptionError, match=told):
        loaded(folder, "runai_streamer", model_loader_extra_config=extra)


def test_the_state_of_a_rank(folder, expected, tmp_path, s3_server):
    saved = save_state(folder, tmp_path / "state")
    there = s3_server.upload_folder(saved, "private", "vllm/runai_state")
    assert_equal(loaded(there, "runai_streamer_sharded"), expected)
