"""The Azure backend against a real server that verifies keys, SAS and tokens: what it finds and grants, and its errors.

The granted URLs are read with `urllib`, which adds nothing of its own, so that what is shown is the grant's doing.
"""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.identity import CredentialUnavailableError
from servers.azurite import AzuriteServer, Login

from streamer.backends.azure import AzureStore
from streamer.backends.azure import client as azure_client
from streamer.backends.client import retry
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    ObjectNotFoundError,
    StorageError,
    TransferTimeoutError,
    UsageError,
)
from streamer.core.store.sources import HttpSource, ObjectInfo

pytestmark = pytest.mark.server

DATA = bytes(range(256)) * 16
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("AZURE_", "FSSPEC_")) or name.lower().endswith("_proxy") or name == "SSL_CERT_FILE":
            monkeypatch.delenv(name)


@pytest.fixture
def container(azure_server: AzuriteServer) -> str:
    name = f"backend-{os.getpid()}-{next(_numbers)}"
    azure_server.make_container(name)
    return name


@pytest.fixture
def tls_server(azure_tls_server: AzuriteServer) -> AzuriteServer:
    for name in ("private", "public"):
        azure_tls_server.put(name, "a.bin", DATA)
    return azure_tls_server


def opened(server: AzuriteServer, uri: str, **changes: Any) -> AzureStore:
    return AzureStore(uri, server.storage_options(**changes))


def granted(store: AzureStore) -> HttpSource:
    return store.source(store.info(store.root))


def get(source: HttpSource, **headers: str) -> tuple[int, bytes]:
    """Send the GET as the engine does: the source's headers and a condition."""
    condition = {"If-Match": source.version} if source.version else {}
    request = urllib.request.Request(source.url, headers={**source.headers, **condition, **headers})
    trust = ssl.create_default_context(cafile=source.ca_file) if source.ca_file else None
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def query(source: HttpSource) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(source.url).query).items()}


def refused(store: AzureStore, path: str | None = None) -> StorageError:
    with pytest.raises(StorageError) as caught:
        store.info(path or store.root)
    return caught.value


# --- what is found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        "az://{container}/",
        "abfs://{container}/",
        "abfs://{container}@{account}.dfs.core.windows.net/",
        "abfss://{container}@{account}.dfs.core.windows.net/",
        "abfss://{account}.blob.core.windows.net/{container}/",
        "https://{account}.blob.core.windows.net/{container}/",
        "https://{account}.dfs.core.windows.net/{container}/",
    ],
)
def test_info_has_size_and_etag_for_every_form_of_url(azure_server: AzuriteServer, container: str, form: str) -> None:
    etag = azure_server.put(container, "models/a.safetensors", DATA)
    uri = form.format(container=container, account=azure_server.account) + "models/a.safetensors"
    store = opened(azure_server, uri)
    info = store.info(store.root)
    assert info == ObjectInfo(f"{container}/models/a.safetensors", uri, size_bytes=len(DATA), version=etag)


def test_blobs_that_stand_for_folders_are_none(azure_server: AzuriteServer, container: str) -> None:
    azure_server.put(container, "m/sub", b"", metadata={"hdi_isfolder": "true"})
    azure_server.put(container, "m/sub/a.bin", DATA)
    store = opened(azure_server, f"az://{container}/m")
    assert store.find(store.root) == []
    with pytest.raises(ObjectNotFoundError, match="folder"):
        store.info(f"{container}/m/sub")


# --- what is granted ----------------------------------------------------------------------------------------------


def test_a_signature_reads_its_blob_and_nothing_else(azure_server: AzuriteServer, container: str) -> None:
    azure_server.put(container, "a.bin", DATA)
    azure_server.put(container, "b.bin", DATA)
    source = granted(opened(azure_server, f"az://{container}/a.bin"))
    assert (query(source)["sp"], query(source)["sr"]) == ("r", "b")
    assert get(HttpSource(source.url.replace("/a.bin", "/b.bin"), source.headers))[0] == 403


def test_a_signature_begins_in_the_past_and_is_made_again_before_it_expires(
    azure_server: AzuriteServer, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure_server.put(container, "a.bin", DATA)
    store = opened(azure_server, f"az://{container}/a.bin")
    info = store.info(store.root)
    with monkeypatch.context() as patch:
        patch.setattr(azure_client, "SIGNATURE_LIFETIME_S", -1)
        expired = store.source(info)
    assert get(expired)[0] == 403
    assert expired.expires_at_s is not None
    assert expired.expires_at_s < time.time()
    assert expired.refresh is not None
    renewed = expired.refresh()
    assert get(renewed) == (200, DATA)
    assert renewed.version == info.version
    assert query(renewed)["st"] < time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 200))


def test_a_signature_made_for_https_is_for_https_alone(tls_server: AzuriteServer) -> None:
    assert query(granted(opened(tls_server, "az://private/a.bin")))["spr"] == "https"


def test_names_are_decoded_in_https_urls_alone(azure_server: AzuriteServer, container: str) -> None:
    azure_server.put(container, "a b/é?.bin", DATA)
    uri = f"https://{azure_server.account}.blob.core.windows.net/{container}/a%20b/%C3%A9%3F.bin"
    store = opened(azure_server, uri)
    assert store.root == f"{container}/a b/é?.bin"
    assert store.info(store.root).uri == uri
    assert get(granted(store)) == (200, DATA)


def keys_of(server: AzuriteServer) -> dict[str, dict[str, Any]]:
    connection = server.connection_string
    return {
        "connection_string": {"connection_string": connection},
        "named_key": {**server.host_options(), "credential": AzureNamedKeyCredential(server.account, server.key)},
        "account_key": {**server.host_options(), "account_key": server.key},
        "credential": {**server.host_options(), "credential": server.key},
    }


@pytest.mark.parametrize("kind", ["account_key", "connection_string", "credential", "named_key"])
def test_every_way_to_give_an_account_key_signs(tls_server: AzuriteServer, kind: str) -> None:
    options = {"connection_verify": tls_server.ca_file, **keys_of(tls_server)[kind]}
    source = granted(AzureStore("az://private/a.bin", options))
    assert get(source) == (200, DATA)
    assert source.refresh is not None


def test_a_given_sas_is_passed_on(tls_server: AzuriteServer) -> None:
    for sas in (tls_server.container_sas("private"), tls_server.blob_sas("private", "a.bin")):
        for options in (tls_server.sas_options(sas), {**tls_server.host_options(), "credential": f"?{sas}"}):
            source = granted(AzureStore("az://private/a.bin", options))
            assert get(source) == (200, DATA)
            assert (source.expires_at_s, source.refresh) == (None, None)


def test_a_sas_credential_is_asked_again_before_it_expires(tls_server: AzuriteServer) -> None:
    credential = AzureSasCredential(tls_server.blob_sas("private", "a.bin", lifetime_s=60))
    source = granted(AzureStore("az://private/a.bin", {**tls_server.host_options(), "credential": credential}))
    assert get(source) == (200, DATA)
    credential.update(tls_server.blob_sas("private", "a.bin", lifetime_s=6000))
    assert source.refresh is not None
    renewed = source.refresh()
    assert get(renewed) == (200, DATA)
    assert (renewed.expires_at_s or 0) > (source.expires_at_s or 0) > time.time()


@pytest.mark.parametrize(
    "uri",
    [
        "az://private/a.bin?{sas}",
        "abfss://private@{account}.dfs.core.windows.net/a.bin?{sas}",
        "https://{account}.blob.core.windows.net/private/a.bin?{sas}",
    ],
)
def test_a_sas_in_the_url_is_the_credential_and_is_never_shown(
    tls_server: AzuriteServer, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=other;AccountKey=AAAA")
    sas = tls_server.blob_sas("private", "a.bin")
    store = AzureStore(uri.format(sas=sas, account=tls_server.account), tls_server.host_options())
    info = store.info(store.root)
    source = store.source(info)
    assert get(source) == (200, DATA)
    signature = parse_qs(sas)["sig"][0]
    for shown in (repr(store), store.root, repr(info), repr(source)):
        assert "sig=" not in shown
        assert signature not in shown


def test_a_token_is_sent_as_a_header_and_fetched_again_when_it_is_about_to_expire(tls_server: AzuriteServer) -> None:
    login = Login(azure_client.TOKEN_RESERVE_S - 60)
    source = granted(AzureStore("az://private/a.bin", {**tls_server.host_options(), "credential": login}))
    assert get(source, Range="bytes=5-9") == (206, DATA[5:10])
    assert source.headers["Authorization"] == f"Bearer {login.given[-1]}"
    assert "sig=" not in source.url
    assert source.refresh is not None
    assert source.refresh().headers["Authorization"] != source.headers["Authorization"]
    assert login.given[-1] not in repr(source)


def test_many_blobs_take_one_login(tls_server: AzuriteServer) -> None:
    login = Login()
    store = AzureStore("az://private/a.bin", {**tls_server.host_options(), "credential": login})
    info = store.info(store.root)
    with ThreadPoolExecutor(16) as threads:
        sources = list(threads.map(store.source, [info] * 50))
    assert {get(source)[0] for source in sources[::10]} == {200}
    assert len(login.given) <= 2  # one is the service client's own


def test_an_anonymous_caller_reads_a_public_container(tls_server: AzuriteServer, azure_server: AzuriteServer) -> None:
    azure_server.put("public", "a.bin", DATA)
    for server in (tls_server, azure_server):
        store = AzureStore("az://public/a.bin", server.anonymous_options())
        source = granted(store)
        assert get(source, Range="bytes=0-9") == (206, DATA[:10])
        assert (source.refresh, list(source.headers), urlsplit(source.url).query) == (None, ["x-ms-version"], "")
        assert store.root in [info.path for info in store.find("public")]


def test_an_https_url_without_credentials_is_read_as_anyone_may(tls_server: AzuriteServer) -> None:
    options = {"account_host": tls_server.host, "connection_verify": tls_server.ca_file}
    uri = f"https://{tls_server.account}.blob.core.windows.net/public/a.bin"
    assert get(granted(AzureStore(uri, options))) == (200, DATA)


def test_options_may_come_from_the_environment(tls_server: AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"account_host": tls_server.host, "skip_instance_cache": True}
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.ca_file))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", tls_server.account)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", tls_server.container_sas("private"))
    assert AzureStore("az://private/a.bin", options).info("private/a.bin").size_bytes == len(DATA)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", tls_server.key)
    assert AzureStore("az://private/a.bin", options).info("private/a.bin").size_bytes == len(DATA)


# --- what is said when refused ------------------------------------------------------------------------------------


REFUSALS: dict[str, tuple[Callable[[AzuriteServer], dict[str, Any]], type[StorageError], str]] = {
    "wrong key": (lambda s: {"account_key": "Q0FOQVJZ"}, CredentialsError, "account key"),
    "malformed key": (lambda s: {"account_key": "CANARY!"}, CredentialsError, "malformed"),
    "wrong signature": (lambda s: {"sas_token": _forged(s)}, CredentialsError, "does not accept the SAS"),
    "expired SAS": (lambda s: {"sas_token": s.container_sas("private", lifetime_s=-5)}, CredentialsError, "expired at"),
    "SAS of another blob": (lambda s: {"sas_token": s.blob_sas("private", "b")}, CredentialsError, "SAS"),
    "SAS that may only list": (
        lambda s: {"sas_token": s.container_sas("private", "l")},
        AccessDeniedError,
        "permission",
    ),
    "expired token": (lambda s: {"credential": Login(-5)}, CredentialsError, "token"),
    "nobody": (lambda s: {"anon": True}, AccessDeniedError, "not public"),
}


def _forged(server: AzuriteServer) -> str:
    return server.container_sas("private").partition("sig=")[0] + "sig=Q0FOQVJZ"


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_gives_the_reason_and_no_secret(tls_server: AzuriteServer, kind: str) -> None:
    options, cls, reported = REFUSALS[kind]
    chosen = options(tls_server)
    error = refused(AzureStore("az://private/a.bin", {**tls_server.host_options(), **chosen}))
    assert type(error) is cls
    assert reported in str(error)
    if "malformed" not in kind:
        assert (error.status in (400, 403), bool(error.code), bool(error.request_id)) == (True, True, True)
    shown = "".join(traceback.format_exception(error))
    for secret in ("CANARY", "Q0FOQVJZ", "sig=", tls_server.key):
        assert secret not in shown


def test_a_sas_that_may_not_list_still_reads_a_named_blob(tls_server: AzuriteServer) -> None:
    store = AzureStore("az://private/a.bin", tls_server.sas_options(tls_server.container_sas("private", "r")))
    assert get(granted(store)) == (200, DATA)
    with pytest.raises(AccessDeniedError, match="a folder also l") as caught:
        store.find("private")
    assert caught.value.code == "AuthorizationPermissionMismatch"


def test_a_malformed_key_signs_nothing(tls_server: AzuriteServer) -> None:
    store = AzureStore("az://private/a.bin", {**tls_server.host_options(), "account_key": "CANARY!"})
    with pytest.raises(CredentialsError, match="malformed"):
        store.source(ObjectInfo("private/a.bin", "az://private/a.bin", size_bytes=1))


class _Failing:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def get_token(self, *scopes: str, **_: Any) -> Any:
        raise self.error


class _Blocking:
    """Is what a credential of `azure.identity`, without ``aio``, looks like."""

    def get_token(self, *scopes: str, **_: Any) -> Any:
        return object()


@pytest.mark.parametrize(
    ("credential", "reported"),
    [
        (_Failing(CredentialUnavailableError("tried everything")), "No Azure credentials"),
        (_Failing(RuntimeError("CANARY")), "RuntimeError"),
        (_Blocking(), r"azure\.identity\.aio"),
    ],
)
def test_a_login_that_fails_is_a_credentials_error(tls_server: AzuriteServer, credential: Any, reported: str) -> None:
    store = AzureStore("az://private/a.bin", {**tls_server.host_options(), "credential": credential})
    for ask in (lambda: store.info(store.root), lambda: store.source(ObjectInfo(store.root, "az://u", 1))):
        with pytest.raises(CredentialsError, match=reported) as caught:
            ask()
        assert "CANARY" not in "".join(traceback.format_exception(caught.value))


def test_a_login_that_hangs_is_given_up(tls_server: AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    class Hanging(Login):
        async def get_token(self, *scopes: str, **_: Any) -> Any:
            await asyncio.Event().wait()

    monkeypatch.setattr(azure_client, "LOGIN_TIMEOUT_S", 0.05)
    store = AzureStore("az://private/a.bin", {**tls_server.host_options(), "credential": Hanging()})
    with pytest.raises(CredentialsError, match="no token in time"):
        store.info(store.root)


def test_without_credentials_every_login_is_tried_and_listed(
    tls_server: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # else it would ask the command line tools of this machine's user
    monkeypatch.setattr(azure_client, "LOGIN_TIMEOUT_S", 5)
    store = AzureStore("az://private/a.bin", {**tls_server.host_options(), "skip_instance_cache": True})
    with pytest.raises(CredentialsError, match="AZURE_STORAGE_ACCOUNT_KEY"):
        store.info(store.root)


# --- the network --------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_S", 0)


@pytest.mark.usefixtures("_no_delays")
def test_a_wrong_account_name_is_an_unknown_host() -> None:
    options = {"account_name": "nosuchaccount", "account_host": "nosuchaccount.invalid", "account_key": "Q0FOQVJZ"}
    error = refused(AzureStore("az://container/a", options))
    assert isinstance(error, ConnectError)
    assert "no storage account 'nosuchaccount'" in str(error)


def test_the_proxy_of_the_options_is_used_by_both_planes(azure_server: AzuriteServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        proxy = f"http://user:CANARY@127.0.0.1:{listener.getsockname()[1]}"
        options = {"proxies": {"http": proxy}, "read_timeout": 0.2, "retry_total": 0}
        store = opened(azure_server, "az://private/a.bin", **options)
        error = refused(store)
        with listener.accept()[0] as connection:
            request = connection.recv(100)
    assert isinstance(error, TransferTimeoutError)
    assert request.startswith(f"HEAD {azure_server.account_url}".encode())
    source = store.source(ObjectInfo(store.root, "az://u", 1))
    assert source.proxy == proxy
    assert "CANARY" not in repr(source) + "".join(traceback.format_exception(error))


# --- options ------------------------------------------------------------------------------------------------------


def test_a_name_azure_could_never_have_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="container"):
        AzureStore("az://no container!/key", {"account_name": "a", "anon": True})
