"""A proxy that refuses is not waited for as the server, which had answered on another way."""

from __future__ import annotations

import time

import numpy as np
import pytest
from servers.background import served
from servers.one_file import FILES, TENSORS, one_file, place_of
from servers.scripted_proxy import refusing_proxy

import streamer
from streamer import Options
from streamer.core import errors

PATIENCE_S = 60
SOON_S = 20  # the libraries of storages ask several times by themselves
NAMED = {
    "s3": lambda proxy: {"config_kwargs": {"proxies": {"http": proxy}}},
    "gs": lambda proxy: {"session_kwargs": {"proxy": proxy}},
    "az": lambda proxy: {"proxies": {"http": proxy}},
    "http": lambda proxy: {"proxy": proxy},
    "hf": lambda proxy: {"proxy": proxy},
}

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.mark.parametrize("by", ["the environment", "options"])
@pytest.mark.parametrize("storage", FILES)
def test_a_proxy_of_plain_http_that_refuses_is_not_waited_for_regression(storage, by, monkeypatch):
    """Its 503 was taken for an answer of the server, and waited for two minutes."""
    with one_file() as server, refusing_proxy(503) as proxy, served(proxy):
        uri, options = place_of(storage, server)
        assert np.array_equal(streamer.load(uri, storage_options=options)["bias"].numpy(), TENSORS["bias"])
        asked = len(server.requests)
        url = f"http://user:CANARY@127.0.0.1:{proxy.server_port}"
        if by == "options":
            options |= NAMED[storage](url)
        else:
            monkeypatch.setenv("http_proxy", url)
        began = time.monotonic()
        with pytest.raises(errors.HttpStatusError, match="proxy") as caught:
            streamer.load(uri, storage_options=options, options=Options(block_deadline_s=PATIENCE_S))
        assert time.monotonic() - began < SOON_S
        assert caught.value.status == 503
        assert "CANARY" not in str(caught.value)
        assert len(server.requests) == asked


@pytest.mark.parametrize(("storage", "header"), [("gs", "X_GUploader_UploadID"), ("az", "x_ms_request_id")])
def test_a_storage_that_throttles_behind_a_proxy_is_waited_for(storage, header, monkeypatch):
    """Its answer has a request id, which no proxy gives."""

    def throttle(request, answer):
        if request.number < 8:  # more often than the libraries ask
            answer.become(503, **{header: "id"})

    with one_file(throttle) as server:
        monkeypatch.setenv("http_proxy", server.url.removesuffix("/object"))
        uri, options = FILES[storage]("http://behind.test")
        streamer.load(uri, storage_options=options, options=Options(block_deadline_s=PATIENCE_S))
        assert len(server.requests) > 8
