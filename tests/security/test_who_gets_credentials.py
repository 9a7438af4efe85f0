"""Which hosts may ever be shown a credential: the one it was given for, and no other that a URL or a server names.

Each row of the table in ``docs/security.md`` is a test here. Where credentials go wrong, a second server hears of it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from each_row import each_row
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends.azure.store import AzureStore
from streamer.backends.blob_urls import is_azure_host
from streamer.backends.gcs.store import GcsStore
from streamer.backends.hf.store import HfStore
from streamer.backends.http.fallback import open_through_fsspec
from streamer.backends.s3.store import S3Store
from streamer.core.errors import RedirectError, StorageError, StreamerError, UsageError
from streamer.core.store.sources import HttpSource, ObjectInfo

pytestmark = pytest.mark.server

SECRET = "C4n4ryS3cr3tXyz"
SAS = f"sv=2024-11-04&sp=rl&sig={SECRET}"
DATA = bytes(range(256)) * 16
REDIRECTS = [301, 302, 303, 307, 308]


@pytest.fixture
def foreign() -> Iterator[ScriptedServer]:
    """A host that nobody gave a credential to."""
    with ScriptedServer(DATA) as server:
        yield server


@pytest.fixture
def named(foreign: ScriptedServer) -> Iterator[ScriptedServer]:
    """The host that the user named; it sends everybody on to the foreign one."""
    with ScriptedServer(DATA, lambda request, answer: answer.become(302, Location=foreign.url)) as server:
        yield server


def base(server: ScriptedServer) -> str:
    return server.url.removesuffix("/object")


def heard(server: ScriptedServer) -> str:
    return "".join(f"{request.path} {request.headers}" for request in server.requests)


class Token:
    """A login, as azure-identity gives it."""

    asked = 0

    async def get_token(self, *_scopes: str, **_options: Any) -> Any:
        from azure.core.credentials import AccessToken

        type(self).asked += 1
        return AccessToken(SECRET, 4102444800)


# --- Azure ----------------------------------------------------------------------------------------------------------

AZURES_OWN = """
    account.blob.core.windows.net account.dfs.core.windows.net account-secondary.blob.core.windows.net
    account.blob.core.chinacloudapi.cn account.dfs.core.usgovcloudapi.net account.blob.core.cloudapi.de
    account.z01.blob.storage.azure.net account.z99.dfs.storage.azure.net ACCOUNT.Blob.Core.Windows.NET
    account.privatelink.blob.core.windows.net account.privatelink.dfs.core.usgovcloudapi.net
    account.z20.privatelink.blob.storage.azure.net account.blob.core.windows.net:443
    onelake.dfs.fabric.microsoft.com westus-onelake.blob.fabric.microsoft.com
"""
FOREIGN_HOSTS = """
    example.com account.blob.core.windows.net.example.com account.blob.core.windows.net. blob.core.windows.net
    account.blob.core.windows.net.evil account-blob.core.windows.net blob.storage.azure.net xblob.core.windows.net
    account.blob.core.windows.com account.web.core.windows.net account.file.core.windows.net 127.0.0.1 127.0.0.1:8080
    account.blob.core.windows.net:8080 evil.azure.net account.blob.fabric.microsoft.com onelake.dfs.fabric.example.com
"""


@each_row("host", AZURES_OWN.split())
def test_a_host_of_azures_own_gets_credentials(host: str) -> None:
    assert is_azure_host(host)
    store = AzureStore(f"abfss://c@{host}/a", {"sas_token": SAS, "skip_instance_cache": True})
    source = store.source(ObjectInfo("c/a", "abfss://c/a", 1))
    asked = urlsplit(source.url)
    assert asked.scheme == "https"
    assert asked.netloc == host.lower().replace(".dfs.", ".blob.")
    assert SECRET in asked.query


CREDENTIALS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "a SAS of the environment": ({}, {"AZURE_STORAGE_SAS_TOKEN": SAS}),
    "a SAS": ({"sas_token": SAS}, {}),
    "a key of the environment": ({}, {"AZURE_STORAGE_ACCOUNT_KEY": "Q0FOQVJZ"}),
    "a login": ({"credential": Token()}, {}),
    "a login of the environment": ({"anon": False}, {}),
    "a connection string": ({"connection_string": f"AccountName=account;AccountKey={SECRET}"}, {}),
    "a connection string of the environment": (
        {},
        {"AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint=https://other.example;SharedAccessSignature={SAS}"},
    ),
    "an account's host": ({"account_host": "models.example.com", "sas_token": SAS}, {}),
    "nothing": ({"anon": True}, {}),
}


@each_row("host", FOREIGN_HOSTS.split())
def test_a_host_that_is_not_azures_gets_no_credentials(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", SAS)
    assert not is_azure_host(host)
    with pytest.raises(UsageError, match="none of Azure's"):
        streamer.load(f"abfss://c@{host}/a.safetensors")


@each_row(("options", "environment"), CREDENTIALS.values())
@each_row("scheme", ["az", "abfs", "abfss"])
def test_a_foreign_host_in_an_azure_url_gets_no_request(
    scheme: str, options: dict[str, Any], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with ScriptedServer(DATA, with_tls=True) as server:
        touched: list[bool] = []
        server.before_handshake = lambda: touched.append(True) is None
        with pytest.raises(UsageError, match=f"127.0.0.1:{server.port} is none of Azure's") as caught:
            streamer.load(f"{scheme}://c@127.0.0.1:{server.port}/a.safetensors", storage_options=options)
    assert "account_host" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert (touched, server.requests, Token.asked) == ([], [], 0)


@pytest.mark.parametrize(
    "options",
    [
        {"account_host": "models.example.com", "sas_token": SAS},
        {"account_host": "Models.Example.com", "credential": Token()},
        {"account_host": "models.example.com/account", "sas_token": SAS},
        {"connection_string": f"BlobEndpoint=https://models.example.com;SharedAccessSignature={SAS}"},
    ],
)
def test_a_host_that_the_caller_names_gets_credentials(options: dict[str, Any]) -> None:
    store = AzureStore("abfss://c@models.example.com/a", {**options, "skip_instance_cache": True})
    source = store.source(ObjectInfo("c/a", "abfss://c/a", 1))
    assert urlsplit(source.url).netloc.lower() == "models.example.com"
    assert SECRET in source.url + str(source.headers)


@pytest.mark.parametrize("host", ["account:8080", "localhost:443", "evil:1"])
def test_a_port_behind_the_name_of_an_account_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="does not name a storage account"):
        AzureStore(f"abfss://c@{host}/a", {"sas_token": SAS})


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize(
    "credential", [f"AccountName=account;AccountKey={'Q0FOQVJZ'}", f"SharedAccessSignature={SAS}"], ids=["key", "SAS"]
)
def test_a_redirect_of_an_azure_endpoint_is_not_followed(
    foreign: ScriptedServer, named: ScriptedServer, status: int, credential: str
) -> None:
    named.script = lambda request, answer: answer.become(status, Location=foreign.url)
    options = {"connection_string": f"BlobEndpoint={base(named)}/account;{credential}"}
    store = AzureStore("az://c/folder", options)
    with pytest.raises(StreamerError):
        store.find("c/folder")
    assert named.requests
    assert foreign.requests == []


# --- S3 -------------------------------------------------------------------------------------------------------------

S3_KEYS = {"key": "AKIDEXAMPLE", "secret": SECRET, "token": SECRET}


@pytest.mark.parametrize("status", REDIRECTS)
def test_a_redirect_of_an_s3_endpoint_is_not_followed(
    foreign: ScriptedServer, named: ScriptedServer, status: int
) -> None:
    """The session token is a header like any other to the library that would follow."""
    named.script = lambda request, answer: answer.become(status, Location=foreign.url)
    store = S3Store("s3://bucket/folder", {"endpoint_url": base(named), **S3_KEYS})
    with pytest.raises(RedirectError):
        store.find("bucket/folder")
    assert SECRET in heard(named)  # the session token: it is its host's
    assert foreign.requests == []


@pytest.mark.parametrize("region", ["127.0.0.1", "evil.com/#", "evil.com?", "@evil.com", "x.evil.com#", "../evil"])
def test_an_s3_endpoint_cannot_name_a_region_that_is_a_host(
    foreign: ScriptedServer, named: ScriptedServer, region: str
) -> None:
    body = b"<Error><Code>PermanentRedirect</Code><Endpoint>127.0.0.1</Endpoint></Error>"
    named.script = lambda request, answer: answer.become(301, body, **{"x-amz-bucket-region": region})
    with pytest.raises(StreamerError):
        S3Store("s3://bucket/folder", {"endpoint_url": base(named), **S3_KEYS}).find("bucket/folder")
    assert foreign.requests == []


@each_row(
    "bucket",
    [
        "evil.com",
        "evil.com#",
        "evil.com?",
        "evil.com%2f",
        "127.0.0.1",
        "evil.com\\",
        "..",
        "arn:aws:s3:evil.com:123456789012:accesspoint",
        "arn:aws:s3:us-east-1/@evil.com:123456789012:accesspoint",
        "arn:evil.com:s3:us-east-1:123456789012:accesspoint",
        "arn:aws:evil.com/:us-east-1:123456789012:accesspoint",
    ],
)
def test_the_name_of_a_bucket_leads_to_no_other_host(bucket: str) -> None:
    path = f"{bucket}/mine/key"
    try:
        store = S3Store(f"s3://{path}", {**S3_KEYS, "client_kwargs": {"region_name": "us-east-1"}})
        source = store.source(ObjectInfo(path, f"s3://{path}", 1))
    except StreamerError:
        return
    assert (urlsplit(source.url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))


# --- Google ---------------------------------------------------------------------------------------------------------


def test_a_redirect_of_a_gcs_endpoint_is_not_followed(foreign: ScriptedServer, named: ScriptedServer) -> None:
    store = GcsStore("gs://bucket/folder", {"endpoint_url": base(named), "token": SECRET})
    with pytest.raises(RedirectError):
        store.find("bucket/folder")
    assert SECRET in heard(named)
    assert foreign.requests == []


def test_an_emulator_gets_no_credentials_that_lie_about(
    foreign: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """As in Google's own libraries: the variable names a host to test with, not one to trust."""
    key_file = tmp_path / "key.json"
    key = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": SECRET}
    key_file.write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", base(foreign))
    with pytest.raises(StorageError):
        GcsStore("gs://bucket/folder", {}).info("bucket/folder")
    assert foreign.requests
    assert not [request for request in foreign.requests if "authorization" in request.headers]


@pytest.mark.parametrize("bucket", ["evil.com", "evil.com#1", "..", "evil.com\\", "a%2f@evil.com"])
def test_the_name_of_a_google_bucket_leads_to_no_other_host(bucket: str) -> None:
    path = f"{bucket}/key"
    try:
        source = GcsStore(f"gs://{path}", {"token": SECRET}).source(ObjectInfo(path, f"gs://{path}", 1, "1"))
    except StreamerError:
        return
    assert urlsplit(source.url).netloc == "storage.googleapis.com"


# --- Hugging Face ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["option", "environment"])
def test_the_token_stays_with_the_mirror_that_was_named(
    foreign: ScriptedServer, named: ScriptedServer, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    options = {"endpoint": base(named)} if given == "option" else {}
    if given == "environment":
        monkeypatch.setenv("HF_ENDPOINT", base(named))
    store = HfStore(f"hf://ada/open@{'0' * 40}/a.bin", options)
    source = store.source(store.info(store.root))
    assert isinstance(source, HttpSource)
    assert (source.url, dict(source.headers)) == (foreign.url, {})
    assert SECRET in heard(named)
    assert SECRET not in heard(foreign)


@pytest.mark.parametrize("question", ["list", "resolve"])
def test_the_hubs_own_api_takes_no_token_to_another_host(
    foreign: ScriptedServer, named: ScriptedServer, question: str
) -> None:
    commit = f"@{'0' * 40}" if question == "list" else ""
    store = HfStore(f"hf://ada/open{commit}", {"endpoint": base(named), "token": SECRET})
    with pytest.raises(StreamerError):
        store.find(store.root)
    assert SECRET in heard(named)
    assert SECRET not in heard(foreign)


# --- web servers ----------------------------------------------------------------------------------------------------


def asks_for_fsspec(name: str) -> dict[str, Any]:
    """Return an option that only fsspec's own client can honour, and a secret somewhere in the options."""
    secrets: dict[str, dict[str, Any]] = {
        "headers": {"headers": {"X-Api-Key": SECRET}},
        "cookies": {"cookies": {"c": SECRET}},
        "headers of the client": {"client_kwargs": {"headers": {"X-Api-Key": SECRET}}},
        "cookies of the client": {"client_kwargs": {"cookies": {"c": SECRET}}},
        "a client": {"get_client": _client_with_a_secret},
        "a certificate": {"ssl": ssl.create_default_context(), "headers": {"X-Api-Key": SECRET}},
    }
    return secrets[name]


async def _client_with_a_secret(**options: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"X-Api-Key": SECRET}, cookies={"c": SECRET}, **options)


@pytest.mark.parametrize(
    "secret",
    [
        "headers",
        "cookies",
        "headers of the client",
        "cookies of the client",
        "a client",
        "a certificate",
    ],
)
@pytest.mark.parametrize("status", [302, 308])
def test_what_fsspec_reads_for_us_takes_no_secret_to_another_host(
    foreign: ScriptedServer, named: ScriptedServer, secret: str, status: int
) -> None:
    named.script = lambda request, answer: answer.become(status, Location=foreign.url)
    store = open_through_fsspec(named.url, {"max_redirects": 5, **asks_for_fsspec(secret)}, "max_redirects")
    with pytest.raises(RedirectError, match="to another host"):
        store.info(named.url)
    with pytest.raises(RedirectError, match="to another host"):
        store.find(named.url)
    assert foreign.requests == []


def test_what_fsspec_reads_for_us_follows_a_redirect_within_the_host(foreign: ScriptedServer) -> None:
    def script(request: Any, answer: Any) -> None:
        if request.path == "/object":
            answer.become(302, Location="/other")

    foreign.script = script
    store = open_through_fsspec(foreign.url, {"max_redirects": 5, "headers": {"X-Api-Key": SECRET}}, "max_redirects")
    assert store.info(foreign.url).size_bytes == len(DATA)
    assert {request.path for request in foreign.requests} == {"/object", "/other"}


@pytest.mark.parametrize("host", ["169.254.169.254", "metadata.google.internal", "%6cocalhost"])
def test_what_fsspec_reads_for_us_is_not_led_to_this_machine_regression(named: ScriptedServer, host: str) -> None:
    """Without a secret to lose every redirect was followed."""
    named.script = lambda request, answer: answer.become(302, Location=f"http://{host}/latest")
    store = open_through_fsspec(named.url, {"max_redirects": 5}, "max_redirects")
    with pytest.raises(RedirectError):
        store.info(named.url)


def test_a_login_of_the_netrc_is_its_hosts_alone(
    foreign: ScriptedServer, named: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A redirect to another port is one to another host, though the netrc would not tell them apart."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login user password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(netrc))
    from streamer.backends.http.store import HttpStore

    store = HttpStore(named.url, {"client_kwargs": {"trust_env": True}})
    source = store.source(store.info(store.root))
    assert isinstance(source, HttpSource)
    assert (source.url, dict(source.headers)) == (foreign.url, {})
    assert "authorization" in named.requests[0].headers
    assert not [request for request in foreign.requests if "authorization" in request.headers]


# --- NFS ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", [f"nfs://user:{SECRET}@server/x", f"nfs://server/x?password={SECRET}"])
def test_nfs_has_no_credential_to_send(uri: str) -> None:
    """A server is reported a number for the user, which is no secret; nothing else can be given."""
    from streamer.backends.nfs.store import NfsUrl

    with pytest.raises(UsageError) as caught:
        NfsUrl.parse(uri, {})
    assert SECRET not in str(caught.value)
