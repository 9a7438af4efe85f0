"""The GCS backend against an emulator and the gate before it: what it finds, asks with, and says when refused.

The sources are read with `urllib`, which adds nothing of its own, so that what is shown is URL's and headers' doing.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from servers.gcs_emulator import GcsServer, Seen
from servers.scripted_http import ScriptedServer

from streamer.backends.gcs.credentials import LOGINS
from streamer.backends.gcs.store import GcsStore
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    HttpStatusError,
    ObjectNotFoundError,
    OptionError,
    RedirectError,
    StorageError,
    TlsError,
)
from streamer.core.store.sources import HttpSource, ObjectInfo

pytestmark = pytest.mark.server

DATA = bytes(range(256)) * 16


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("GOOGLE_", "GCS", "CLOUDSDK_", "STORAGE_", "FSSPEC_")) or name.lower().endswith(
            ("_proxy", "ssl_cert_file", "_ca_bundle")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))  # where google-auth looks for a login
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)  # else it waits for 169.254.169.254
    monkeypatch.setattr("gcsfs.credentials.GoogleCredentials.tokens", {})
    LOGINS.clear()


_numbers = itertools.count()


@pytest.fixture
def bucket(gcs_server: GcsServer) -> str:
    name = f"gcs-backend-{os.getpid()}-{next(_numbers)}"
    gcs_server.make_bucket(name)
    return name


@pytest.fixture(scope="module")
def owner(gcs_server: GcsServer) -> dict[str, Any]:
    """The options of a service account that may do everything; making its key takes a tenth of a second."""
    return gcs_server.storage_options()


def source_of(uri: str, options: dict[str, Any]) -> HttpSource:
    store = GcsStore(uri, options)
    return store.source(store.info(store.root))


def get(source: HttpSource, **headers: str) -> tuple[int, bytes]:
    """Send the GET as the engine does, which sets no condition of its own for this version header."""
    request = urllib.request.Request(source.url, headers={**source.headers, **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def query(source: HttpSource) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(source.url).query).items()}


def info_of(store: GcsStore, generation: str | None = "7") -> ObjectInfo:
    """Describe the root without asking for it."""
    return ObjectInfo(store.root, "gs://bucket/key", size_bytes=len(DATA), version=generation)


# --- what is found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "second_page",
    [
        lambda: web.json_response({"items": [], "nextPageToken": "again"}),
        lambda: web.json_response({"error": {}}, status=403),
        lambda: web.Response(body=b"<html>"),
        lambda: web.json_response({"items": [{"name": "without a size"}]}),
    ],
    ids=["the same page for ever", "refused", "no JSON", "no object"],
)
def test_a_listing_that_breaks_off_is_an_error(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any], second_page: Any
) -> None:
    def break_off(seen: Seen) -> web.Response | None:
        if "delimiter" not in seen.query:
            return None
        return second_page() if "pageToken" in seen.query else web.json_response({"items": [], "nextPageToken": "2"})

    with gcs_server.interfering(break_off), pytest.raises(StorageError):
        GcsStore(f"gs://{bucket}/m", owner).find(f"{bucket}/m")


# --- what is read with --------------------------------------------------------------------------------------------


def test_any_range_is_read_under_the_condition_of_the_generation(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any]
) -> None:
    generation = gcs_server.put(bucket, "a.bin", DATA)
    source = source_of(f"gs://{bucket}/a.bin", owner)
    assert query(source) == {"alt": "media", "ifGenerationMatch": generation}
    assert (source.version_header, source.version) == ("x-goog-generation", None)
    assert get(source, Range="bytes=0-9") == (206, DATA[:10])
    assert get(source, Range="bytes=1000-2999") == (206, DATA[1000:3000])
    gcs_server.put(bucket, "a.bin", DATA[::-1])
    assert get(source, Range="bytes=0-9")[0] == 412


@pytest.mark.parametrize("form", ["#{}", "?generation={}"])
def test_a_generation_in_the_url_is_the_one_that_is_read(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any], form: str
) -> None:
    generation = gcs_server.put(bucket, "a.bin", DATA)
    store = GcsStore(f"gs://{bucket}/a.bin" + form.format(generation), owner)
    info = store.info(store.root)
    assert (info.path, info.uri) == (f"{bucket}/a.bin", f"gs://{bucket}/a.bin#{generation}")
    source = store.source(info)
    assert query(source) == {"alt": "media", "generation": generation}
    assert get(source) == (200, DATA)
    gcs_server.put(bucket, "a.bin", DATA[::-1])
    assert get(source)[0] == 404
    with pytest.raises(ObjectNotFoundError, match="name and generation"):
        store.info(store.root)


def test_the_project_that_pays_is_named_in_every_request(gcs_server: GcsServer, owner: dict[str, Any]) -> None:
    gcs_server.put("paying", "a.bin", DATA)
    for pays in (gcs_server.project, True):
        options = {**owner, "requester_pays": pays, "project": gcs_server.project}
        store = GcsStore("gs://paying/a.bin", options)
        assert "paying/a.bin" in [info.path for info in store.find("paying")]
        source = store.source(store.info(store.root))
        assert query(source)["userProject"] == gcs_server.project
        assert get(source, Range="bytes=0-9") == (206, DATA[:10])


def test_anonymous_use_sends_no_token(gcs_server: GcsServer) -> None:
    gcs_server.put("public", "a.bin", DATA)
    source = source_of("gs://public/a.bin", gcs_server.anonymous_options())
    assert (source.headers, source.expires_at_s, source.refresh) == ({}, None, None)
    assert get(source, Range="bytes=0-9") == (206, DATA[:10])


def test_the_bare_emulator_is_found_through_its_environment_variable(
    gcs_server: GcsServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    for spelled in (gcs_server.emulator_url, gcs_server.emulator_url + "/", gcs_server.emulator_url[len("http://") :]):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", spelled)
        source = source_of(f"gs://{bucket}/a.bin", {})
        assert source.headers == {}
        assert get(source, Range="bytes=0-9") == (206, DATA[:10])


def test_an_endpoint_in_the_options_wins_over_the_environment(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    assert source_of(f"gs://{bucket}/a.bin", owner).url.startswith(gcs_server.endpoint_url)


def test_the_default_endpoint_is_googles() -> None:
    store = GcsStore("gs://bucket/a/b", {"token": "ya29.RAW"})
    source = store.source(info_of(store))
    assert (
        source.url
        == "https://storage.googleapis.com/download/storage/v1/b/bucket/o/a%2Fb?alt=media&ifGenerationMatch=7"
    )
    assert source.headers == {"Authorization": "Bearer ya29.RAW"}


# --- credentials --------------------------------------------------------------------------------------------------


def test_a_service_account_signs_in_and_its_token_says_when_it_ends(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any]
) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    before = time.time()
    source = source_of(f"gs://{bucket}/a.bin", owner)
    token = source.headers["Authorization"].removeprefix("Bearer ")
    assert gcs_server.gate.tokens[token].identity == "owner"
    assert source.expires_at_s is not None
    assert before + 3500 < source.expires_at_s <= time.time() + 3600


@pytest.mark.parametrize("way", ["path", "environment"])
def test_a_key_file_is_used(
    gcs_server: GcsServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    file = tmp_path / "key.json"
    file.write_text(json.dumps(gcs_server.service_account()))
    options = {"endpoint_url": gcs_server.endpoint_url} | ({"token": str(file)} if way == "path" else {})
    if way == "environment":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert get(source_of(f"gs://{bucket}/a.bin", options)) == (200, DATA)


def test_the_key_file_of_this_moment_is_used_not_that_of_an_earlier_call(
    gcs_server: GcsServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    options = {"endpoint_url": gcs_server.endpoint_url}
    for identity, status in (("owner", 200), ("stranger", 403)):
        file = tmp_path / f"{identity}.json"
        file.write_text(json.dumps(gcs_server.service_account(identity)))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        store = GcsStore(f"gs://{bucket}/a.bin", options)
        assert get(store.source(info_of(store, generation=None)))[0] == status


def test_default_credentials_of_another_project_are_used_all_the_same(
    gcs_server: GcsServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gcsfs would go on anonymously."""
    gcs_server.put(bucket, "a.bin", DATA)
    file = tmp_path / "key.json"
    file.write_text(json.dumps(gcs_server.service_account()))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    options = {"endpoint_url": gcs_server.endpoint_url, "project": "another-project"}
    assert get(source_of(f"gs://{bucket}/a.bin", options)) == (200, DATA)


def test_a_raw_token_is_used_without_asking_google_about_it(gcs_server: GcsServer, bucket: str) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    options = {"endpoint_url": gcs_server.endpoint_url, "token": gcs_server.gate.issue("owner")}
    source = source_of(f"gs://{bucket}/a.bin", options)
    assert get(source) == (200, DATA)
    assert source.expires_at_s is None


def test_a_refresh_gets_another_token_for_the_same_generation(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any]
) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    source = source_of(f"gs://{bucket}/a.bin", owner)
    assert source.refresh is not None
    again = source.refresh()
    assert again.url == source.url
    assert again.headers["Authorization"] != source.headers["Authorization"]
    assert get(again, Range="bytes=5-9") == (206, DATA[5:10])


def test_many_sources_share_one_new_token(gcs_server: GcsServer, bucket: str, owner: dict[str, Any]) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    store = GcsStore(f"gs://{bucket}/a.bin", owner)
    sources = [store.source(store.info(store.root)) for _ in range(5)]
    with gcs_server.interfering(lambda seen: None) as seen:
        tokens = {source.refresh().headers["Authorization"] for source in sources if source.refresh}
    assert len(tokens) == 1
    assert [request.path for request in seen] == ["/token"]


def test_a_token_that_was_revoked_is_renewed_once(gcs_server: GcsServer, bucket: str, owner: dict[str, Any]) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    store = GcsStore(f"gs://{bucket}/a.bin", owner)
    store.info(store.root)
    gcs_server.gate.tokens.clear()
    assert store.info(store.root).size_bytes == len(DATA)


def test_a_failing_token_server_is_no_error_while_the_old_token_is_valid(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """google-auth wants a new one four minutes before the end."""
    gcs_server.put(bucket, "a.bin", DATA)
    monkeypatch.setattr(gcs_server.gate, "issued_lifetime_s", 120)
    store = GcsStore(f"gs://{bucket}/a.bin", owner)
    source = store.source(store.info(store.root))
    monkeypatch.setattr(gcs_server.gate, "certificates", {})
    assert store.source(store.info(store.root)).headers == source.headers
    assert source.refresh is not None
    assert source.refresh().headers == source.headers


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_404_without_a_body_of_the_bare_emulator_is_distinguished_too(gcs_server: GcsServer, bucket: str) -> None:
    options = {"endpoint_url": gcs_server.emulator_url, "token": "anon"}
    with pytest.raises(ObjectNotFoundError, match="no object of this name"):
        GcsStore(f"gs://{bucket}/absent", options).info(f"{bucket}/absent")
    with pytest.raises(ObjectNotFoundError, match="no bucket 'absent-bucket'"):
        GcsStore("gs://absent-bucket/a", options).info("absent-bucket/a")


def refused(uri: str, options: dict[str, Any]) -> list[StorageError]:
    """Ask for the object and for the listing."""
    store = GcsStore(uri, options)
    errors = []
    for ask in (lambda: store.info(store.root), lambda: store.find(store.root)):
        with pytest.raises(StorageError) as caught:
            ask()
        errors.append(caught.value)
        shown = "".join(traceback.format_exception(caught.value)) + repr(store)
        assert "SERVERTEXT" not in shown
        assert "PRIVATE KEY" not in shown
        assert "ya29" not in shown
    return errors


def test_absent_credentials_say_what_to_set(gcs_server: GcsServer) -> None:
    gcs_server.put("private", "a.bin", DATA)
    for error in refused("gs://private/a.bin", {"endpoint_url": gcs_server.endpoint_url}):
        assert isinstance(error, CredentialsError)
        assert "No Google credentials were found" in str(error)
        assert all(way in str(error) for way in ("GOOGLE_APPLICATION_CREDENTIALS", "gcloud auth", "'token'"))
        assert error.status == 401


def test_absent_credentials_are_looked_for_again_after_a_refusal(
    gcs_server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs_server.put("private", "a.bin", DATA)
    options = {"endpoint_url": gcs_server.endpoint_url}
    refused("gs://private/a.bin", options)
    file = tmp_path / "key.json"
    file.write_text(json.dumps(gcs_server.service_account()))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert get(source_of("gs://private/a.bin", options)) == (200, DATA)


def test_without_credentials_a_public_bucket_can_be_read(gcs_server: GcsServer) -> None:
    gcs_server.put("public", "a.bin", DATA)
    assert get(source_of("gs://public/a.bin", {"endpoint_url": gcs_server.endpoint_url})) == (200, DATA)


def test_a_private_bucket_refuses_an_anonymous_caller(gcs_server: GcsServer) -> None:
    gcs_server.put("private", "a.bin", DATA)
    for error in refused("gs://private/a.bin", gcs_server.anonymous_options()):
        assert type(error) is AccessDeniedError
        assert "not public" in str(error)


def test_an_emulator_that_wants_credentials_is_explained(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs_server.put("private", "a.bin", DATA)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.endpoint_url)
    for error in refused("gs://private/a.bin", {}):
        assert isinstance(error, CredentialsError)
        assert "STORAGE_EMULATOR_HOST" in str(error)


@pytest.mark.parametrize("lifetime_s", [-1, None], ids=["expired", "unknown"])
def test_a_bad_token_is_a_credentials_error(gcs_server: GcsServer, lifetime_s: float | None) -> None:
    gcs_server.put("private", "a.bin", DATA)
    token = "ya29.unknown" if lifetime_s is None else gcs_server.gate.issue("owner", lifetime_s)
    for error in refused("gs://private/a.bin", {"endpoint_url": gcs_server.endpoint_url, "token": token}):
        assert isinstance(error, CredentialsError)
        assert (error.status, error.code) == (401, "authError")


def test_a_raw_token_cannot_be_renewed_and_the_error_says_so(gcs_server: GcsServer) -> None:
    gcs_server.put("private", "a.bin", DATA)
    options = {"endpoint_url": gcs_server.endpoint_url, "token": gcs_server.gate.issue("owner")}
    source = source_of("gs://private/a.bin", options)
    assert source.refresh is not None
    with pytest.raises(CredentialsError, match="could not be renewed") as caught:
        source.refresh()
    assert "ya29" not in "".join(traceback.format_exception(caught.value))


def test_a_key_google_does_not_know_is_a_credentials_error(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = gcs_server.storage_options()
    monkeypatch.setattr(gcs_server.gate, "certificates", {})
    for error in refused("gs://private/a.bin", options):
        assert isinstance(error, CredentialsError)
        assert error.code == "invalid_grant"


def test_an_unreachable_token_server_is_a_connection_error(gcs_server: GcsServer, closed_port: int) -> None:
    account = {**gcs_server.service_account(), "token_uri": f"http://127.0.0.1:{closed_port}/token"}
    for error in refused("gs://private/a.bin", {"endpoint_url": gcs_server.endpoint_url, "token": account}):
        assert isinstance(error, ConnectError)
        assert "access tokens" in str(error)


def test_an_identity_without_rights_is_denied_and_not_called_unknown(gcs_server: GcsServer) -> None:
    gcs_server.put("private", "a.bin", DATA)
    for error in refused("gs://private/a.bin", gcs_server.storage_options("stranger")):
        assert type(error) is AccessDeniedError
        assert (error.status, error.code) == (403, "forbidden")
        assert "storage.objects.get" in str(error)


def test_a_reader_without_the_right_to_list_reads(gcs_server: GcsServer) -> None:
    gcs_server.put("private", "a.bin", DATA)
    store = GcsStore("gs://private/a.bin", gcs_server.storage_options("reader"))
    with pytest.raises(AccessDeniedError):
        store.find("private")
    assert get(store.source(store.info(store.root))) == (200, DATA)


def test_a_reader_without_the_right_to_list_gets_not_found(gcs_server: GcsServer) -> None:
    with pytest.raises(ObjectNotFoundError, match="no object of this name"):
        GcsStore("gs://private/absent", gcs_server.storage_options("reader")).info("private/absent")


def test_the_error_tells_a_reader_who_must_pay_how_to_pay(gcs_server: GcsServer, owner: dict[str, Any]) -> None:
    gcs_server.put("paying", "a.bin", DATA)
    for error in refused("gs://paying/a.bin", owner):
        assert isinstance(error, AccessDeniedError)
        assert (error.status, error.code) == (400, "UserProjectMissing")
        assert "requester_pays" in str(error)


def test_a_project_that_cannot_pay_is_named(gcs_server: GcsServer, owner: dict[str, Any]) -> None:
    for error in refused("gs://paying/a.bin", {**owner, "requester_pays": "no-such-project"}):
        assert isinstance(error, AccessDeniedError)
        assert error.status == 400
        assert "'no-such-project'" in str(error)


def test_requester_pays_without_any_project_is_the_callers_mistake() -> None:
    with pytest.raises(OptionError, match="requester_pays='my-project'"):
        GcsStore("gs://bucket/key", {"token": "ya29.x", "requester_pays": True})


# --- the network --------------------------------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> Any:
    with socket.socket() as bound:  # so nobody else listens there
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_server_that_recovers_is_asked_again(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any], failures: int
) -> None:
    gcs_server.put(bucket, "a.bin", DATA)
    left = iter(range(failures))
    with gcs_server.interfering(lambda seen: web.Response(status=503) if next(left, None) is not None else None):
        assert GcsStore(f"gs://{bucket}/a.bin", owner).info(f"{bucket}/a.bin").size_bytes == len(DATA)


def test_a_server_that_does_not_recover_is_asked_three_times(
    gcs_server: GcsServer, bucket: str, owner: dict[str, Any]
) -> None:
    store = GcsStore(f"gs://{bucket}/a.bin", owner)
    store.source(info_of(store))  # so that there is a token
    with (
        gcs_server.interfering(lambda seen: web.Response(status=503)) as seen,
        pytest.raises(HttpStatusError) as caught,
    ):
        store.info(store.root)
    assert (caught.value.status, caught.value.attempts, len(seen)) == (503, 3, 3)


def test_a_redirect_is_not_followed(gcs_server: GcsServer, bucket: str, owner: dict[str, Any]) -> None:
    store = GcsStore(f"gs://{bucket}/a.bin", owner)
    elsewhere = {"Location": gcs_server.emulator_url}
    with (
        gcs_server.interfering(lambda seen: web.Response(status=302, headers=elsewhere)),
        pytest.raises(RedirectError),
    ):
        store.info(store.root)


def test_a_page_of_another_service_is_reported(gcs_server: GcsServer, bucket: str, owner: dict[str, Any]) -> None:
    store = GcsStore(f"gs://{bucket}/a.bin", owner)
    with (
        gcs_server.interfering(lambda seen: web.Response(body=b"<html>welcome")),
        pytest.raises(StorageError, match="endpoint_url"),
    ):
        store.info(store.root)


def test_a_proxy_in_the_environment_is_obeyed(
    closed_port: int, gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:CANARY@127.0.0.1:{closed_port}")
    options = {"token": "anon", "endpoint_url": "http://storage.test"}
    with pytest.raises(ConnectError, match="proxy") as caught:
        GcsStore("gs://bucket/key", options).info("bucket/key")
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(ObjectNotFoundError):
        GcsStore("gs://absent/key", gcs_server.anonymous_options()).info("absent/key")


def test_a_proxy_of_the_session_is_the_sources() -> None:
    session = {"proxy": "http://proxy:3128", "proxy_auth": SimpleNamespace(login="user", password="CANARY")}
    store = GcsStore("gs://bucket/key", {"token": "anon", "session_kwargs": session})
    source = store.source(info_of(store))
    assert source.proxy == "http://user:CANARY@proxy:3128"
    assert "CANARY" not in repr(source)


# --- TLS ----------------------------------------------------------------------------------------------------------


def tls_endpoint(server: ScriptedServer) -> str:
    return server.url.removesuffix("/object")


def trust(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert server.authority is not None
    server.authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


def test_a_ca_in_the_environment_counts_for_the_token_server_too(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This one refuses to give a token, but is understood."""
    with ScriptedServer(b"", with_tls=True) as server:
        account = {**gcs_server.service_account(), "token_uri": tls_endpoint(server)}
        options = {"endpoint_url": gcs_server.endpoint_url, "token": account}
        with pytest.raises(TlsError, match="access tokens"):
            GcsStore("gs://private/a.bin", options).info("private/a.bin")
        trust(server, monkeypatch, tmp_path)
        with pytest.raises(CredentialsError):
            GcsStore("gs://private/a.bin", options).info("private/a.bin")


def test_a_connector_that_does_not_verify_is_refused() -> None:
    connector = SimpleNamespace(_ssl=False)  # aiohttp's own needs a running loop
    with pytest.raises(OptionError, match="always verified"):
        GcsStore("gs://bucket/key", {"token": "anon", "session_kwargs": {"connector": connector}})


# --- the caller ---------------------------------------------------------------------------------------------------


def test_a_named_key_file_that_is_unusable_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.json").write_text('{"private_key": "CANARY"')
    for name in ("absent.json", "broken.json"):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / name))
        with pytest.raises(CredentialsError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
            GcsStore("gs://bucket/key", {})
        assert "CANARY" not in "".join(traceback.format_exception(caught.value))
