"""Signatures of S3: at the server's time, and in every form the same as botocore's."""

from __future__ import annotations

import urllib.request
from datetime import datetime, timezone
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

import pytest
import torch
from botocore import auth
from botocore.awsrequest import AWSRequest
from each_row import each_row

import streamer
from streamer.backends.client.answer_values import clock_offset_s
from streamer.backends.s3 import signing
from streamer.backends.s3.signing import BucketEndpoint, Keys, Signer
from streamer.backends.s3.store import S3Store

NOW_S = 1_700_000_000.0

SECRET = "s3cr3t/+key"
BUCKETS = [
    "https://bucket.s3.eu-west-1.amazonaws.com",
    "http://127.0.0.1:9000/bucket",
    "https://minio.example:9443/prefix/bucket",
]


@each_row("offset_s", [3600, -3600, 61, -61, 30 * 365 * 86400, -50 * 365 * 86400])
def test_a_wrong_clock_is_recognised_by_the_date_of_the_answer(offset_s: int) -> None:
    assert clock_offset_s(formatdate(NOW_S + offset_s, usegmt=True), NOW_S) == offset_s


@pytest.mark.parametrize("offset_s", [0, 1, -30, 60, -60])
def test_a_difference_that_the_network_may_make_is_none(offset_s: int) -> None:
    assert clock_offset_s(formatdate(NOW_S + offset_s, usegmt=True), NOW_S) == 0


@each_row(
    "date",
    [None, "", "yesterday", "Thu, 01 Jan 1970", "Wed, 99 Foo 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:20 -0000"],
)
def test_a_retry_after_without_a_time_changes_nothing(date: str | None) -> None:
    assert clock_offset_s(date, NOW_S) is None


URLS = [
    *("model.safetensors", "a/b/c-1_2~3.bin", "with space+plus", "ünïcode%20", "a//b/./../c", "q?uery=1&b", "a/"),
    *(
        "key?versionId=1%2F%2B",
        "?list-type=2&prefix=a%2Fb&delimiter=%2F&encoding-type=url",
        "key?uploads",
        "?list-type=2&list=1",
        "",
    ),
]
HEADERS = [{}, {"x-amz-request-payer": "requester", "Range": "bytes=0-0", "x-amz-meta-Team": "  two   words "}]
HEADERS += [  # a name that is the beginning of another one
    {"x-amz-server-side-encryption-customer-key": "k", "x-amz-server-side-encryption-customer-key-md5": "m"},
    {"x-amz-meta-a": "", "x-amz-meta-a-b": "2"},
]


def both(place: BucketEndpoint, key: str, token: str | None) -> tuple[str, Signer]:
    path, mark, query = key.partition("?")
    path = path if mark and "=" not in path and query.startswith(("versionId", "list", "uploads")) else key
    query = f"?{query}" if path is not key else ""
    return f"{place.url}/{quote(path, safe='/~')}{query}", Signer(place, Keys("AKID/EXAMPLE", SECRET, token))


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """One second for both."""
    monkeypatch.setattr(signing.time, "time", lambda: NOW_S)
    moment = datetime.fromtimestamp(NOW_S, timezone.utc).replace(tzinfo=None)
    monkeypatch.setattr(auth, "get_current_datetime", lambda *_, **__: moment)


@pytest.mark.parametrize("token", [None, "a+token/with=marks&more"])
@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("key", URLS)
def test_it_signs_as_botocore_does(bucket: str, key: str, token: str | None) -> None:
    place = BucketEndpoint(bucket, "eu-west-1")
    url, signer = both(place, key, token)
    for headers in HEADERS:
        request = AWSRequest("GET", url, headers=headers)
        auth.S3SigV4Auth(signer.keys, "s3", "eu-west-1").add_auth(request)
        empty = request.headers["X-Amz-Content-SHA256"]
        assert signer.headers("GET", url, headers, empty) == dict(request.headers.items())
        request = AWSRequest("GET", url, headers=headers)
        auth.S3SigV4QueryAuth(signer.keys, "s3", "eu-west-1", expires=600).add_auth(request)
        assert signer.url(url, headers, 600).replace("?uploads&", "?uploads=&") == request.url


def test_with_the_keys_of_a_directory_buckets_session_it_signs_as_botocore_does() -> None:
    place = BucketEndpoint("https://b--z--x-s3.example", "eu-west-1", "s3express", signing.EXPRESS)
    url, signer = both(place, "a/b", "a+token/with=marks")
    how: dict[str, Any] = {"identity_cache": None}
    request = AWSRequest("GET", url)
    auth.S3ExpressAuth(signer.keys, "s3express", "eu-west-1", **how).add_auth(request)
    signed = signer.headers("GET", url, {}, request.headers["X-Amz-Content-SHA256"])
    assert {name.lower(): value for name, value in signed.items()} == {
        name.lower(): value for name, value in request.headers.items()
    }
    request = AWSRequest("GET", url)
    auth.S3ExpressQueryAuth(signer.keys, "s3express", "eu-west-1", expires=600, **how).add_auth(request)
    assert signer.url(url, {}, 600) == request.url


@pytest.mark.parametrize("address", ["https://bucket.example", "https://example/bucket"])
def test_the_retired_signature_is_botocores(address: str) -> None:
    place = BucketEndpoint(address, "", signature="s3", path="/bucket")
    signer = Signer(place, Keys("AKID", SECRET))
    url = f"{place.url}/a/b"
    request: Any = AWSRequest("GET", url, auth_path="/bucket/a/b")
    auth.HmacV1QueryAuth(signer.keys, expires=600).add_auth(request)
    assert signer.url(url, {}, 600).partition("Signature=")[2] == request.url.partition("Signature=")[2]
    assert "AWS AKID:" in signer.headers("GET", url, {}, "")["Authorization"]


def test_without_keys_nothing_is_signed() -> None:
    signer = Signer(BucketEndpoint("https://host/bucket", ""), None)
    assert signer.url("https://host/bucket/a", {}, 600) == "https://host/bucket/a"
    assert signer.headers("GET", "https://host/bucket/a", {"a": "b"}, "") == {"a": "b"}


def test_it_signs_at_the_time_of_the_server() -> None:
    assert "X-Amz-Date=20231114T231320Z" in Signer(BucketEndpoint("https://host/b", "r"), Keys("A", "B"), 3600).url(
        "https://host/b/k", {}, 1
    )


@pytest.fixture(scope="module")
def made(s3_server: Any) -> None:
    s3_server.make_bucket("signed")


@pytest.fixture
def bucket(made: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the clock of the real server is right


@pytest.mark.server
@pytest.mark.parametrize("key", ["plain", "with space", "ünïcode", "a//b", "plus+", "q?uery", "per%20cent"])
def test_a_real_server_accepts_it(s3_server: Any, bucket: None, key: str) -> None:
    s3_server.put("signed", key, key.encode())
    store = S3Store("s3://signed", s3_server.storage_options())
    source = store.source(store.info(f"signed/{key}"))
    assert urllib.request.urlopen(source.url).read() == key.encode()


@pytest.mark.server
@pytest.mark.parametrize(
    "settings",
    [
        {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32},
        {"Metadata": {"a": "y", "a-b": "x"}},
        {"Metadata": {"a": "", "a-b": "x"}},
        {"CacheControl": ""},
    ],
    ids=["customer-key", "metadata", "empty", "cache"],
)
def test_a_real_server_accepts_headers_whose_names_begin_alike_regression(
    s3_server: Any, bucket: None, settings: dict[str, Any]
) -> None:
    how = {**s3_server.storage_options(), "s3_additional_kwargs": settings}
    uri = f"s3://signed/{len(str(settings))}/m.safetensors"
    streamer.save({"w": torch.ones(3)}, uri, storage_options=how)
    assert streamer.load(uri, storage_options=how)["w"].sum() == 3


@pytest.mark.server
def test_a_signature_that_is_renewed_has_the_keys_of_that_moment(
    s3_server: Any, bucket: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refused the one before: the credentials may have been exchanged."""
    options = s3_server.storage_options()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options.pop("key"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options.pop("secret"))
    s3_server.put("signed", "renewed/a", b"bytes")
    store = S3Store("s3://signed/renewed/a", options)
    source = store.source(store.info("signed/renewed/a"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTHATMOMENT")
    renewed = source.refresh()
    assert renewed.url.partition("?")[0] == source.url.partition("?")[0]
    assert "AKIDOFTHATMOMENT" in renewed.headers["Authorization"]
