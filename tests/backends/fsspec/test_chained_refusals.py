"""What a server at the end of a chain refuses is reported as its answer, also where its URL has a query."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import textwrap
import traceback
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from each_row import each_row
from fsspec.implementations.local import LocalFileSystem
from safetensors.torch import save, save_file
from servers.background import served
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


# --- A cache of fsspec's that is full costs the cache, not the load; and never is there half a file in it -----------

WEIGHT = {"weight": torch.arange(1_000_000.0)}
ROOM_BYTES = 1 << 20  # of the cache; the file has four times as much
CACHES = ["simplecache", "filecache", "blockcache"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(WEIGHT, path)
    return path


@pytest.fixture
def tiny(tmp_path):
    """A folder on a disk of 1 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    size = f"size={ROOM_BYTES}".encode()
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, size) != 0:
        pytest.skip(f"no right to mount a tiny disk: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(str(folder).encode(), 2)  # MNT_DETACH


def assert_right(tensors):
    assert torch.equal(tensors["weight"], WEIGHT["weight"])


@pytest.mark.parametrize("cache", CACHES)
def test_a_full_disk_is_gone_around_with_one_warning(file, tiny, cache):
    options = {cache: {"cache_storage": str(tiny), "skip_instance_cache": True}}
    with pytest.warns(RuntimeWarning, match="has no room") as reported:
        assert_right(streamer.load(f"{cache}::file://{file}", storage_options=options))
    assert len(reported) == 1
    assert str(tiny) in str(reported[0].message)
    assert sum(path.stat().st_size for path in tiny.rglob("*") if path.name != "cache") == 0  # no half file


def test_a_small_file_still_goes_into_the_cache(tmp_path, tiny):
    save_file({"weight": torch.ones(100)}, tmp_path / "small.safetensors")
    options = {"simplecache": {"cache_storage": str(tiny)}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streamer.load(f"simplecache::file://{tmp_path}/small.safetensors", storage_options=options)
    copies = [path for path in tiny.iterdir() if path.suffix != ".source"]
    assert [path.stat().st_size for path in copies] == [(tmp_path / "small.safetensors").stat().st_size]


LIMITED = """
import json, resource, sys, warnings
import streamer
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
with warnings.catch_warnings(record=True) as reported:
    warnings.simplefilter("always")
    tensors = streamer.load(sys.argv[1], storage_options=json.loads(sys.argv[2]), framework="np", progress=False)
print(json.dumps({"sum": float(tensors["weight"].sum(dtype="f8")), "reported": [str(e.message) for e in reported]}))
"""


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_a_file_that_may_not_grow_is_gone_around_too(file, tmp_path, cache):
    options = json.dumps({cache: {"cache_storage": str(tmp_path / "cache")}})
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), f"{cache}::file://{file}", options, str(ROOM_BYTES)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["sum"] == float(WEIGHT["weight"].double().sum())
    assert ["EFBIG" in message for message in reported["reported"]] == [True]


def test_a_download_that_dies_leaves_nothing_in_the_cache(file, tmp_path, monkeypatch):
    def die(self, source, target, **_):
        with open(target, "wb") as half:
            half.write(file.read_bytes()[:1000])
        raise ConnectionResetError(104, "reset")

    options = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    soon = streamer.Options(block_deadline_s=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "get_file", die)
        with pytest.raises(streamer.ConnectError):
            streamer.load(f"simplecache::file://{file}", storage_options=options, options=soon)
    assert list((tmp_path / "cache").iterdir()) == []
    assert_right(streamer.load(f"simplecache::file://{file}", storage_options=options))


class WithoutSize(BaseHTTPRequestHandler):
    """Sends a file without saying how long it is."""

    body = save(WEIGHT)

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(self.body)

    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


def test_a_cache_reports_a_size_that_the_server_does_not_send(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), WithoutSize)
    url = f"simplecache::http://127.0.0.1:{server.server_port}/a.safetensors"
    with served(server):
        assert_right(streamer.load(url, storage_options={"simplecache": {"cache_storage": str(tmp_path)}}))
