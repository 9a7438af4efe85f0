"""Versions of vLLM that do not exist: a loader that its tensors no longer fit is refused before the model is filled."""

from __future__ import annotations

import logging

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is installed by make test-serving alone")

from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm_engine import assert_equal, config_of, created, fill, loaded, save_state

import streamer
from streamer.compat import hooks
from streamer.integrations.serving import engine_hooks
from streamer.integrations.serving.planned_reads import PlannedCheckpoint
from streamer.integrations.vllm import configuration
from streamer.integrations.vllm.loader import SHARDED_TENSORS, TENSORS

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]

INSTEAD = r"python -m streamer pull URI DIR, then vllm serve DIR"


@pytest.fixture(autouse=True)
def _tried_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(configuration, "get_cache_dir", lambda: str(tmp_path / "cache"))
    monkeypatch.setattr(hooks, "_REASONS", {})


def converted_by_reader(monkeypatch):
    """vLLM converts what its own reader gives."""
    theirs = DefaultModelLoader._get_weights_iterator
    monkeypatch.setattr(
        DefaultModelLoader,
        "_get_weights_iterator",
        lambda self, source: ((name, tensor * 2) for name, tensor in theirs(self, source)),
    )


def other_values(monkeypatch):
    """vLLM does something to what ours gives."""
    theirs = DefaultModelLoader.load_weights

    def load_weights(self, model, model_config):
        theirs(self, model, model_config)
        if type(self) is not DefaultModelLoader:
            for parameter in model.parameters():
                parameter.data.zero_()

    monkeypatch.setattr(DefaultModelLoader, "load_weights", load_weights)


def other_tensors(monkeypatch):
    """vLLM takes more than a name and a tensor, and its own reader gives that."""
    theirs = DefaultModelLoader.get_all_weights
    monkeypatch.setattr(
        DefaultModelLoader, "get_all_weights", lambda *given: ((*pair, "shard") for pair in theirs(*given))
    )

    def load_weights(self, model, model_config):
        self.counter_before_loading_weights = 0.0
        model.load_weights((name, tensor) for name, tensor, _ in self.get_all_weights(model_config, model))

    monkeypatch.setattr(DefaultModelLoader, "load_weights", load_weights)


FUTURES = {
    "a reader that converts": (converted_by_reader, "did not come out of it as they went in"),
    "other values": (other_values, "did not come out of it as they went in"),
    "other tensors": (other_tensors, "did not go through it: ValueError"),
}


@pytest.mark.parametrize("name", FUTURES)
def test_a_vllm_that_takes_tensors_in_another_way_is_an_error_before_the_model_is_filled(url, monkeypatch, name):
    change, reason = FUTURES[name]
    config = config_of(url)
    model = created(config)
    before = {each: tensor.detach().clone() for each, tensor in model.named_parameters()}
    change(monkeypatch)
    with pytest.raises(streamer.UsageError, match=f"DefaultModelLoader.load_weights: .*{reason}.*{INSTEAD}"):
        fill(model, config)
    after = dict(model.named_parameters())
    assert all(torch.equal(after[each], tensor) or tensor.isnan().any() for each, tensor in before.items())


class Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def test_two_tensors_go_through_both_loaders_once_and_no_line_tells_it(url, expected, monkeypatch):
    filled, lines = [], Lines()
    monkeypatch.setattr(engine_hooks, "is_equal", lambda *given: filled.append(given) or True)
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [lines])
    for _ in range(2):
        assert_equal(loaded(url), expected)
    assert len(filled) == 2  # by ours and by theirs
    assert hooks._REASONS[TENSORS] is None
    of_loads = [each for each in lines.texts if " tensors, " in each or "took" in each or "Checkpoint size" in each]
    assert [each.partition(" ")[0] for each in of_loads] == [f"{url}:", "Loading", f"{url}:", "Loading"]


def test_a_loader_of_vllm_that_fills_no_small_model_refuses_nothing(url, expected, monkeypatch):
    monkeypatch.setattr(engine_hooks.SmallModel, "load_weights", None)
    assert_equal(loaded(url), expected)


def test_the_state_of_a_rank_is_tried_too(folder, expected, tmp_path, monkeypatch):
    saved = save_state(folder, tmp_path / "state")
    assert_equal(loaded(saved, "streamer_sharded"), expected)
    assert hooks._REASONS[SHARDED_TENSORS] is None
    monkeypatch.setattr(hooks, "_REASONS", {})
    theirs = ShardedStateLoader.iterate_over_files
    monkeypatch.setattr(
        ShardedStateLoader, "iterate_over_files", lambda *given: ((name, each + 1) for name, each in theirs(*given))
    )
    with pytest.raises(streamer.UsageError, match=f"ShardedStateLoader.load_weights: .*{INSTEAD}"):
        loaded(saved, "streamer_sharded")


@pytest.mark.parametrize("is_deferred", [True, False])
def test_deferred_tensors_are_tried_too_regression(url, expected, monkeypatch, is_deferred):
    monkeypatch.setattr(PlannedCheckpoint, "fill", lambda *_, **__: None)  # what is recorded is lost
    extra = {"deferred": is_deferred}
    if is_deferred:
        with pytest.raises(
            streamer.UsageError, match=f"DefaultModelLoader.load_weights: .*did not come out of it.*{INSTEAD}"
        ):
            loaded(url, model_loader_extra_config=extra)
    else:
        assert_equal(loaded(url, model_loader_extra_config=extra), expected)
