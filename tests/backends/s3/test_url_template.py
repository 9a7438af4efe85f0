"""URLs that follow from one that botocore signed are those that botocore would sign."""

from __future__ import annotations

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from streamer.backends.s3 import signing
from streamer.backends.s3.signing import UrlTemplate

SECRET = "s3cr3t/+key"
BUCKETS = [
    "https://bucket.s3.eu-west-1.amazonaws.com/",
    "http://127.0.0.1:9000/bucket/",
    "https://minio.example:9443/prefix/bucket/",
]


def signed(url: str, *, token: str | None = None) -> str:
    """Sign with botocore."""
    request = AWSRequest("GET", url)
    keys = Credentials("AKID/EXAMPLE", SECRET, token)
    auth.S3SigV4QueryAuth(keys, "s3", "eu-west-1", expires=600).add_auth(request)
    return str(request.url)


def date_of(url: str) -> str:
    """Give the time of a signature."""
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
