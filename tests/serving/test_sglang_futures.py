"""Versions of SGLang that do not exist: a loader that its tensors no longer fit is refused."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

if find_spec("sglang") is None:
    pytest.skip("SGLang is installed by make test-serving alone", allow_module_level=True)

from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang_engine import assert_equal, loaded

import streamer
from streamer.compat import hooks
from streamer.integrations.serving import engine_hooks
from streamer.integrations.serving.planned_reads import PlannedCheckpoint

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]

INSTEAD = r"python -m streamer pull URI DIR, then sglang serve --model-path DIR"


@pytest.fixture(autouse=True)
def _tried_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(hooks, "_REASONS", {})


def converted_by_reader(monkeypatch):
    """SGLang converts what its own reader gives."""
    theirs = DefaultModelLoader._get_weights_iterator

    def read(self, source, **named):
        return ((name, tensor * 2) for name, tensor in theirs(self, source, **named))

    monkeypatch.setattr(DefaultModelLoader, "_get_weights_iterator", read)


def other_values(monkeypatch):
    """SGLang does something to what ours gives."""
    theirs = DefaultModelLoader._get_all_weights

    def read(self, *given):
        is_ours = type(self) is not DefaultModelLoader
        return ((name, tensor + is_ours) for name, tensor in theirs(self, *given))

    monkeypatch.setattr(DefaultModelLoader, "_get_all_weights", read)


@pytest.mark.parametrize("change", [converted_by_reader, other_values])
def test_an_sglang_that_takes_tensors_in_another_way_is_an_error(url, monkeypatch, change):
    change(monkeypatch)
    with pytest.raises(streamer.UsageError, match=f"_get_all_weights: .*did not come out of it.*{INSTEAD}"):
        loaded(url)


def test_two_tensors_go_through_both_loaders_once(url, expected, monkeypatch, capsys):
    filled = []
    monkeypatch.setattr(engine_hooks, "is_equal", lambda *given: filled.append(given) or True)
    for _ in range(2):
        assert_equal(loaded(url), expected)
    assert len(filled) == 2  # by ours and by theirs
    assert ": 2 tensors" not in capsys.readouterr().err


def test_a_loader_of_sglang_that_fills_no_small_model_refuses_nothing(url, expected, monkeypatch):
    monkeypatch.setattr(engine_hooks.SmallModel, "load_weights", None)
    assert_equal(loaded(url), expected)


@pytest.mark.parametrize("is_deferred", [True, False])
def test_deferred_tensors_are_tried_too_regression(url, expected, monkeypatch, is_deferred):
    monkeypatch.setattr(PlannedCheckpoint, "fill", lambda *_, **__: None)  # what is recorded is lost
    extra = {"deferred": is_deferred}
    if is_deferred:
        with pytest.raises(streamer.UsageError, match=f"_get_all_weights: .*did not come out of it.*{INSTEAD}"):
            loaded(url, "--model-loader-extra-config", json.dumps(extra))
    else:
        assert_equal(loaded(url, "--model-loader-extra-config", json.dumps(extra)), expected)
