"""The S3 backend against a real server that verifies signatures: what it finds, signs, and says when refused.

The signed URLs are read with `urllib`, which adds nothing of its own, so that what is shown is the URL's doing.
"""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import sys
import time
import traceback
import urllib.error
import urllib.request
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import botocore
import pytest
from each_row import each_row
from servers.seaweedfs import SeaweedServer

import streamer
from streamer.backends.s3 import signing
from streamer.backends.s3.store import S3Store
from streamer.core.errors import (
    AccessDeniedError,
    CredentialsError,
    OptionError,
    StorageError,
    UsageError,
)
from streamer.core.options.limits import Limits
from streamer.core.store.sources import HttpSource, ObjectInfo

pytestmark = pytest.mark.server

DATA = bytes(range(256)) * 16


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("AWS_", "FSSPEC_")) or name.lower().endswith("_proxy") or name == "SSL_CERT_FILE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def tls_server(s3_tls_server: SeaweedServer) -> SeaweedServer:
    s3_tls_server.put("public", "a.bin", DATA)
    return s3_tls_server


_numbers = itertools.count()


@pytest.fixture
def bucket(s3_server: SeaweedServer) -> str:
    name = f"s3-backend-{os.getpid()}-{next(_numbers)}"
    s3_server.make_bucket(name)
    return name


def opened(server: SeaweedServer, uri: str, **changes: Any) -> S3Store:
    return S3Store(uri, {**server.storage_options(), **changes})


def signed(server: SeaweedServer, uri: str, **changes: Any) -> HttpSource:
    store = opened(server, uri, **changes)
    return store.source(store.info(store.root))


def get(source: HttpSource, **headers: str) -> tuple[int, bytes]:
    """Send the GET as the engine does: the source's headers and a condition, neither of them signed."""
    condition = {"If-Match": source.version} if source.version else {}
    request = urllib.request.Request(source.url, headers={**source.headers, **condition, **headers})
    trust = ssl.create_default_context()  # of SSL_CERT_FILE now: urllib keeps what it saw first
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def query(source: HttpSource) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(source.url).query).items()}


# --- what is found ------------------------------------------------------------------------------------------------


# --- what is signed -----------------------------------------------------------------------------------------------


def test_one_signature_serves_any_range_under_a_condition(s3_server: SeaweedServer, bucket: str) -> None:
    s3_server.put(bucket, "a.bin", DATA)
    source = signed(s3_server, f"s3://{bucket}/a.bin")
    assert get(source, Range="bytes=0-9") == (206, DATA[:10])
    assert get(source, Range="bytes=1000-2999") == (206, DATA[1000:3000])
    assert query(source)["X-Amz-SignedHeaders"] == "host"


def test_a_version_in_the_url_is_the_one_that_is_read(s3_server: SeaweedServer, bucket: str) -> None:
    with closing(s3_server.client()) as client:
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        old = client.put_object(Bucket=bucket, Key="a.bin", Body=b"old")
        client.put_object(Bucket=bucket, Key="a.bin", Body=b"newer")
    uri = f"s3://{bucket}/a.bin?versionId={old['VersionId']}"
    store = opened(s3_server, uri)
    info = store.info(store.root)
    assert (info.path, info.uri, info.size_bytes, info.version) == (f"{bucket}/a.bin", uri, 3, old["ETag"])
    assert get(store.source(info)) == (200, b"old")
    assert query(store.source(info))["versionId"] == old["VersionId"]


def test_a_refusal_says_that_anon_hides_the_key_regression(s3_server: SeaweedServer, bucket: str) -> None:
    s3_server.put(bucket, "a.bin", DATA)
    store = S3Store(f"s3://{bucket}/a.bin", {**s3_server.storage_options(), "anon": True})
    for ask in (store.info, store.find):
        with pytest.raises(streamer.AccessDeniedError, match="anon=True, so the key is not used"):
            ask(store.root)


@pytest.mark.parametrize("version", ["abc", "null"])
@pytest.mark.parametrize("kind", [{}, {"config_kwargs": {}}])
def test_a_version_of_a_bucket_without_versions_is_refused_regression(
    s3_server: SeaweedServer, bucket: str, version: str, kind: dict[str, Any]
) -> None:
    s3_server.put(bucket, "a.bin", b"current")
    store = S3Store(f"s3://{bucket}/a.bin?versionId={version}", {**s3_server.storage_options(), **kind})
    if version == "null":
        assert store.info(store.root).size_bytes == 7
        return
    with pytest.raises(streamer.ObjectNotFoundError, match=r"ignores \?versionId=, and answers without a version"):
        store.info(store.root)
    with pytest.raises(streamer.ObjectNotFoundError, match="versionId"):
        streamer.load(f"s3://{bucket}/a.bin?versionId={version}", storage_options=s3_server.storage_options())


def test_a_refresh_signs_again_for_the_same_object(
    s3_server: SeaweedServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.put(bucket, "a.bin", DATA)
    source = signed(s3_server, f"s3://{bucket}/a.bin")
    later = time.time() + 5
    monkeypatch.setattr(signing.time, "time", lambda: later)
    assert source.refresh is not None
    again = source.refresh()
    assert "X-Amz-Signature" in query(source)
    assert "Authorization" in again.headers  # a signature that is refused early may be forbidden in URLs
    assert again.version == source.version
    assert get(again, Range="bytes=5-9") == (206, DATA[5:10])


def test_a_refresh_takes_the_credentials_of_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile's process gives other keys at every call, and says that they expire before a signature would."""
    expiry = datetime.fromtimestamp(time.time() + 300, timezone.utc).isoformat()
    script = tmp_path / "keys.py"
    script.write_text(
        "import json, pathlib\n"
        f"calls = pathlib.Path({str(tmp_path / 'calls')!r})\n"
        "calls.open('a').write('x')\n"
        "n = calls.stat().st_size\n"
        "keys = {'Version': 1, 'AccessKeyId': f'AKID{n}', 'SecretAccessKey': 'S', 'SessionToken': f'T/{n}'}\n"
        f"print(json.dumps({{**keys, 'Expiration': {expiry!r}}}))\n"
    )
    process = f"credential_process = {sys.executable} {script}"
    (tmp_path / "config").write_text(f"[profile rotating]\n{process}\nregion = eu-west-1\n")
    store = S3Store("s3://bucket/key", {"profile": "rotating", "skip_instance_cache": True})
    first = store.source(_info(store))
    assert first.refresh is not None
    second = first.refresh()
    keys = [int(query(source)["X-Amz-Credential"].partition("/")[0].removeprefix("AKID")) for source in (first, second)]
    assert keys[1] > keys[0]
    assert query(second)["X-Amz-Security-Token"] == f"T/{keys[1]}"
    assert query(second)["X-Amz-Credential"].split("/")[2:4] == ["eu-west-1", "s3"]


def test_a_signature_says_when_it_expires_and_does(
    s3_server: SeaweedServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.put(bucket, "a.bin", DATA)
    store = opened(s3_server, f"s3://{bucket}/a.bin")
    before = time.time()
    source = store.source(store.info(store.root))
    assert source.expires_at_s is not None
    assert before + 590 < source.expires_at_s <= time.time() + 600
    assert query(source)["X-Amz-Expires"] == "600"
    monkeypatch.setattr(signing.time, "time", lambda: before - 601)
    store = opened(s3_server, f"s3://{bucket}/a.bin")  # which has signed no URL of the bucket yet
    assert get(store.source(_info(store)))[0] == 403


def test_requester_pays_is_signed_and_sent(s3_server: SeaweedServer, bucket: str) -> None:
    s3_server.put(bucket, "a.bin", DATA)
    source = signed(s3_server, f"s3://{bucket}/a.bin", requester_pays=True)
    assert source.headers["x-amz-request-payer"] == "requester"
    assert query(source)["X-Amz-SignedHeaders"] == "host;x-amz-request-payer"
    assert get(source, Range="bytes=0-9") == (206, DATA[:10])
    unsent = HttpSource(source.url)
    assert get(unsent)[0] == 403


@each_row(
    ("options", "host"),
    [
        ({}, "bucket.s3.amazonaws.com"),
        ({"client_kwargs": {"region_name": "eu-west-1"}}, "bucket.s3.eu-west-1.amazonaws.com"),
        ({"config_kwargs": {"s3": {"addressing_style": "path"}}}, "s3.amazonaws.com"),
        ({"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, "bucket.s3-accelerate.amazonaws.com"),
        ({"config_kwargs": {"use_dualstack_endpoint": True}}, "bucket.s3.dualstack.us-east-1.amazonaws.com"),
        ({"endpoint_url": "https://minio.example:9000"}, "minio.example:9000"),
        (
            {"endpoint_url": "https://minio.example", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
            "bucket.minio.example",
        ),
    ],
)
def test_the_host_is_the_one_botocore_would_ask(options: dict[str, Any], host: str) -> None:
    store = S3Store("s3://bucket/key", {"key": "AKID", "secret": "S", **options})
    url = urlsplit(store.source(_info(store)).url)
    assert url.netloc == host
    assert url.path == ("/key" if host.startswith("bucket.") else "/bucket/key")


@pytest.mark.parametrize("more", [{}, {"config_kwargs": {"use_dualstack_endpoint": True}}])
def test_a_region_that_an_answer_named_is_asked_and_signed_for(more: dict[str, Any]) -> None:
    store = S3Store("s3://bucket/key", {"key": "AKID", "secret": "S", **more})
    store._client._regions["bucket"] = "ap-south-2"
    source = store.source(_info(store))
    kind = "s3.dualstack" if more else "s3"
    assert urlsplit(source.url).netloc == f"bucket.{kind}.ap-south-2.amazonaws.com"
    assert query(source)["X-Amz-Credential"].split("/")[2] == "ap-south-2"


def test_a_bucket_with_dots_is_addressed_by_path_under_tls() -> None:
    store = S3Store("s3://dotted.bucket/key", {"key": "AKID", "secret": "S"})
    assert store.source(_info(store)).url.startswith("https://s3.amazonaws.com/dotted.bucket/key?")


def test_an_access_point_is_addressed_by_its_own_host_and_region() -> None:
    uri = "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/mine/folder/key"
    store = S3Store(uri, {"key": "AKID", "secret": "S", "client_kwargs": {"region_name": "us-west-2"}})
    source = store.source(_info(store))
    assert source.url.startswith("https://mine-123456789012.s3-accesspoint.us-west-2.amazonaws.com/folder/key?")


def test_a_virtual_host_is_signed_for_and_served(tls_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing resolves the name, so the server is asked at its address, with the Host that was signed."""
    port = urlsplit(tls_server.endpoint_url).port
    options = {
        **tls_server.storage_options(),
        "endpoint_url": f"https://s3.test:{port}",
        "config_kwargs": {"s3": {"addressing_style": "virtual"}},
    }
    store = S3Store("s3://public/a.bin", options)
    source = store.source(_info(store))
    assert urlsplit(source.url).netloc == f"public.s3.test:{port}"
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: real("127.0.0.1", *rest, **more))
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.ca_file))
    assert get(source, Range="bytes=0-9") == (206, DATA[:10])


@pytest.mark.parametrize("is_of_boto3", [False, True])
def test_anonymous_use_gives_the_bare_url(
    tls_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch, is_of_boto3: bool
) -> None:
    options = tls_server.anonymous_options()
    if is_of_boto3:
        del options["anon"]
        options["config_kwargs"] = {"signature_version": botocore.UNSIGNED}
    store = S3Store("s3://public/a.bin", options)
    source = store.source(store.info(store.root))
    assert source.url == f"{tls_server.endpoint_url}/public/a.bin"
    assert (source.expires_at_s, source.refresh) == (None, None)
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.ca_file))
    assert get(source, Range="bytes=0-9") == (206, DATA[:10])


def test_a_proxy_of_the_client_is_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = {"https": "http://user:CANARY@proxy:3128"}
    store = S3Store("s3://bucket/key", {"key": "AKID", "secret": "S", "config_kwargs": {"proxies": proxies}})
    source = store.source(_info(store))
    assert source.proxy == proxies["https"]
    assert "CANARY" not in repr(source)


# --- TLS ----------------------------------------------------------------------------------------------------------


def test_a_named_ca_is_trusted_and_handed_to_the_engine(tls_server: SeaweedServer) -> None:
    source = signed(tls_server, "s3://public/a.bin")
    assert source.ca_file == tls_server.ca_file


@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_ca_in_the_environment_is_trusted_and_handed_to_the_engine(
    tls_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(tls_server.ca_file))
    source = signed(tls_server, "s3://public/a.bin", client_kwargs={}, skip_instance_cache=True)
    assert source.ca_file == tls_server.ca_file


def test_tls_cannot_be_left_unverified(s3_server: SeaweedServer) -> None:
    with pytest.raises(OptionError, match="always verified"):
        opened(s3_server, "s3://bucket/key", client_kwargs={"verify": False})


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "cls", "code"),
    [
        ({"secret": "CANARY"}, CredentialsError, "SignatureDoesNotMatch"),
        ({"key": "AKIDUNKNOWN", "secret": "CANARY"}, CredentialsError, "InvalidAccessKeyId"),
        ({"token": "CANARY"}, CredentialsError, "InvalidAccessKeyId"),
        ({"anon": True}, AccessDeniedError, "AccessDenied"),
    ],
)
def test_a_refusal_gives_the_reason_and_no_secret(
    s3_server: SeaweedServer, bucket: str, changes: dict[str, Any], cls: type[StorageError], code: str
) -> None:
    s3_server.put(bucket, "a.bin", DATA)
    store = opened(s3_server, f"s3://{bucket}/a.bin", **changes)
    for ask in (lambda: store.info(store.root), lambda: store.find(bucket)):
        with pytest.raises(cls) as caught:
            ask()
        assert type(caught.value) is cls
        assert (caught.value.status, caught.value.code) == (403, code)
        shown = "".join(traceback.format_exception(caught.value)) + repr(store)
        assert "CANARY" not in shown
        assert s3_server.secret_key not in shown


def test_a_wrong_secret_signs_urls_that_are_refused(s3_server: SeaweedServer, bucket: str) -> None:
    s3_server.put(bucket, "a.bin", DATA)
    info = opened(s3_server, f"s3://{bucket}/a.bin").info(f"{bucket}/a.bin")
    status, body = get(opened(s3_server, f"s3://{bucket}/a.bin", secret="wrong").source(info))
    assert status == 403
    assert b"SignatureDoesNotMatch" in body


def test_a_key_without_rights_for_the_bucket_is_denied_and_not_called_unknown(
    s3_server: SeaweedServer, bucket: str
) -> None:
    s3_server.put(bucket, "a.bin", DATA)
    store = S3Store(f"s3://{bucket}/a.bin", s3_server.storage_options(s3_server.limited))
    with pytest.raises(AccessDeniedError) as caught:
        store.info(store.root)
    assert type(caught.value) is AccessDeniedError


def test_absent_credentials_are_a_credentials_error(s3_server: SeaweedServer) -> None:
    store = S3Store("s3://bucket/key", {"endpoint_url": s3_server.endpoint_url, "skip_instance_cache": True})
    with pytest.raises(CredentialsError, match="AWS_PROFILE"):
        store.info(store.root)
    with pytest.raises(CredentialsError, match="AWS_PROFILE"):
        store.source(_info(store))


@pytest.mark.parametrize("place", ["", "client_kwargs"])
def test_an_endpoint_without_a_scheme_is_refused(place: str) -> None:
    endpoint = {"endpoint_url": "127.0.0.1:9000"}
    with pytest.raises(OptionError, match=r"endpoint_url('\])? must begin with http:// or https://"):
        S3Store("s3://bucket/key", {place: endpoint} if place else endpoint)


def test_a_bucket_name_s3_could_never_have_is_the_callers_mistake(s3_server: SeaweedServer) -> None:
    with pytest.raises(UsageError, match="not valid"):
        opened(s3_server, "s3://no bucket!/key").info("no bucket!/key")


def _info(store: S3Store) -> ObjectInfo:
    """Describe the root without asking for it."""
    return ObjectInfo(store.root, "s3://bucket/key", size_bytes=len(DATA))


def test_what_is_written_is_no_form(s3_server: SeaweedServer) -> None:
    """libcurl says of an upload that it is one, unless it is reported otherwise."""
    opened(s3_server, "s3://private/written").write("private/written/file", b"{}")
    kept = s3_server.client().head_object(Bucket="private", Key="written/file")
    assert kept["ContentType"] == "application/octet-stream"


def test_the_bounds_of_each_load_count_where_loads_share_a_file_system_regression(s3_server: SeaweedServer) -> None:
    s3_server.put("private", "bounds/a.bin", DATA)
    options = {**s3_server.storage_options(), "config_kwargs": {"user_agent_extra": "bounds"}}
    uri = "s3://private/bounds"
    assert S3Store(uri, options).find("private/bounds")
    with pytest.raises(StorageError, match="more than 100 bytes"):
        S3Store(uri, options, Limits(answer_bytes=100)).find("private/bounds")
    assert S3Store(uri, options).find("private/bounds")
