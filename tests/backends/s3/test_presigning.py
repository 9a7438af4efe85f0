"""URLs that are signed after a template are those that botocore signs, and a real server accepts them."""

from __future__ import annotations

import time
import urllib.request

import pytest

from streamer.backends.s3 import signing
from streamer.backends.s3.botocore_client import BotocoreClient
from streamer.backends.s3.store import S3Store

LIFETIME_S = 600


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
def test_keys_that_change_in_a_url_are_left_to_botocore(client, by_botocore, key):
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
    assert "AKIDOFTHATMOMENT" in renewed.url
