"""What adlfs is reported where the user left it open, who wins over whom, and what is refused."""

from __future__ import annotations

import copy
import sys
from typing import Any

import fsspec.config
import pytest
from each_row import each_row

from streamer.backends.azure.options import filled_options
from streamer.backends.azure.urls import parse_url
from streamer.core.errors import OptionError, UnknownSchemeError
from streamer.plugins import open_store

HOST = "account.blob.core.windows.net"
HTTPS = f"https://{HOST}/c/a"
ABFS = "abfs://c@account.dfs.core.windows.net/a"
ENDPOINT = f"BlobEndpoint=https://{HOST}"
OTHER = "AccountName=other;AccountKey=b3RoZXI="


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.config, "conf", {})


def filled(uri: str, given: dict[str, Any], **environment: str) -> dict[str, Any]:
    names = {f"AZURE_STORAGE_{name.upper()}": value for name, value in environment.items()}
    return filled_options(parse_url(uri), given, names)


@each_row(
    ("uri", "given", "environment", "connection"),
    [
        # (URL, arguments, AZURE_STORAGE_…, what adlfs is told to connect to; None leaves it to adlfs)
        ("az://c/a", {"account_name": "account"}, {}, None),
        ("az://c/a", {}, {"account_name": "account"}, None),
        ("az://c/a", {"connection_string": OTHER}, {}, OTHER),
        ("az://c/a", {}, {"connection_string": OTHER}, None),
        ("az://c/a", {"account_name": "account", "account_key": "K"}, {},
         f"{ENDPOINT};AccountName=account;AccountKey=K"),
        ("az://c/a", {"account_name": "account"}, {"account_key": "K"}, f"{ENDPOINT};AccountName=account;AccountKey=K"),
        ("az://c/a", {"account_name": "account", "account_host": "h", "sas_token": "?S"}, {},
         "BlobEndpoint=https://h;SharedAccessSignature=S"),
        ("az://c/a", {"account_name": "account", "credential": object()}, {}, None),
        ("az://c/a", {"account_name": "account", "client_id": "i"}, {}, None),
        ("az://c/a", {"account_name": "account", "anon": True}, {"connection_string": OTHER}, ENDPOINT),
        ("az://c/a", {"account_name": "account", "sas_token": "S"}, {"connection_string": OTHER, "account_key": "K"},
         f"{ENDPOINT};SharedAccessSignature=S"),
        ("az://c/a?sig=S", {"account_name": "account"}, {"connection_string": OTHER},
         f"{ENDPOINT};SharedAccessSignature=sig=S"),
        (f"{HTTPS}?sig=S", {"account_key": "K"}, {}, f"{ENDPOINT};SharedAccessSignature=sig=S"),
        (HTTPS, {}, {}, ENDPOINT),
        (HTTPS, {"anon": False}, {}, None),
        (HTTPS, {}, {"sas_token": "S"}, f"{ENDPOINT};SharedAccessSignature=S"),
        (ABFS, {}, {}, None),
        (ABFS, {"anon": True}, {}, ENDPOINT),
    ],
)  # fmt: skip
def test_what_the_url_and_the_arguments_say_wins_over_the_environment(
    uri: str, given: dict[str, Any], environment: dict[str, str], connection: str | None
) -> None:
    assert filled(uri, given, **environment).get("connection_string") == connection


def test_the_url_names_account_and_host() -> None:
    options = filled("abfss://c@account.dfs.core.usgovcloudapi.net/a", {})
    host = "account.blob.core.usgovcloudapi.net"
    assert options == {"account_name": "account", "account_host": host, "anon": False}


def test_a_host_the_user_gives_is_kept() -> None:
    assert filled(ABFS, {"account_host": "proxy.example.com"})["account_host"] == "proxy.example.com"


@pytest.mark.parametrize(
    ("given", "environment", "reported"),
    [
        ({"account_name": "account"}, {"connection_string": OTHER}, "account_name is 'account', and .* names 'other'"),
        ({"account_name": "account", "connection_string": OTHER}, {}, "account_name is 'account', and .* 'other'"),
        ({"account_name": "account", "client_id": "i"}, {"connection_string": OTHER}, "account_name is 'account'"),
        ({"account_host": "h"}, {"connection_string": ENDPOINT}, f"account_host is 'h', and .* names '{HOST}'"),
        ({"account_name": "b"}, {"connection_string": f"{ENDPOINT};SharedAccessSignature=S"}, "names 'account'"),
    ],
)
def test_an_account_that_contradicts_the_connection_string_is_refused_regression(given, environment, reported):
    """adlfs read the connection string's, and the load succeeded with another account's tensors."""
    with pytest.raises(OptionError, match=reported):
        filled("az://c/a", given, **environment)


@pytest.mark.parametrize("given", [{"account_name": "Other"}, {"account_host": f"{HOST}/other"}, {}])
def test_the_same_account_beside_its_connection_string_is_no_contradiction(given):
    assert filled("az://c/a", given, connection_string=f"{ENDPOINT};{OTHER}").get("connection_string") is None


def test_an_https_url_alone_is_read_anonymously() -> None:
    assert filled(HTTPS, {})["anon"] is True
    assert "anon" not in filled(HTTPS, {}, account_key="K")


def test_every_adlfs_logs_in_if_no_credentials_are_passed_regression() -> None:
    """Releases up to 2025 took anonymous access for the default: no managed identity was ever asked."""
    assert filled(ABFS, {})["anon"] is False
    assert "anon" not in filled(ABFS, {}, anon="true")
    assert "anon" not in filled(ABFS, {"client_id": "i"})


def test_the_callers_options_are_not_changed() -> None:
    given = {"account_key": "K", "proxies": {"https": "http://proxy"}}
    before = copy.deepcopy(given)
    filled(ABFS, given)
    assert given == before


def test_options_of_fsspecs_configuration_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.config, "conf", {"abfs": {"account_name": "account", "account_key": "K"}})
    assert filled("az://c/a", {})["connection_string"].startswith(ENDPOINT)


@each_row(
    ("uri", "given", "reported"),
    [
        ("az://c/a", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://c/a?sig=CANARY", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://c/a", {"account_name": "a", "connection_verify": False}, "always verified"),
        ("az://c/a", {"account_name": "a", "asynchronous": True}, "asynchronous"),
        (ABFS, {"account_name": "other"}, "names account 'account'"),
        ("az://c/a", {"account_name": "evil.com/x"}, "no name of a storage account"),
        ("az://c/a", {"account_name": "evil.com#"}, "no name of a storage account"),
        ("az://c/a", {"account_name": "user@evil"}, "no name of a storage account"),
        (f"{HTTPS}?sig=CANARY", {"connection_string": "AccountKey=CANARY"}, "Give one"),
    ],
)
def test_some_options_are_refused(uri: str, given: dict[str, Any], reported: str) -> None:
    with pytest.raises(OptionError, match=reported) as caught:
        filled(uri, given)
    assert "CANARY" not in str(caught.value)


def test_an_account_of_the_environment_that_is_a_host_is_refused_regression() -> None:
    """adlfs writes it before `.blob.core.windows.net`, so that a slash in it named another host."""
    with pytest.raises(OptionError, match="is no name of a storage account"):
        filled("az://c/a", {"account_key": "CANARY"}, account_name="evil.com/x")


def test_a_missing_adlfs_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    for name in [name for name in sys.modules if name.startswith("streamer.backends.azure")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UnknownSchemeError, match=r"needs adlfs.*the extra streamer\[azure\]"):
        open_store("az://container/name")


def test_telling_blob_urls_apart_needs_no_adlfs() -> None:
    import subprocess

    code = "import sys, streamer.backends.http.store; sys.exit('adlfs' in sys.modules or 'azure' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
