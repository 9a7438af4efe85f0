"""A load from a web server imports no HTTP library of Python's, and asks for nothing twice."""

from __future__ import annotations

import json

import pytest
import torch
import warm_python
from safetensors.torch import save
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer

SHARD = save({"a": torch.ones(10)})
PAGE = b"<html><a href='model.safetensors'>model</a></html>"
CHILD = """
import json, sys
import torch
import streamer

uri, options = json.loads(sys.argv[1])
assert streamer.load(uri, storage_options=options)["a"].sum() == 10
print(json.dumps("aiohttp" in sys.modules))
"""


def index(request: Request, answer: Answer) -> None:
    if request.path.endswith("/"):
        answer.become(200, PAGE, Content_Type="text/html")


def redirect(request: Request, answer: Answer) -> None:
    if request.path == "/first.safetensors":
        answer.become(302, b"", Location="/second.safetensors")


def refuse_once(request: Request, answer: Answer) -> None:
    if request.number == 0:
        answer.become(503, b"", Retry_After="0")


def imports_aiohttp(server: ScriptedServer, path: str, **options: object) -> bool:
    """Tell whether a load in a process of its own imports aiohttp."""
    url = server.url.removesuffix("/object") + path
    found = warm_python.run(CHILD, json.dumps([url, options]))
    return bool(json.loads(found.stdout))


@pytest.mark.parametrize(
    ("path", "script", "requests"),
    [
        ("/model.safetensors", None, 3),  # the first byte, the header, the tensor
        ("/", index, 4),
        ("/first.safetensors", redirect, 4),
    ],
    ids=["file", "folder", "redirect"],
)
def test_a_load_imports_no_client_library(path, script, requests):
    with ScriptedServer(SHARD, script) as server:
        assert not imports_aiohttp(server, path, headers={"X-Token": "secret"})
        assert len(server.requests) == requests
        assert {request.headers["x-token"] for request in server.requests} == {"secret"}


def test_a_failed_request_is_repeated_without_aiohttp():
    with ScriptedServer(SHARD, refuse_once) as server:
        assert not imports_aiohttp(server, "/model.safetensors")
        assert len(server.requests) == 4


def test_options_of_fsspec_are_for_fsspec():
    with ScriptedServer(SHARD) as server:
        assert imports_aiohttp(server, "/model.safetensors", timeout=30)


@pytest.mark.parametrize(("status", "error"), [(404, streamer.ObjectNotFoundError), (403, streamer.AccessDeniedError)])
def test_a_refused_request_is_sent_once(status, error):
    with ScriptedServer(SHARD, lambda request, answer: answer.become(status)) as server:
        with pytest.raises(error) as caught:
            streamer.load(f"{server.url}.safetensors")
        assert caught.value.status == status
        assert ["range" in request.headers for request in server.requests].count(True) == 1


def test_a_redirect_without_a_place_is_an_error_of_the_tree_regression():
    """It was a `TypeError`."""
    with ScriptedServer(SHARD, lambda request, answer: answer.become(302)) as server:
        for options in ({}, {"timeout": 30}):
            with pytest.raises(streamer.RedirectError, match="without saying where to"):
                streamer.load(f"{server.url}.safetensors", storage_options=options)


def test_a_file_of_a_server_without_ranges_is_asked_for_once_and_read_in_one_stream():
    def whole(request: Request, answer: Answer) -> None:
        answer.become(200, SHARD, ETag='"v1"')

    with ScriptedServer(SHARD, whole) as server:
        assert streamer.load(f"{server.url}.safetensors")["a"].sum() == 10
        assert ["range" in request.headers for request in server.requests].count(True) == 1
