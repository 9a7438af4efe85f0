"""``streamer.ray`` without Ray; with it, see ``tests/on_ray``."""

from __future__ import annotations

import pickle
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import streamer


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
@pytest.mark.parametrize("call", [streamer.ray.warm, streamer.ray.load])
def test_without_ray_an_error_names_what_to_install(call):
    with pytest.raises(streamer.UsageError, match="ray is not installed"):
        call("s3://bucket/model")


@pytest.mark.parametrize("call", [streamer.ray.warm, streamer.ray.load])
def test_outside_of_a_cluster_an_error_names_what_to_call(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(streamer.UsageError, match=r"ray\.init\(address="):
        call("s3://bucket/model")


def test_a_function_that_names_an_integration_can_be_sent_to_another_process_regression():
    """cloudpickle sends the modules that a function names, and could not send ``streamer.ray``."""
    named = sys.modules["streamer.ray"]
    assert pickle.loads(pickle.dumps(named)) is named
