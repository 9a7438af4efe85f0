"""Lookups and reads of every storage are the same to whoever listens: names on the wire, TLS, connections."""

from __future__ import annotations

from typing import Any

import pytest
from servers.one_file import FILES, TENSORS, is_lookup, one_file, place_of

import streamer

# A server or a proxy may refuse a request for any of these; `headers` holds no other that names the client.
WORDS = ("host", "user-agent", "accept", "accept-encoding", "accept-language", "connection")
UNKNOWN_TO_PLAIN = {"config_kwargs": {"max_pool_connections": 10}}  # so that botocore makes and signs the requests


def with_library(storage: str, options: dict[str, Any]) -> dict[str, Any]:
    return {**options, **UNKNOWN_TO_PLAIN} if storage == "s3" else options


@pytest.mark.parametrize("storage", FILES)
def test_lookups_and_reads_use_the_same_words(storage: str) -> None:
    with one_file() as server:
        uri, options = place_of(storage, server)
        assert streamer.load(uri, storage_options=with_library(storage, options)).keys() == TENSORS.keys()
        of_lookups, of_reads = (
            {tuple((name, request.headers.get(name)) for name in WORDS) for request in server.requests if kind(request)}
            for kind in (is_lookup, lambda request: not is_lookup(request))
        )
    assert of_lookups
    assert of_lookups == of_reads
    assert len(of_reads) == 1


@pytest.mark.parametrize("storage", FILES)
def test_a_read_uses_the_connection_of_its_lookup(storage: str) -> None:
    clients = set()
    with one_file(lambda _, answer: clients.add(answer.handler.client_address)) as server:
        uri, options = place_of(storage, server)
        streamer.load(uri, storage_options=options, options=streamer.Options(http_in_flight=1))
        assert len(server.requests) > 2
    assert len(clients) == 1
