"""Whose credentials sign: those of a session of the user's, or of one that loads with the same profile share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from servers.scripted_http import ScriptedServer

from streamer.backends.s3.botocore_login import shared_login
from streamer.backends.s3.client import S3Client
from streamer.backends.s3.options import filled_options
from streamer.backends.s3.plain_login import keys_of_session
from streamer.backends.s3.store import S3Store
from streamer.core.errors import CredentialsError, OptionError
from streamer.core.store.sources import HttpSource, ObjectInfo

INFO = ObjectInfo("bucket/key", "s3://bucket/key", 1)
KEYS = {"Version": 1, "AccessKeyId": "AKIDPROCESS", "SecretAccessKey": "s"}


def source(options: dict[str, Any]) -> HttpSource:
    return S3Store("s3://bucket/key", options).source(INFO)


def test_a_session_of_the_users_signs_with_the_credentials_of_each_moment() -> None:
    session = AioSession()
    session.set_config_variable("region", "eu-west-1")
    session._credentials = AioCredentials("AKIDFIRST", "secret", "TOKEN")
    signed = source({"session": session})
    assert signed.url.startswith("https://bucket.s3.eu-west-1.amazonaws.com/key?")
    assert "AKIDFIRST" in signed.url
    assert "X-Amz-Security-Token=TOKEN" in signed.url
    assert "eu-west-1%2Fs3" in signed.url
    session._credentials.access_key = "AKIDSECOND"
    assert signed.refresh is not None
    assert "AKIDSECOND" in signed.refresh().url


def test_a_session_of_the_users_without_credentials_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    session = AioSession()

    async def none() -> None:
        return None

    monkeypatch.setattr(session, "get_credentials", none)
    with pytest.raises(CredentialsError):
        source({"session": session})


def test_loads_with_the_same_profile_fetch_its_keys_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, calls = tmp_path / "keys.sh", tmp_path / "calls"
    script.write_text(f"echo >> {calls}; echo '{json.dumps(KEYS)}'")
    (tmp_path / "config").write_text(f"[profile counting]\ncredential_process = sh {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for options in ({"profile": "counting"}, {"profile": "counting", "requester_pays": True}):
        assert all("AKIDPROCESS" in source(options).url for _ in range(3))
    assert calls.read_text() == "\n"
    assert "AKIDPROCESS" not in repr(keys_of_session("counting"))


def test_the_keys_of_a_container_are_used_without_a_client_of_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        "AccessKeyId": "AKIDCONTAINER",
        "SecretAccessKey": "s",
        "Token": "T/1",
        "Expiration": "2099-01-01T00:00:00Z",
    }
    monkeypatch.setattr(S3Client, "_botocore", lambda _: pytest.fail("botocore's client was asked"))
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/absent")
    with ScriptedServer(b"", lambda _, answer: answer.become(200, json.dumps(keys).encode())) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url)
        urls = [source({"endpoint_url": "http://127.0.0.1:9"}).url for _ in range(2)]
        assert len(server.requests) == 1
    assert all("AKIDCONTAINER" in url and "X-Amz-Security-Token=T%2F1" in url for url in urls)


@pytest.mark.parametrize("name", ["key", "secret", "token"])
def test_a_key_that_is_named_twice_is_refused(name: str) -> None:
    options = {"key": "k", "secret": "s", "token": "t"}
    of_client = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}[name]
    with pytest.raises(OptionError):
        source({**options, "client_kwargs": {of_client: "other"}})


def test_second_names_of_keys_are_the_first_ones() -> None:
    assert "AKIDUSER" in source({"username": "AKIDUSER", "password": "secret"}).url
    with pytest.raises(OptionError, match="key and username are two names of one option"):
        source({"username": "u", "password": "s", "key": "k"})


def test_a_login_is_shared_unless_it_is_not_to_be() -> None:
    options = filled_options({"key": "k", "secret": "s"}, {})
    assert shared_login(options) is shared_login(filled_options({"key": "k", "secret": "s"}, {}))
    assert shared_login(options) is not shared_login(filled_options({"key": "k", "secret": "other"}, {}))
    alone = filled_options({"key": "k", "secret": "s", "skip_instance_cache": True}, {})
    assert shared_login(alone) is not shared_login(alone)


@pytest.mark.parametrize("more", [{}, {"requester_pays": True}], ids=["plain", "botocore's client"])
@pytest.mark.parametrize("process", ["echo no JSON", "true", "sh /absent/script", "/absent/program"])
def test_a_process_that_gives_no_keys_is_named_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str, more: dict[str, Any]
) -> None:
    """Wrong storage options, or the client of S3, were blamed for it, by an error of another class."""
    (tmp_path / "config").write_text(f"[profile broken]\ncredential_process = {process}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(CredentialsError, match="credential_process"):
        source({"profile": "broken", **more})


def test_an_empty_key_is_refused_and_signs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with pytest.raises(OptionError, match="key is empty"):
        source({"key": "", "secret": ""})
