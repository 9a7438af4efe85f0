"""A server that repeats what it was reported puts no secret into our errors, logs or lines of progress.

Proxies show the URL they were asked for, debugging servers all headers. Of what enters a message that is
masked where it comes in, so also in what is told of an outage, which other loads of the process see.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

import pytest
import torch
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from latin_rows import latin_rows
from safetensors.torch import save
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import _native

pytestmark = pytest.mark.usefixtures("short_pauses")

HASTY = streamer.Options(max_attempts=2, block_deadline_s=0.5, first_byte_timeout_s=1.0, block_bytes=64 << 10)
SIGNATURE = "5f2d7c0de1a94b7e9b6f0a1c2d3e4f5061728394a5b6c7d8e9f0011223344556"
TOKEN = "IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3Qt"
BEARER = "ya29.a0AfB_byC1234567890abcdefghij"
PASSWORD = "hunter2horse"
DATA = save({"weight": torch.arange(60_000.0)})

ASKED: dict[str, tuple[str, Any, str]] = {
    "signature": (f"?X-Amz-Signature={SIGNATURE}&X-Amz-Expires=60", None, SIGNATURE),
    "token": (f"?X-Amz-Security-Token={quote(TOKEN, safe='')}", None, TOKEN),
    "bearer": ("", {"headers": {"Authorization": f"Bearer {BEARER}"}}, BEARER),
    "header": ("", {"headers": {"x-amz-security-token": TOKEN}}, TOKEN),
    "login": ("", {"auth": ("user", PASSWORD)}, PASSWORD),
    "cookie": ("", {"cookies": {"session": PASSWORD}}, PASSWORD),
}
SHAPES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "encoded": lambda secret: quote(secret, safe=""),
    "encoded twice": lambda secret: quote(quote(secret, safe=""), safe=""),
    "a piece": lambda secret: secret[3:25] if len(secret) > 25 else secret,
}
PLACES: dict[str, Callable[[Answer, str], None]] = {
    "message": lambda answer, text: answer.become(
        answer.status, f"<Error><Code>E</Code><Message>You sent {text}.</Message></Error>".encode()
    ),
    "code": lambda answer, text: answer.become(answer.status, f"<Error><Code>{text}</Code></Error>".encode()),
    "request id": lambda answer, text: answer.become(answer.status, b"", x_amz_request_id=text),
    "encoding": lambda answer, text: answer.headers.update({"Content-Encoding": text}),
    "range": lambda answer, text: answer.headers.update({"Content-Range": text}),
}


@each_row(("asked", "place", "shape"), latin_rows(ASKED, PLACES, SHAPES))
def test_what_a_server_repeats_is_not_shown(caplog, asked, shape, place):
    look_for_secret(caplog, asked, shape, place, status=403)


@each_row("asked", ASKED)
def test_an_outage_shows_no_repeated_secret(caplog, asked):
    look_for_secret(caplog, asked, "as it is", "message", status=503)


def look_for_secret(caplog, asked, shape, place, status):
    query, options, secret = ASKED[asked]

    def script(request: Request, answer: Answer) -> None:
        if request.begin > 100_000:
            answer.status = 206 if place in ("encoding", "range") else status
            PLACES[place](answer, SHAPES[shape](secret))

    caplog.set_level(logging.DEBUG, logger="streamer")
    with ScriptedServer(DATA, script) as server, pytest.raises(streamer.StreamerError) as caught:
        streamer.load(server.url + query, storage_options=options, options=HASTY, progress=False)
    error = caught.value
    shown = [str(error), repr(vars(error)), *traceback.format_exception(error)]
    shown += [record.getMessage() for record in caplog.records if record.name == "streamer"]
    assert "***" in "".join(shown)
    for text in shown:
        assert not pieces_of(secret) & pieces_of(unquote(unquote(text)), min(len(secret), 16))


def pieces_of(text: str, length: int = 16) -> set[str]:
    return {text[start : start + length] for start in range(max(1, len(text) - length + 1))}


_letters = st.text(alphabet="aZ9+/=%. ", max_size=12)
_secret = st.text(alphabet="bcdefYX012+/=_-", min_size=4, max_size=60)


_own_secret = _secret.filter(lambda text: not set(text) <= set("+/=9Z"))  # stands in no text of `_letters`


@given(_letters, _own_secret, _letters, st.integers(0, 4))
def test_no_piece_of_a_secret_is_left(before, secret, after, encodings):
    reported = secret
    for _ in range(encodings - 1):
        reported = quote(reported, safe="")
    masked = _native.masked(f"{before} {reported} {after}", [secret], [])
    assert not pieces_of(secret, min(len(secret), 16)) & pieces_of(unquote(masked), min(len(secret), 16))
    assert masked.startswith(f"{before} ")
    assert masked.endswith(f" {after}")


@given(st.text(alphabet="aZ9+/=%. ", max_size=60), _own_secret)
def test_text_without_a_secret_stays_as_it_is(text, secret):
    assert _native.masked(text, [secret], [f"https://host/key?sig={secret}"]) == text
