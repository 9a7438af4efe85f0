"""Sessions of botocore whose credentials sign requests, and buckets of other tenants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from each_row import each_row
from safetensors.torch import save_file
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends import aws_sessions
from streamer.backends.s3 import botocore_login
from streamer.backends.s3.botocore_login import shared_login
from streamer.backends.s3.login import keys_of_session
from streamer.backends.s3.options import filled_options
from streamer.backends.s3.store import S3Store
from streamer.core.errors import CredentialsError, OptionError, TransferTimeoutError
from streamer.core.store.sources import HttpSource, ObjectInfo

INFO = ObjectInfo("bucket/key", "s3://bucket/key", 1)
KEYS = {"Version": 1, "AccessKeyId": "AKIDPROCESS", "SecretAccessKey": "s"}

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(5, dtype=torch.uint8)}
PLACE = "/acme%3Amodels"
LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>acme:models</Name><Prefix>m/</Prefix>
<Delimiter>/</Delimiter><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents>
<Key>m/m.safetensors</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>"v1"</ETag><Size>%d</Size>
</Contents></ListBucketResult>"""


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
    monkeypatch.setattr(botocore_login, "shared_login", lambda _: pytest.fail("botocore's client was asked"))
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


@each_row("more", [{}, {"requester_pays": True}])
@each_row("process", ["echo no JSON", "true", "sh /absent/script", "/absent/program"])
def test_a_process_that_gives_no_keys_is_named_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str, more: dict[str, Any]
) -> None:
    """Wrong storage options, or the client of S3, were blamed for it, by an error of another class."""
    (tmp_path / "config").write_text(f"[profile broken]\ncredential_process = {process}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(CredentialsError, match="credential_process"):
        source({"profile": "broken", **more})


@each_row("deadline_s", [None, 1.0])
def test_a_process_that_hangs_is_named_with_its_profile_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_s: float | None
) -> None:
    """A load waited for ever, or blamed the URL when its deadline was over. The arguments may hold a secret."""
    (tmp_path / "config").write_text("[profile hanging]\ncredential_process = sleep 61.25\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(aws_sessions, "PROCESS_TIMEOUT_S", 0.2 if deadline_s is None else 2)
    kind = CredentialsError if deadline_s is None else TransferTimeoutError
    with pytest.raises(kind, match="the credential_process 'sleep' of the AWS profile 'hanging'") as caught:
        streamer.load(
            "s3://bucket/m", storage_options={"profile": "hanging"}, options=streamer.Options(deadline_s=deadline_s)
        )
    assert "61.25" not in str(caught.value)


def test_an_empty_key_is_refused_and_signs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with pytest.raises(OptionError, match="key is empty"):
        source({"key": "", "secret": ""})


@pytest.fixture
def server(tmp_path):
    """A server with ``m/m.safetensors`` in the bucket ``acme:models``, and nothing else."""
    save_file(TENSORS, tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()

    def answer(request, reply):
        if request.path.startswith((f"{PLACE}?", f"{PLACE}/?")):
            reply.become(200, (LISTING % len(data)).encode(), **{"Content-Type": "application/xml"})
        elif not request.path.startswith(f"{PLACE}/m/m.safetensors"):
            reply.become(404, b"<Error><Code>NoSuchKey</Code></Error>", **{"Content-Type": "application/xml"})
        elif "range" not in request.headers:
            reply.status = 200
            reply.headers.pop("Content-Range")

    with ScriptedServer(data, answer) as server:
        server.answers_head = True
        yield server


def options_for(server, **more):
    return {"key": "AKID", "secret": "S3CR3T", "endpoint_url": f"http://127.0.0.1:{server.port}", **more}


def same(got):
    assert got.keys() == TENSORS.keys()
    assert all(torch.equal(got[name], TENSORS[name]) for name in TENSORS)


URIS = (
    "s3://acme:models/m/m.safetensors",
    "s3a://acme:models/m",
    "s3://acme:models/m/*.safetensors",
    "s3://acme%3Amodels/m",
)
MORE = ({}, {"config_kwargs": {"s3": {"addressing_style": "path"}}}, {"anon": True})


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("more", MORE, ids=["keys", "an option of s3fs", "anonymous"])
def test_a_bucket_with_a_tenant_is_loaded_regression(server, uri, more):
    same(streamer.load(uri, storage_options=options_for(server, **more)))
    is_signed = [
        b"X-Amz-Signature" in each.path.encode() or "authorization" in each.headers for each in server.requests
    ]
    assert all(is_signed) is not more.get("anon", False)


def test_the_endpoint_of_the_environment_counts_regression(server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    same(streamer.load(URIS[0], storage_options={"key": "AKID", "secret": "S3CR3T"}))


def test_an_instance_is_read_regression(server):
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **options_for(server))
    same(streamer.load("acme:models/m", fs=fs))


@pytest.mark.parametrize("uri", URIS)
def test_amazon_forbids_the_colon_regression(uri):
    with pytest.raises(streamer.UsageError, match=r"Amazon S3 forbids a colon.*endpoint_url") as caught:
        streamer.load(uri, storage_options={"key": "AKID", "secret": "S3CR3T"})
    assert "credential" not in str(caught.value)


@pytest.mark.parametrize("user", ["AKID:S3CR3T@", "AKID@"])
def test_an_at_sign_means_credentials(server, user):
    with pytest.raises(streamer.UsageError, match="holds no credentials") as caught:
        streamer.load(f"s3://{user}models/m", storage_options=options_for(server))
    assert "S3CR3T" not in str(caught.value)
    assert server.requests == []
