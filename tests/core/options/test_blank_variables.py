"""A variable that is set to nothing (``AWS_CA_BUNDLE=``) counts as unset, on every storage and every path.

The worst fault: botocore took a blank name of the certificates for "do not verify", and sent a request, with the
session token, to whoever answered.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import fsspec
import pytest
import torch
from each_row import each_row
from google.auth.exceptions import DefaultCredentialsError
from servers.hub import HubServer
from servers.one_file import FILES, TENSORS, one_file, place_of
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends import hub_variables
from streamer.backends.aws_sessions import EnvironmentSession
from streamer.backends.azure.client import AzureClient
from streamer.backends.azure.urls import parse_url
from streamer.backends.client.proxy import environment_proxy
from streamer.backends.gcs.credentials import _googles_default
from streamer.core.errors import OptionError, TlsError
from streamer.core.secrets.environment import set_variables, variable

QUICK = streamer.Options(deadline_s=20)
OF_TLS = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
OF_AWS = (
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    *("AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_DATA_PATH", "AWS_CONFIG_FILE"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT"),
    *("AWS_METADATA_SERVICE_TIMEOUT", "AWS_USE_FIPS_ENDPOINT", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_DEFAULTS_MODE", "HTTPS_PROXY", "https_proxy", "NO_PROXY"),
)
UNKNOWN_TO_PLAIN = {"config_kwargs": {"s3": {"addressing_style": "path"}}}


def same(got, reference):
    assert got.keys() == reference.keys()
    assert all(torch.equal(got[name], reference[name]) for name in reference)


@pytest.fixture
def unknown_server(monkeypatch):
    """A server whose authority nobody trusts; it must not receive a request."""
    for name in OF_TLS:
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer(b"x" * 100, with_tls=True) as server:
        yield server


def places(server, folder):
    """Return ways to load from that server: URL and arguments of a load."""
    endpoint = f"https://127.0.0.1:{server.port}"
    s3 = {"key": "k", "secret": "s", "token": "t", "endpoint_url": endpoint}
    once = {**s3, "config_kwargs": {"retries": {"total_max_attempts": 1}}}  # s3fs itself tries for ten seconds
    cached = {"cache_storage": str(folder)}
    return {
        "s3": ("s3://bucket/m", {"storage_options": s3}),
        "s3, an option of s3fs": ("s3://bucket/m", {"storage_options": {**s3, **UNKNOWN_TO_PLAIN}}),
        "simplecache::s3": (
            "simplecache::s3://bucket/m.safetensors",
            {"storage_options": {"s3": once, "simplecache": cached}},
        ),
        "zip::s3": ("zip://m.safetensors::s3://bucket/m.zip", {"storage_options": {"s3": once}}),
        "fs=, a cache over s3": ("bucket/m.safetensors", {"fs": "cache", "s3": once, **cached}),
        "https": (f"{endpoint}/m.safetensors", {}),
        "simplecache::https": (f"simplecache::{endpoint}/m.safetensors", {"storage_options": {"simplecache": cached}}),
        "gs": ("gs://bucket/m", {"storage_options": {"token": "anon", "endpoint_url": endpoint}}),
        "az": (
            "az://container/m",
            {"storage_options": {"account_name": "n", "account_host": endpoint[8:], "sas_token": "sig=a"}},
        ),
        "hf": ("hf://owner/model", {"storage_options": {"endpoint": endpoint, "token": "t"}}),
    }


PLACES = tuple(places(type("Server", (), {"port": 1}), "/tmp"))


def load_from(place, **how):
    uri, arguments = place
    if arguments.get("fs") == "cache":
        arguments = dict(arguments)
        fs = fsspec.filesystem(
            "simplecache",
            target_protocol="s3",
            target_options=arguments.pop("s3"),
            cache_storage=arguments.pop("cache_storage"),
            skip_instance_cache=True,
        )
        arguments["fs"] = fs
    return streamer.load(uri, options=QUICK, **arguments, **how)


@pytest.mark.parametrize("name", OF_TLS)
@pytest.mark.parametrize("place", PLACES)
def test_a_blank_name_of_certificates_trusts_no_server_regression(unknown_server, tmp_path, monkeypatch, place, name):
    monkeypatch.setenv(name, "")
    with pytest.raises(TlsError):
        load_from(places(unknown_server, tmp_path)[place])
    assert unknown_server.requests == []


@pytest.mark.parametrize("place", ["s3", "simplecache::s3"])
def test_a_blank_ca_bundle_of_the_profile_trusts_no_server_regression(unknown_server, tmp_path, monkeypatch, place):
    (tmp_path / "config").write_text("[default]\nca_bundle =\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(TlsError):
        load_from(places(unknown_server, tmp_path)[place])
    assert unknown_server.requests == []


@pytest.mark.parametrize("verify", ["", " ", False])
@pytest.mark.parametrize("place", ["s3", "simplecache::s3", "az", "https"])
def test_a_blank_option_verify_is_refused_regression(unknown_server, tmp_path, place, verify):
    uri, arguments = places(unknown_server, tmp_path)[place]
    options = arguments.setdefault("storage_options", {})
    if "s3" in place:
        options.get("s3", options)["client_kwargs"] = {"verify": verify}
    else:
        options["connection_verify" if place == "az" else "verify"] = verify
    with pytest.raises(OptionError, match="verif"):
        load_from((uri, arguments))
    assert unknown_server.requests == []


@pytest.fixture(scope="module")
def tls_url(s3_tls_server, checkpoint):
    return s3_tls_server.upload_folder(checkpoint, "private", "models/blank")


@pytest.mark.parametrize("name", [*OF_TLS, *OF_AWS])
@pytest.mark.parametrize("more", [{}, UNKNOWN_TO_PLAIN], ids=["plain", "s3fs"])
def test_a_blank_variable_changes_no_load_from_s3_regression(
    s3_tls_server, tls_url, reference, monkeypatch, name, more
):
    options = s3_tls_server.storage_options()
    assert options["client_kwargs"]["verify"]
    monkeypatch.setenv(name, "")
    same(streamer.load(tls_url, storage_options={**options, **more}, options=QUICK), reference)


@pytest.mark.parametrize("name", [*OF_TLS, *OF_AWS])
def test_a_blank_variable_changes_nothing_in_a_chain_over_s3_regression(
    s3_server, s3_checkpoint, reference, tmp_path, monkeypatch, name
):
    chained = {"s3": s3_server.storage_options(), "simplecache": {"cache_storage": str(tmp_path)}}
    first = next(iter(sorted(p for p in fsspec.filesystem("s3", **chained["s3"]).ls(s3_checkpoint) if "-00001-" in p)))
    monkeypatch.setenv(name, "")
    got = streamer.load(f"simplecache::s3://{first}", storage_options=chained, options=QUICK)
    assert got
    same(got, {each: reference[each] for each in got})


@pytest.mark.parametrize(
    "name", ["HF_ENDPOINT", "HF_TOKEN", "HF_HOME", "XDG_CACHE_HOME", "HF_HUB_CACHE", "SSL_CERT_FILE"]
)
def test_a_blank_variable_changes_no_load_from_the_hub_regression(checkpoint, reference, monkeypatch, name):
    monkeypatch.setenv(name, "")
    with HubServer() as hub:
        hub.upload_folder(checkpoint, "owner/blank")
        same(streamer.load("hf://owner/blank", storage_options={"endpoint": hub.url}), reference)


@pytest.mark.parametrize(
    "name", ["GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "GOOGLE_CLOUD_PROJECT", "GCSFS_DEFAULT_PROJECT"]
)
def test_a_blank_variable_changes_no_load_from_google_regression(
    gcs_server, gcs_checkpoint, reference, tmp_path, monkeypatch, name
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv(name, "")
    same(streamer.load(gcs_checkpoint, storage_options=gcs_server.storage_options()), reference)


OF_AZURE = ("CONNECTION_STRING", "ACCOUNT_KEY", "ACCOUNT_NAME", "SAS_TOKEN", "CLIENT_ID", "TENANT_ID", "ANON")


@pytest.mark.parametrize("name", [*(f"AZURE_STORAGE_{each}" for each in OF_AZURE), "AZURE_AUTHORITY_HOST"])
def test_a_blank_variable_changes_no_load_from_azure_regression(
    azure_server, azure_checkpoint, reference, monkeypatch, name
):
    monkeypatch.setenv(name, "")
    same(streamer.load(azure_checkpoint, storage_options=azure_server.storage_options()), reference)


@pytest.mark.parametrize("name", ["CONNECTION_STRING", "ACCOUNT_KEY", "CLIENT_ID"])
def test_a_blank_variable_hides_no_login_of_azure_regression(monkeypatch, name):
    monkeypatch.setenv(f"AZURE_STORAGE_{name}", "")
    client = AzureClient(parse_url("az://container/m"), {"account_name": "name"})
    assert hasattr(client._login.credential, "get_token")


def test_a_blank_home_of_the_hub_is_not_the_working_directory_regression(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "token").write_text("hf_of_a_stranger")
    for name in ("HF_HOME", "XDG_CACHE_HOME", "HF_TOKEN_PATH", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, "")
    assert hub_variables.saved_token() is None
    assert hub_variables.hub_cache() == str(tmp_path / "home/.cache/huggingface/hub")
    (tmp_path / "home/.cache/huggingface").mkdir(parents=True)
    (tmp_path / "home/.cache/huggingface/token").write_text("hf_mine\n")
    assert hub_variables.saved_token() == "hf_mine"
    monkeypatch.setenv("HF_TOKEN", "hf_named")
    assert hub_variables.saved_token() == "hf_named"


def test_a_blank_configuration_folder_of_google_is_not_the_working_directory_regression(tmp_path, monkeypatch):
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    login = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "stranger"}
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(login))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", "")
    with pytest.raises(DefaultCredentialsError, match="CLOUDSDK_CONFIG"):
        _googles_default(["scope"])
    folder = tmp_path / "home/.config/gcloud"
    folder.mkdir(parents=True)
    (folder / "application_default_credentials.json").write_text(json.dumps({**login, "refresh_token": "mine"}))
    assert _googles_default(["scope"])[0].refresh_token == "mine"


def test_the_credentials_of_a_session_overlook_blank_variables_regression(tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = of-file\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "BOTO_CONFIG"),
        *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    ):
        monkeypatch.setenv(name, "")
    found = EnvironmentSession({}).get_credentials()
    assert found.access_key == "of-file"
    monkeypatch.setenv("AWS_SECURITY_TOKEN", "of-the-old-name")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert EnvironmentSession({}).get_credentials().token == "of-the-old-name"


def test_a_blank_proxy_hides_none_regression(monkeypatch):
    url = "http://127.0.0.1:3128"
    monkeypatch.setenv("https_proxy", "")
    monkeypatch.setenv("HTTPS_PROXY", url)
    assert environment_proxy("https://storage.test/m") == url
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "storage.test")
    assert environment_proxy("https://storage.test/m") is None
    assert environment_proxy("https://other.test/m") == url


def test_a_blank_http_proxy_hides_none_from_the_engine_regression(checkpoint, reference, monkeypatch):
    path = next(iter(sorted(checkpoint.glob("*-00001-*"))))
    with ScriptedServer(path.read_bytes()) as proxy:
        monkeypatch.setenv("http_proxy", "")
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        got = streamer.load("http://storage.test/m.safetensors", options=QUICK)
        assert got
        same(got, {name: reference[name] for name in got})


@each_row("value", ["", " ", "\t\n"])
@each_row("storage", FILES)
def test_a_proxy_of_spaces_is_none_regression(monkeypatch, storage, value):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.setenv(name, value)
    with one_file() as server:
        uri, options = place_of(storage, server)
        assert streamer.load(uri, storage_options=options, options=QUICK).keys() == TENSORS.keys()
        if storage == "s3":
            more = {**options, **UNKNOWN_TO_PLAIN}
            assert streamer.load(uri, storage_options=more, options=QUICK).keys() == TENSORS.keys()


def test_a_proxy_behind_one_of_spaces_counts_regression(checkpoint, reference, monkeypatch):
    path = next(iter(sorted(checkpoint.glob("*-00001-*"))))
    with ScriptedServer(path.read_bytes()) as proxy:
        monkeypatch.setenv("http_proxy", " ")
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        assert streamer.load("http://storage.test/m.safetensors", options=QUICK)


@pytest.mark.parametrize("value", ["", " ", "\t\n"])
def test_a_variable_of_spaces_is_blank(monkeypatch, value):
    monkeypatch.setenv("STREAMER_TEST", value)
    assert variable("STREAMER_TEST") is None
    assert "STREAMER_TEST" not in set_variables()
    monkeypatch.setenv("STREAMER_TEST", " a ")
    assert variable("STREAMER_TEST") == " a "


def test_a_library_that_cannot_be_imported_with_a_blank_variable_is_reported(tmp_path):
    program = (
        "import streamer\ntry:\n    streamer.load('hf://owner/model')\n"
        "except streamer.PluginError as error:\n    print(error)"
    )
    environment = {**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": ""}
    reported = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert "unset HF_HUB_DOWNLOAD_TIMEOUT" in reported
