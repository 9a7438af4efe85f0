"""Files, programs and servers that give credentials fail while they are rotated; a load waits, or says what failed."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from servers.one_file import TENSORS, one_file, place_of

import streamer
from streamer.core.outages import outage_waits

STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AK</AccessKeyId><SecretAccessKey>SK</SecretAccessKey>
<SessionToken>T</SessionToken><Expiration>{}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""
PROGRAM = "import sys; print(open(sys.argv[1]).read())"


def keys():
    """Keys that end soon, so that each request asks for new ones."""
    ends = datetime.fromtimestamp(time.time() + 30, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"AccessKeyId": "AK", "SecretAccessKey": "SK", "Token": "T", "SessionToken": "T", "Expiration": ends}


def server_of_keys(request, answer):
    if request.path == "/keys":
        is_known = request.headers.get("authorization") == "of-container"
        body = json.dumps(keys()).encode() if is_known else b'{"code": "InvalidToken"}'
        answer.become(200 if is_known else 400, body, Content_Type="application/json")
    elif request.path == "/" and answer.handler.command == "POST":
        answer.become(200, STS.format(keys()["Expiration"]).encode(), Content_Type="text/xml")
    elif request.path == "/token":
        token = {"access_token": "T", "expires_in": 1, "issued_token_type": "t", "token_type": "Bearer"}
        answer.become(200, json.dumps(token).encode(), Content_Type="application/json")


def of_container(file, url, monkeypatch):
    file.write_text("of-container")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/keys")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(file))
    return "s3", {"endpoint_url": url}


def of_web_identity(file, url, monkeypatch):
    file.write_text("of-web")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(file))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/test")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
    return "s3", {"endpoint_url": url}


def of_process(file, url, monkeypatch):
    file.write_text(json.dumps({"Version": 1, **keys()}))
    program, config = file.with_name("give.py"), file.with_name("config")
    program.write_text(PROGRAM)
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program} {file}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return "s3", {"endpoint_url": url}


def of_google(file, url, monkeypatch):
    file.write_text("of-google")
    named = file.with_name("google.json")
    account = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{url}/token",
        "credential_source": {"file": str(file)},
    }
    named.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(named))
    return "gs", {"endpoint_url": url}


SOURCES = [of_container, of_web_identity, of_process, of_google]


@pytest.fixture(autouse=True)
def _no_other_login(monkeypatch, tmp_path):
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture(params=SOURCES)
def source(request, tmp_path, monkeypatch):
    """Give the file on which the credentials depend, and a function that loads with them."""
    with one_file(server_of_keys) as server:
        file = tmp_path / "source-of-keys"
        url = server.url.removesuffix("/object")
        storage, options = request.param(file, url, monkeypatch)
        uri, _ = place_of(storage, server)

        def load():
            got = streamer.load(uri, storage_options={**options, "skip_instance_cache": True}, framework="np")
            assert all(np.array_equal(got[name], TENSORS[name]) for name in TENSORS)

        yield file, load


@pytest.fixture
def after_failure(monkeypatch):
    """Call a function when the credentials could not be had for the first time."""
    called: list[object] = []

    def call(function):
        note = outage_waits._note_failure

        def noted(wait, error):
            if not called:
                called.append(function())
            return note(wait, error)

        monkeypatch.setattr(outage_waits, "_note_failure", noted)
        return called

    return call


def test_a_source_of_credentials_that_is_missing_for_a_moment_is_asked_again_regression(source, after_failure):
    file, load = source
    load()
    kept = file.read_bytes()
    file.unlink()
    called = after_failure(lambda: file.write_bytes(kept))
    load()
    assert called


def test_a_source_that_never_worked_is_named_at_once_regression(source):
    file, load = source
    file.unlink()
    with pytest.raises(streamer.CredentialsError) as caught:
        load()
    assert "custom-process" in str(caught.value) or file.name in f"{caught.value}{caught.value.__cause__}"


def test_a_server_that_refuses_the_token_of_a_container_is_named_without_it_regression(tmp_path, monkeypatch):
    with one_file(server_of_keys) as server:
        url = server.url.removesuffix("/object")
        file = tmp_path / "token"
        of_container(file, url, monkeypatch)
        file.write_text("S3CR3T-of-another")
        with pytest.raises(streamer.CredentialsError, match=url.removeprefix("http://")) as caught:
            streamer.load("s3://bucket/a.safetensors", storage_options={"endpoint_url": url})
    assert "S3CR3T" not in str(caught.value)


def test_a_load_waits_while_a_file_of_keys_is_rewritten_regression(tmp_path, monkeypatch):
    file = tmp_path / "credentials"
    lines = "[default]\naws_access_key_id = {0}\naws_secret_access_key = S\n"
    file.write_text(lines.format("FIRST"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    has_ended = Path(tmp_path / "ended")

    def script(request, answer):
        signed_with = request.path + request.headers.get("authorization", "")
        if "SECOND" not in signed_with and request.headers.get("range", "bytes=0-0") != "bytes=0-0":
            if not has_ended.exists():  # a request for data with the first keys: they end, and the file is rewritten
                has_ended.touch()
                file.write_text("")
            elif not file.read_text():
                file.write_text(lines.format("SECOND"))
            answer.become(400, b"<Error><Code>ExpiredToken</Code></Error>", Content_Type="application/xml")
        elif has_ended.exists():  # the look-up of the renewal
            file.write_text(lines.format("SECOND"))

    with one_file(script) as server:
        uri, options = place_of("s3", server)
        endpoint = {"endpoint_url": options["endpoint_url"]}
        got = streamer.load(uri, storage_options=endpoint, framework="np")
    assert all(np.array_equal(got[name], TENSORS[name]) for name in TENSORS)
