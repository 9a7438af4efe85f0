"""What a server at the end of a chain refuses is told as its answer, also where its URL has a query."""

from __future__ import annotations

import traceback

import pytest
from each_row import each_row
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer

SECRET = "C4n4ryS3cr3tXyz"
REFUSALS = {
    401: (streamer.CredentialsError, "The server wants other credentials (HTTP 401)"),
    403: (streamer.AccessDeniedError, "The server refuses access (HTTP 403)"),
    404: (streamer.ObjectNotFoundError, "There is no such file (HTTP 404)"),
    500: (streamer.HttpStatusError, "The server could not answer (HTTP 500)"),
}


@each_row("query", ["", f"?sig={SECRET}"])
@each_row("archive", ["zip://m.safetensors", "tar://m.safetensors"])
@each_row("status", REFUSALS)
def test_a_refusal_of_the_server_of_an_archive_is_not_a_missing_file_regression(
    status: int, archive: str, query: str
) -> None:
    """fsspec takes the ``?`` for a pattern that matches nothing."""

    def refuse(request: Request, answer: Answer) -> None:
        answer.become(status)

    cls, words = REFUSALS[status]
    with ScriptedServer(b"x", refuse) as server:
        server.answers_head = True
        with pytest.raises(cls) as caught:
            streamer.load(f"{archive}::{server.url}{query}", framework="np")
    assert f"{archive}::{server.url}: {words}" in str(caught.value)
    assert SECRET not in "".join(traceback.TracebackException.from_exception(caught.value).format())
    assert SECRET not in repr(vars(caught.value))


def test_a_file_that_an_archive_with_a_query_lacks_is_missing(short_pauses: None) -> None:
    with ScriptedServer(b"no archive") as server:
        server.answers_head = True
        with pytest.raises(streamer.StreamerError) as caught:
            streamer.load(f"zip://m.safetensors::{server.url}?sig={SECRET}", framework="np")
    assert SECRET not in str(caught.value)
