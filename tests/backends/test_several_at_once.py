"""Several storages, endpoints and credentials live beside each other: in one load, and in several threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import save, save_file
from servers.one_file import FILES, TENSORS, is_lookup, one_file, place_of
from servers.seaweedfs import SeaweedServer

import streamer

ELSEWHERE = {"in.memory": torch.arange(5.0)}
ON_DISK = {"on.disk": torch.arange(7.0)}


@pytest.fixture(scope="module")
def other_server() -> Iterator[SeaweedServer]:
    """An S3 server at another endpoint, which knows none of the first one's keys."""
    with SeaweedServer() as server:
        server.make_bucket("private")
        yield server


@pytest.fixture
def uris(s3_checkpoint: str, tmp_path: Path) -> list[str]:
    save_file(ON_DISK, tmp_path / "a.safetensors")
    MemoryFileSystem().pipe_file("/several/b.safetensors", save(ELSEWHERE))
    return [s3_checkpoint, str(tmp_path), "memory://several/b.safetensors"]


def test_one_load_reads_several_storages(uris: list[str], s3_server: SeaweedServer, checkpoint: Path) -> None:
    options = {"s3": s3_server.storage_options(), "memory": {}}
    with streamer.stream(uris, storage_options=options) as stream:
        loaded = dict(stream)
    expected = {**streamer.load(checkpoint), **ON_DISK, **ELSEWHERE}
    assert set(loaded) == set(expected)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    assert set(stream.report.readers) == {"file", "http", "python"}


def test_a_list_of_options_gives_each_uri_its_own(
    s3_checkpoint: str, s3_server: SeaweedServer, other_server: SeaweedServer, checkpoint: Path
) -> None:
    other_server.put("private", "other/c.safetensors", save(ON_DISK))
    uris = [s3_checkpoint, "s3://private/other/c.safetensors"]
    options = [s3_server.storage_options(), other_server.storage_options()]
    loaded = streamer.load(uris, storage_options=options)
    assert len(loaded) == len(streamer.load(checkpoint)) + 1
    assert torch.equal(loaded["on.disk"], ON_DISK["on.disk"])


def test_options_that_are_neither_one_nor_as_many_are_refused() -> None:
    with pytest.raises(streamer.OptionError, match="a list of 3, and there are 2 URIs"):
        streamer.load(["/a", "/b"], storage_options=[{}, {}, {}])


def test_threads_with_other_endpoints_and_credentials_do_not_disturb_each_other(
    s3_checkpoint: str, s3_server: SeaweedServer, other_server: SeaweedServer, checkpoint: Path
) -> None:
    other_server.put("private", "other/c.safetensors", save(ON_DISK))
    right, wrong = s3_server.storage_options(), {**s3_server.storage_options(), "secret": "another"}

    def load(uri: str, options: dict[str, Any]) -> int | type[Exception]:
        try:
            return len(streamer.load(uri, storage_options=options, progress=False))
        except streamer.StorageError as error:
            return type(error)

    other = ("s3://private/other/c.safetensors", other_server.storage_options())
    jobs = [(s3_checkpoint, right), (s3_checkpoint, wrong), other, (str(checkpoint), {})] * 3
    with ThreadPoolExecutor(len(jobs)) as pool:
        done = list(pool.map(lambda job: load(*job), jobs))
    tensors = len(streamer.load(checkpoint))
    assert done == [tensors, streamer.CredentialsError, 1, tensors] * 3


# --- lookups and reads of every storage are the same to whoever listens: names on the wire, TLS, connections --------

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
