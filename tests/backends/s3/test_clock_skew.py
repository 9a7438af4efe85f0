"""A machine whose clock is wrong loads from S3 all the same: signatures are made at the server's time."""

from __future__ import annotations

import datetime
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from faults.server import FaultServer
from safetensors.torch import save_file

import streamer
from streamer.backends.s3 import client as s3_client
from streamer.backends.s3 import signing

TOLERANCE_S = 900  # S3's own
REFUSAL = (
    b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current time is "
    b"too large.</Message></Error>"
)
HOUR_S = 3600.0


class ServerWithAClock(FaultServer):
    """Refuses signatures whose time is not its own, as S3 does; `ahead_s` is how far its clock is ahead of ours."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ahead_s = 0.0
        self.refused: list[str] = []
        self.accepted_at: list[float] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        now_s = time.time() + self.ahead_s
        handler.date_time_string = lambda timestamp=None: formatdate(now_s, usegmt=True)
        url = urlsplit(handler.path)
        signed_at = (parse_qs(url.query).get("X-Amz-Date") or [handler.headers.get("X-Amz-Date")])[0]
        signed = datetime.datetime.strptime(signed_at, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs(signed.timestamp() - now_s) > TOLERANCE_S:
            self.refused.append(f"{handler.command} {'signed URL' if url.query else 'header'}")
            body = b"" if handler.command == "HEAD" else REFUSAL
            handler.send_response(403)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return
        self.accepted_at.append(signed.timestamp())
        super().answer(handler)


@pytest.fixture
def server(tmp_path):
    save_file({"weight": torch.arange(300_000.0), "bias": torch.ones(3)}, tmp_path / "a.safetensors")
    with ServerWithAClock(tmp_path) as serving:
        yield serving


def assert_right(tensors):
    assert torch.equal(tensors["weight"], torch.arange(300_000.0))
    assert torch.equal(tensors["bias"], torch.ones(3))


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S, 20 * 365 * 86400.0], ids=["ahead", "behind", "years"])
@pytest.mark.parametrize("way", ["file", "folder"])
def test_the_time_is_learnt_from_the_first_refusal(server, ahead_s, way):
    server.ahead_s = ahead_s
    url = server.url("a.safetensors" if way == "file" else "")
    assert_right(streamer.load(url, storage_options=server.storage_options()))
    assert len(server.refused) == 1  # no request after it was signed at the wrong time
    assert all(abs(at - time.time() - ahead_s) < TOLERANCE_S for at in server.accepted_at)


def test_a_clock_that_goes_wrong_in_the_middle_of_a_load_is_put_right_once(server):
    opened = streamer.open(server.url("a.safetensors"), storage_options=server.storage_options())
    assert server.refused == []
    server.ahead_s = HOUR_S
    assert_right(opened.get_tensors())
    assert "GET signed URL" in server.refused
    assert server.accepted_at[-1] == pytest.approx(time.time() + HOUR_S, abs=60)


def test_a_server_that_refuses_every_time_is_asked_twice_and_no_more(server):
    opened = streamer.open(server.url("a.safetensors"), storage_options=server.storage_options())
    one_block = streamer.Options(http_in_flight=1, http_reactors=1)
    server.answer = _refuse
    with pytest.raises(streamer.CredentialsError, match="clock"):
        streamer.load(server.url("a.safetensors"), storage_options=server.storage_options(), options=one_block)
    with pytest.raises(streamer.CredentialsError, match="Set this machine's clock") as caught:
        opened.get_tensors()
    assert caught.value.code == "RequestTimeTooSkewed"
    assert caught.value.attempts == 2


def _refuse(handler):
    handler.send_response(403)
    body = b"" if handler.command == "HEAD" else REFUSAL
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.mark.server
@pytest.mark.parametrize("wrong_by", [HOUR_S, -HOUR_S], ids=["fast", "slow"])
def test_a_real_server_accepts_the_learnt_time(s3_server, s3_checkpoint, monkeypatch, wrong_by):
    for module in (s3_client, signing):
        wrong = SimpleNamespace(time=lambda: time.time() + wrong_by, strftime=time.strftime, gmtime=time.gmtime)
        monkeypatch.setattr(module, "time", wrong)
    for more in ({}, {"use_listings_cache": False, "skip_instance_cache": True}):
        assert streamer.load(s3_checkpoint, names="*norm*", storage_options={**s3_server.storage_options(), **more})
