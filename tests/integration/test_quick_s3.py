"""Plain requests to S3 without s3fs: the same answers, from a real server, and the same errors."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
import torch
from botocore.exceptions import ClientError
from safetensors.torch import save_file
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends.client.answer_times import answer_times
from streamer.backends.s3 import plain_requests
from streamer.backends.s3.client import S3Client
from streamer.backends.s3.plain_login import plain_login
from streamer.backends.s3.plain_requests import PlainRequests
from streamer.backends.s3.quick_client import QuickClient
from streamer.backends.s3.store import S3Store
from streamer.core.options.limits import Limits

NAMES = ["a.bin", "with space+plus.bin", "ünïcode.bin", "per%20cent.bin", "a&b<c>.bin", "folder/inner.bin"]
PAGE = "<ListBucketResult><EncodingType>url</EncodingType><KeyCount>7</KeyCount>{}</ListBucketResult>"
CHILD = """
import json, sys
import torch
import streamer

uri, options = json.loads(sys.argv[1])
assert streamer.load(uri, storage_options=options)["a"].sum() == 10
print(*sorted({"aiobotocore", "aiohttp", "fsspec", "s3fs"} & {*sys.modules}))
"""


def options_of(server):
    return {"key": "A", "secret": "B", "endpoint_url": f"http://{urlsplit(server.url).netloc}"}


@pytest.fixture(scope="module")
def server(s3_server):
    s3_server.make_bucket("quick")
    for name in NAMES:
        s3_server.put("quick", f"listed/{name}", name.encode())
    return s3_server


@pytest.fixture
def without_s3fs(monkeypatch):
    """Let s3fs answer nothing."""

    def refuse(*_, **__):
        raise AssertionError("s3fs was asked")

    monkeypatch.setattr(S3Client, "__init__", refuse)


def test_a_load_imports_no_client_library(server, tmp_path):
    save_file({"a": torch.ones(10)}, tmp_path / "model.safetensors")
    uri = server.upload_folder(tmp_path, "quick", "model")
    found = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([uri, server.storage_options()])],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.stdout.split() == []


def test_a_listing_is_the_one_that_botocore_gives(server, monkeypatch):
    parameters = {"Prefix": "listed/", "Delimiter": "/"}
    by_botocore = S3Client(server.storage_options()).call("list_objects_v2", "quick", **parameters)
    monkeypatch.setattr(QuickClient, "_full", lambda _: pytest.fail("s3fs was asked"))
    page = QuickClient(server.storage_options()).call("list_objects_v2", "quick", **parameters)
    for name in ("Contents", "CommonPrefixes"):
        fields = {*page[name][0]}
        assert page[name] == [{each: entry[each] for each in fields} for entry in by_botocore[name]]
    assert {entry["Key"] for entry in page["Contents"]} == {f"listed/{name}" for name in NAMES if "/" not in name}
    assert page["IsTruncated"] is by_botocore["IsTruncated"] is False


def test_a_head_is_the_one_that_botocore_gives(server):
    options = server.storage_options()
    by_botocore = S3Client(options).call("head_object", "quick", Key="listed/a.bin")
    head = QuickClient(options).call("head_object", "quick", Key="listed/a.bin")
    assert head == {name: by_botocore[name] for name in ("ContentLength", "ETag")}


@pytest.mark.parametrize("key", ["listed/absent.bin", "listed/with space+plus.bin"])
def test_what_is_absent_or_unusual_is_asked_of_botocore(server, key):
    client = QuickClient(server.storage_options())
    outcomes = []
    for each in (client, S3Client(server.storage_options())):
        try:
            outcomes.append(each.call("head_object", "quick", Key=key)["ContentLength"])
        except Exception as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_a_wrong_secret_is_reported_as_ever(server):
    options = {**server.storage_options(), "secret": "wrong"}
    with pytest.raises(streamer.CredentialsError) as caught:
        streamer.load("s3://quick/listed/a.safetensors", storage_options=options)
    assert caught.value.code == "SignatureDoesNotMatch"


def test_pages_are_followed(without_s3fs):
    entry = "<Contents><Key>f%2F{}.safetensors</Key><Size>1</Size><ETag>&quot;{}&quot;</ETag></Contents>"
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>a+b/c=</NextContinuationToken>"

    def script(request, answer):
        is_second = "continuation-token=a%2Bb%2Fc%3D" in request.path
        text = PAGE.format(entry.format(2, 2) if is_second else entry.format(1, 1) + more)
        answer.become(200, text.encode(), Content_Type="application/xml")

    with ScriptedServer(b"", script) as server:
        found = S3Store("s3://bucket/f", options_of(server)).find("bucket/f")
        assert [(info.path, info.version) for info in found] == [
            ("bucket/f/1.safetensors", '"1"'),
            ("bucket/f/2.safetensors", '"2"'),
        ]
        assert len(server.requests) == 2


def test_a_server_that_says_nothing_is_soon_asked_by_botocore(monkeypatch):
    monkeypatch.setattr(plain_requests, "PATIENCE_S", 0.1)
    silent = threading.Event()

    def script(request, answer):
        if request.number == 0:
            silent.wait(10)
        answer.become(200, PAGE.format("").encode(), Content_Type="application/xml")

    with ScriptedServer(b"", script) as server:
        client = QuickClient(options_of(server))
        page = client.call("list_objects_v2", "bucket", Prefix="", Delimiter="/")
        silent.set()
    assert page["KeyCount"] == 7  # which only botocore parses


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_listing_that_is_refused_leaves_other_requests_to_plain_ones(is_refused):
    """Many may read objects and not list them. A listing that botocore gets shows that it knows more."""
    refusal = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"

    def script(request, answer):
        if "list-type" not in request.path:
            answer.become(200, b"content")
        elif is_refused or request.number == 0:
            answer.become(403, refusal, Content_Type="application/xml")
        else:
            answer.become(200, PAGE.format("").encode(), Content_Type="application/xml")

    with ScriptedServer(b"", script) as server:
        server.answers_head = True
        client = QuickClient(options_of(server))
        with suppress(ClientError):
            client.call("list_objects_v2", "bucket", Prefix="", Delimiter="/")
        assert client.call("head_object", "bucket", Key="a")["ContentLength"] == 7
        are_of_botocore = ["amz-sdk-invocation-id" in request.headers for request in server.requests]
        assert len({request.headers["user-agent"] for request in server.requests}) == 1
    assert are_of_botocore == [False, True, not is_refused]


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {}, b"<html/>"),
        (200, {"Content-Encoding": "gzip"}, PAGE.format("").encode()),
        (200, {"Date": "Thu, 01 Jan 2015 00:00:00 GMT"}, PAGE.format("").encode()),
        (206, {}, PAGE.format("").encode()),
        (302, {"Location": "/elsewhere"}, b""),
        (503, {}, b""),
    ],
)
def test_only_an_answer_that_is_as_expected_counts(status, headers, body):
    def script(request, answer):
        answer.become(status, body, **{name.replace("-", "_"): value for name, value in headers.items()})

    with ScriptedServer(b"", script) as server:
        login = plain_login(options_of(server), {})
        requests = PlainRequests(login, 10_000, answer_times(Limits()))
        assert requests.call("list_objects_v2", "bucket", {"Prefix": ""}) is None
        assert len(server.requests) == 1


def test_what_is_signed_again_is_signed_by_botocore(server):
    """Its credentials may have been exchanged, or its clock be another."""
    client = QuickClient(server.storage_options())
    client.signed_get("quick", 60, Key="listed/a.bin")
    assert client._made is None
    client.renew()
    assert "X-Amz-Signature" in client.signed_get("quick", 60, Key="listed/a.bin")
    assert client._made is not None
