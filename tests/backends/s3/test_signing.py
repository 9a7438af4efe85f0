"""Signatures of S3: the server's clock, URLs for the region of the bucket, and templates that sign as botocore does."""

from __future__ import annotations

import time
import urllib.request
from email.utils import formatdate

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from streamer.backends.client.answer_values import clock_offset_s
from streamer.backends.s3 import signing
from streamer.backends.s3.botocore_client import BotocoreClient
from streamer.backends.s3.signing import UrlTemplate
from streamer.backends.s3.store import S3Store

NOW_S = 1_700_000_000.0

SECRET = "s3cr3t/+key"
BUCKETS = [
    "https://bucket.s3.eu-west-1.amazonaws.com/",
    "http://127.0.0.1:9000/bucket/",
    "https://minio.example:9443/prefix/bucket/",
]

LIFETIME_S = 600


@pytest.mark.parametrize("offset_s", [3600, -3600, 61, -61, 30 * 365 * 86400, -50 * 365 * 86400])
def test_a_clock_that_differs_is_told_by_its_date(offset_s: int) -> None:
    assert clock_offset_s(formatdate(NOW_S + offset_s, usegmt=True), NOW_S) == offset_s


@pytest.mark.parametrize("offset_s", [0, 1, -30, 60, -60])
def test_a_difference_that_the_network_may_make_is_none(offset_s: int) -> None:
    assert clock_offset_s(formatdate(NOW_S + offset_s, usegmt=True), NOW_S) == 0


@pytest.mark.parametrize(
    "date",
    [None, "", "yesterday", "Thu, 01 Jan 1970", "Wed, 99 Foo 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:20 -0000"],
)
def test_a_header_that_tells_no_time_changes_nothing(date: str | None) -> None:
    assert clock_offset_s(date, NOW_S) is None


def signed(url: str, *, token: str | None = None) -> str:
    """Sign with botocore."""
    request = AWSRequest("GET", url)
    keys = Credentials("AKID/EXAMPLE", SECRET, token)
    auth.S3SigV4QueryAuth(keys, "s3", "eu-west-1", expires=600).add_auth(request)
    return str(request.url)


def date_of(url: str) -> str:
    """Return the time of a signature."""
    return url.partition("X-Amz-Date=")[2][:16]


@pytest.mark.parametrize("token", [None, "a+token/with=marks&more"])
@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("key", ["model.safetensors", "a/b/c-1_2~3.bin", "x..y/.hidden/z", "first", "a"])
def test_it_signs_as_botocore_does(bucket: str, key: str, token: str | None) -> None:
    while True:  # within one second
        template = UrlTemplate.of(signed(f"{bucket}first", token=token), "first", SECRET)
        expected = signed(bucket + key, token=token)
        assert template is not None
        of_template = template.url(key)
        assert of_template is not None
        if date_of(of_template) == date_of(expected):
            break
    assert of_template == expected


@pytest.mark.parametrize("key", ["with space", "ünïcode", "a//b", "a/./b", "..", "plus+", "q?uery", "a/", ""])
def test_keys_that_change_in_a_url_are_left_to_botocore(key: str) -> None:
    template = UrlTemplate.of(signed(f"{BUCKETS[0]}first"), "first", SECRET)
    assert template is not None
    assert template.url(key) is None
    assert UrlTemplate.of(signed(BUCKETS[0] + key), key, SECRET) is None


@pytest.mark.parametrize(
    "url",
    [
        f"{BUCKETS[0]}first?AWSAccessKeyId=AKID&Signature=c2ln&Expires=1700000000",
        signed(f"{BUCKETS[0]}first") + "&versionId=1",
        f"{BUCKETS[0]}first",
        "first",
        "",
    ],
)
def test_there_is_no_template_of_another_signature(url: str) -> None:
    assert UrlTemplate.of(url, "first", SECRET) is None


def test_there_is_no_template_with_another_key() -> None:
    assert UrlTemplate.of(signed(f"{BUCKETS[0]}first"), "first", "another") is None


def test_it_signs_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    template = UrlTemplate.of(signed(f"{BUCKETS[0]}first"), "first", SECRET)
    assert template is not None
    now = signing.time.monotonic()
    monkeypatch.setattr(signing.time, "monotonic", lambda: now + signing.LIFETIME_S + 1)
    assert template.url("second") is None


@pytest.fixture(scope="module")
def bucket(s3_server):
    s3_server.make_bucket("signed")


@pytest.fixture
def client(s3_server, bucket):
    return BotocoreClient(s3_server.storage_options())


@pytest.fixture
def by_botocore(monkeypatch):
    """Count the URLs that botocore signs by itself."""
    keys = []
    signed = signing.presigned_get

    def counted(client, lifetime_s, **parameters):
        keys.append(parameters["Key"])
        return signed(client, lifetime_s, **parameters)

    monkeypatch.setattr("streamer.backends.s3.botocore_client.presigned_get", counted)
    return keys


def signed_at_one_time(client, key):
    """Sign with the template and with botocore, within the same second."""
    while True:
        of_template = client.signed_get("signed", LIFETIME_S, Key=key)
        client._templates.clear()
        of_botocore = client.signed_get("signed", LIFETIME_S, Key=key)
        if of_template.partition("X-Amz-Date=")[2][:16] == of_botocore.partition("X-Amz-Date=")[2][:16]:
            return of_template, of_botocore


@pytest.mark.server
@pytest.mark.parametrize("key", ["model.safetensors", "a/b/c-1_2~3.bin", "x..y/.hidden/z"])
def test_a_template_signs_as_botocore_does(client, key):
    client.signed_get("signed", LIFETIME_S, Key="first")
    of_template, of_botocore = signed_at_one_time(client, key)
    assert of_template == of_botocore


@pytest.mark.server
def test_the_server_accepts_what_a_template_signs(client, s3_server, by_botocore):
    keys = [f"folder/object-{i}" for i in range(5)]
    for key in keys:
        s3_server.put("signed", key, key.encode())
    urls = [client.signed_get("signed", LIFETIME_S, Key=key) for key in keys]
    assert [urllib.request.urlopen(url).read() for url in urls] == [key.encode() for key in keys]
    assert len(by_botocore) < len(keys)


@pytest.mark.server
@pytest.mark.parametrize("key", ["with space", "ünïcode", "a//b", "a/./b", "a/../b", "plus+", "q?uery", "a/"])
def test_a_client_leaves_keys_that_change_in_a_url_to_botocore(client, by_botocore, key):
    client.signed_get("signed", LIFETIME_S, Key="first")
    client.signed_get("signed", LIFETIME_S, Key=key)
    assert by_botocore == ["first", key]


@pytest.mark.server
def test_versions_are_left_to_botocore(client, by_botocore):
    client.signed_get("signed", LIFETIME_S, Key="first")
    client.signed_get("signed", LIFETIME_S, Key="second", VersionId="1")
    assert by_botocore == ["first", "second"]


@pytest.mark.server
def test_a_template_is_soon_made_anew(client, by_botocore, monkeypatch):
    client.signed_get("signed", LIFETIME_S, Key="first")
    now = time.monotonic()
    monkeypatch.setattr(signing.time, "monotonic", lambda: now + signing.LIFETIME_S + 1)
    client.signed_get("signed", LIFETIME_S, Key="second")
    assert by_botocore == ["first", "second"]


@pytest.mark.server
def test_a_signature_that_is_renewed_has_the_keys_of_that_moment(s3_server, bucket, monkeypatch):
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
