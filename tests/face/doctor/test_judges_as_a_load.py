"""``doctor`` judges the environment as a load does: what is broken for one is for the other, with the same login."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from each_row import each_row
from safetensors.numpy import save
from servers.scripted_http import ScriptedServer

import streamer
from streamer._cli import main
from streamer._doctor.machine import machine_findings
from streamer._doctor.place import _login
from streamer.backends.azure.options import _secret
from streamer.backends.azure.urls import parse_url
from streamer.backends.hf.client import _token_headers
from streamer.backends.s3.login import plain_login

DEAD, SOCKS = "http://127.0.0.1:9", "socks5://127.0.0.1:9"
NOBODY = {"HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true"}
BLANK = dict.fromkeys(
    (
        *("AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_PROFILE", "CURL_CA_BUNDLE", "HF_TOKEN", "REQUESTS_CA_BUNDLE"),
        *("SSL_CERT_FILE", "STREAMER_SHARE", "all_proxy", "http_proxy", "https_proxy", "no_proxy"),
    ),
    "",
)
WORLDS: list[tuple[dict[str, str], bool, bool]] = [  # the environment, TLS, whether it works
    (BLANK, False, True),
    ({"http_proxy": DEAD}, False, False),
    ({"http_proxy": "", "HTTP_PROXY": DEAD}, False, False),
    ({"http_proxy": SOCKS}, False, False),
    ({"http_proxy": "http://"}, False, False),
    ({"http_proxy": "http://a@b:c@127.0.0.1:9"}, False, False),
    ({"ALL_PROXY": SOCKS}, False, False),
    ({"ALL_PROXY": DEAD}, False, False),
    ({"http_proxy": DEAD, "NO_PROXY": " example.com , 127.0.0.1 "}, False, True),
    ({"http_proxy": DEAD, "NO_PROXY": "example.com"}, False, False),
    ({"http_proxy": DEAD, "NO_PROXY": "127.0.0.1", "no_proxy": "example.com"}, False, False),
    ({"http_proxy": DEAD, "NO_PROXY": "127.0.0.1", "no_proxy": " "}, False, True),
    ({"http_proxy": DEAD, "NO_PROXY": "*"}, False, True),
    ({"SSL_CERT_FILE": "CA"}, True, True),
    ({"SSL_CERT_FILE": "CA", "REQUESTS_CA_BUNDLE": "/absent.pem", "AWS_CA_BUNDLE": "/absent.pem"}, True, True),
    ({"SSL_CERT_FILE": "/absent.pem"}, True, False),
    ({"SSL_CERT_FILE": __file__}, True, False),
    ({"SSL_CERT_FILE": "", "SSL_CERT_DIR": "/absent"}, True, False),
]


@pytest.mark.usefixtures("short_pauses")
@each_row("environment, with_tls, works", WORLDS)
def test_doctor_finds_broken_what_a_load_cannot_use(
    environment: dict[str, str], with_tls: bool, works: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ScriptedServer(save({}), with_tls=with_tls) as server:
        server.answers_head = True
        if server.authority is not None:
            server.authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        for name, value in environment.items():
            monkeypatch.setenv(name, str(tmp_path / "ca.pem") if value == "CA" else value)
        uri = f"{server.url}.safetensors"
        try:
            streamer.load(uri, framework="np", progress=False)
        except streamer.StreamerError:
            assert not works
        else:
            assert works
        words = ["doctor", uri, "--seconds", "0", "--timeout", "60", "--json"]
        found = json.loads(CliRunner().invoke(main, words).stdout)["findings"]
        assert (not [each for each in found if each["state"] == "broken"]) == works, found


def test_empty_variables_are_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    (line,) = [each for each in machine_findings() if each.name == "variables"]
    assert (line.state, "AWS_ENDPOINT_URL" in line.found) == ("ok", True)


def key_for_s3(options: dict[str, Any]) -> str:
    login = plain_login(options, dict(os.environ))
    assert login is not None
    assert login.keys is not None
    return login.keys().access_key


def secret_for_azure(options: dict[str, Any]) -> str:
    credential = _secret(options, parse_url("az://c/x"), dict(os.environ), "account")
    return (credential or os.environ["AZURE_STORAGE_CONNECTION_STRING"]).rpartition("=")[2]


def token_for_the_hub(options: dict[str, Any]) -> str:
    return _token_headers(options)["authorization"].removeprefix("Bearer ")


FILE = "[default]\naws_access_key_id = OF-FILE\naws_secret_access_key = x\n"
LOGINS = [
    ("s3", key_for_s3, "key", ("AWS_ACCESS_KEY_ID",), {"AWS_SHARED_CREDENTIALS_FILE": FILE}),
    ("az", secret_for_azure, "account_key", ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY"), {}),
    ("az", secret_for_azure, "sas_token", ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"), {}),
    ("hf", token_for_the_hub, "token", ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), {"HF_TOKEN_PATH": "OF-FILE"}),
]


@each_row("scheme, used, option, variables, files", LOGINS)
def test_doctor_names_the_login_that_a_load_takes(
    scheme: str,
    used: Callable[[dict[str, Any]], str],
    option: str,
    variables: tuple[str, ...],
    files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """All subsets of the places of a login that hold one, each with another."""
    (tmp_path / "login").write_text("".join(files.values()))
    places = (option, *variables, *files)
    for chosen in itertools.chain.from_iterable(itertools.combinations(places, count) for count in range(1, 5)):
        with monkeypatch.context() as patched:
            for name, value in {**NOBODY, "AWS_CONFIG_FILE": "/absent", "XDG_CACHE_HOME": ""}.items():
                patched.setenv(name, value)
            for name in variables:
                patched.setenv(name, f"k=OF-{name}" if name in chosen else "")  # blank counts as unset
            for name in files:
                patched.setenv(name, str(tmp_path / ("login" if name in chosen else "absent")))
            options = {option: f"OF-{option}"} if option in chosen else {}
            if scheme == "s3":
                patched.setenv("AWS_SECRET_ACCESS_KEY", "x" if "AWS_ACCESS_KEY_ID" in chosen else "")
                options |= {"secret": "x"} if options else {}
            told = _login(scheme, options).found.removeprefix("from ").removeprefix("storage_options: ")
            told = "FILE" if told == str(tmp_path / "login") else told
            assert used(options).removeprefix("k=") == f"OF-{told}", (chosen, told)
