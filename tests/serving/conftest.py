"""Lets engines find the plug-ins as they do when installed, by their entry points; and Run:ai's package our library."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import empty_modules
import pytest

from streamer.compat.runai import entry_point, library_path
from streamer.integrations.serving import weights_stream

if find_spec("vllm") is not None:
    os.environ["STREAMER_LIBRARY"] = str(library_path())

    from vllm.plugins import load_general_plugins

    load_general_plugins()

if find_spec("sglang") is not None:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    empty_modules.install()

    from sglang.srt.plugins import load_plugins

    load_plugins()


def engine():
    """Return the helpers for the engine that is installed."""
    return import_module("vllm_engine" if find_spec("vllm") is not None else "sglang_engine")


@pytest.fixture(autouse=True)
def _keys_of_server(s3_server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.identity.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.identity.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama."""
    from tiny_models import save_llama

    return save_llama(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def url(folder, s3_server):
    """The same on S3."""
    return s3_server.upload_folder(folder, "private", "serving/llama")


@pytest.fixture(scope="module")
def expected(folder):
    """What the engine's own loader makes of it."""
    return engine().loaded(folder, load_format="safetensors")


@pytest.fixture
def reports(monkeypatch):
    """The streams that the loaders make; files in the page cache are read too, and not mapped."""
    made = []

    def stream(*arguments, **named):
        made.append(original(*arguments, **named))
        return made[-1]

    original = weights_stream.stream
    monkeypatch.setattr(weights_stream, "stream", stream)
    monkeypatch.setattr(weights_stream, "mapped_weights", lambda *_: None)
    return made


@pytest.fixture
def readers(monkeypatch):
    """The readers that our library makes for Run:ai's package."""
    made = []

    class Recorded(entry_point.RequestReader):
        def __init__(self, *arguments):
            made.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(entry_point, "RequestReader", Recorded)
    return made
