"""ModelExpress on this engine, in the real vLLM: its strategy for Run:ai's streamer, and ours in its place."""

from __future__ import annotations

import logging
import sys

import pytest

pytest.importorskip("vllm", reason="vLLM is installed by make test-serving alone")
pytest.importorskip("modelexpress", reason="ModelExpress is installed by make test-serving alone")

from modelexpress.accelerators import CudaAcceleratorBackend
from modelexpress.engines.vllm import adapter
from modelexpress.load_strategy import model_streamer_strategy
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader import get_model_loader
from vllm_engine import assert_equal, config_of, join

from streamer.integrations.serving.modelexpress import StreamerStrategy
from streamer.integrations.serving.recorder import Recorder
from streamer.integrations.vllm import configuration

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _on_a_cpu(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(configuration, "get_cache_dir", lambda: str(tmp_path / "cache"))
    monkeypatch.setattr(adapter, "accelerator_backend_for", lambda _: CudaAcceleratorBackend())  # it has none for a CPU
    caplog.set_level(logging.INFO, logger="modelexpress")


def loaded(url, **named):
    """Load a model as ``vllm serve URL --load-format modelexpress`` does; return its parameters."""
    config = config_of(url, "modelexpress", **named)
    config.load_config.device = "cpu:0"  # ModelExpress needs a number
    with set_current_vllm_config(config):
        join(is_moe=False)
        model = get_model_loader(config.load_config).load_model(vllm_config=config, model_config=config.model_config)
    return dict(model.named_parameters())


def test_its_own_strategy_reads_with_our_library(url, expected, readers, monkeypatch, caplog):
    monkeypatch.setenv("MX_MODEL_URI", url)
    assert_equal(loaded(url), expected)
    assert readers
    assert "Eligible loaders: ['model_streamer', 'default']" in caplog.text


@pytest.fixture
def _our_strategy(monkeypatch):
    monkeypatch.setattr(model_streamer_strategy, "ModelStreamerStrategy", StreamerStrategy)
    monkeypatch.setitem(sys.modules, "runai_model_streamer", None)  # as if it were not installed


@pytest.mark.usefixtures("_our_strategy")
@pytest.mark.parametrize("is_deferred", [True, False])
def test_our_strategy_in_place_of_its_own(url, expected, monkeypatch, reports, is_deferred):
    recorded = []
    around = Recorder.around
    monkeypatch.setattr(Recorder, "around", lambda own, model: recorded.append(own) or around(own, model))
    monkeypatch.setenv("MX_MODEL_URI", url)
    assert_equal(loaded(url, model_loader_extra_config={"deferred": is_deferred}), expected)
    assert [bool(each.copies) for each in recorded] == [True] * is_deferred
    assert len(reports) == (not is_deferred)


@pytest.mark.usefixtures("_our_strategy")
def test_the_log_of_modelexpress_has_what_our_strategy_reads_regression(url, folder, monkeypatch, caplog):
    own = logging.getLogger("streamer")
    for name, value in {"handlers": [], "level": logging.NOTSET, "propagate": False}.items():
        monkeypatch.setattr(own, name, value)
    monkeypatch.setattr(own, "_cache", {})
    monkeypatch.setenv("MX_MODEL_URI", url)
    loaded(folder)  # nothing is pulled for it, which would forward the log to vLLM's
    assert "straight into parameters" in caplog.text


@pytest.mark.usefixtures("_our_strategy")
@pytest.mark.parametrize(("variable", "extra", "text"), [
    ("/nothing", {}, "Strategy model_streamer failed, trying next: s3://private/serving/llama/nothing"),
    ("", {"concurency": 4}, "trying next: there is no option 'concurency'"),
    (None, {}, "Eligible loaders: ['default']"),
])  # fmt: skip
def test_the_chain_goes_on_if_our_strategy_cannot_read(url, monkeypatch, caplog, variable, extra, text):
    if variable is not None:
        monkeypatch.setenv("MX_MODEL_URI", url + variable)
    with pytest.raises(RuntimeError, match="No loading strategy succeeded"):  # the default finds only small files
        loaded(url, model_loader_extra_config=extra)
    assert text in caplog.text
