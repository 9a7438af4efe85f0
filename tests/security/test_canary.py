"""A secret goes in with every storage and through every way to fail, and comes out in no message, log or traceback.

What is searched: text, `repr`, pickle and traceback of the error, with all its causes; our own log; warnings.
"""

from __future__ import annotations

import base64
import logging
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from each_row import each_row
from faults.catalogue import FAULTS
from faults.server import FaultServer
from safetensors.torch import save, save_file
from servers.scripted_http import ScriptedServer

import streamer

pytestmark = pytest.mark.usefixtures("short_pauses")

CANARY = "C4n4ryS3cr3tXyz"
CANARY_KEY = base64.b64encode(CANARY.encode() * 3).decode()  # Azure's keys are written in base64
FORMS = (CANARY, CANARY_KEY, CANARY_KEY[:24], base64.b64encode(f"user:{CANARY}".encode()).decode())
HASTY = streamer.Options(
    max_attempts=2,
    connect_timeout_s=1.0,
    first_byte_timeout_s=0.3,
    stall_timeout_s=0.3,
    block_deadline_s=1.0,
    block_bytes=64 << 10,
)
CLOSED = "127.0.0.1:9"  # nothing listens on the port of "discard"


@contextmanager
def nothing_is_shown(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Expect an error of ours, and search everything that somebody might see of it."""
    caplog.set_level(logging.DEBUG, logger="streamer")
    error = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            yield
        except streamer.StreamerError as raised:
            error = raised
    assert error is not None, "it did not fail"
    texts = [str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error))]
    texts += [record.getMessage() for record in caplog.records if record.name.startswith("streamer")]
    texts += [str(each.message) for each in warned]
    assert str(error)
    assert not [text for text in texts for form in FORMS if form in text]
    try:
        pickled = pickle.dumps(error)
    except Exception:  # what holds a cause that cannot be pickled is not pickled at all
        return
    assert not [form for form in FORMS if form.encode() in pickled]


def load(uri: Any, options: Any = None) -> None:
    streamer.load(uri, storage_options=options, options=HASTY, progress=False)


S3_SECRETS = {"key": "AKIDEXAMPLE", "secret": CANARY, "token": CANARY}


@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.ends and not fault.is_silent])
def test_every_fault_of_a_signed_load_shows_no_secret(tmp_path, caplog, fault):
    save_file({"weight": torch.arange(60_000.0)}, tmp_path / "a.safetensors")
    with FaultServer(tmp_path, lambda asked: FAULTS[fault] if asked.number > 0 else None) as server:
        options = {**server.storage_options(), **S3_SECRETS}
        with nothing_is_shown(caplog):
            load(server.url("a.safetensors"), options)


def test_through_a_checksum_that_differs(tmp_path, caplog):
    save_file({"weight": torch.arange(60_000.0)}, tmp_path / "a.safetensors")
    streamer.write_manifest(tmp_path / "a.safetensors")
    with FaultServer(tmp_path, lambda asked: FAULTS["flipped_byte"] if asked.begin > 0 else None) as server:
        options = {**server.storage_options(), **S3_SECRETS}
        with nothing_is_shown(caplog):
            streamer.load(
                server.url("a.safetensors"), storage_options=options, verify="manifest", options=HASTY, progress=False
            )


HTTP_ERRORS: dict[str, Callable[[Any, Any], None]] = {
    "400": lambda _, answer: answer.become(400),
    "401": lambda _, answer: answer.become(401, WWW_Authenticate="Basic"),
    "403": lambda _, answer: answer.become(403, CANARY.encode()),
    "404": lambda _, answer: answer.become(404, CANARY.encode()),
    "429": lambda _, answer: answer.become(429),
    "500": lambda _, answer: answer.become(500, CANARY.encode()),
    "no range": lambda _, answer: answer.headers.update({"Content-Range": "bytes 7-8/9"}),
    "compressed": lambda _, answer: answer.headers.update({"Content-Encoding": "br"}),
    "redirect to nowhere": lambda _, answer: answer.become(302, Location=f"http://{CLOSED}/{CANARY}?sig={CANARY}"),
    "redirect in a circle": lambda _, answer: answer.become(302, Location=f"/object?sig={CANARY}"),
    "redirect elsewhere": lambda _, answer: answer.become(302, Location=f"ftp://user:{CANARY}@host/x"),
    "half a header": lambda _, answer: setattr(answer, "sent_bytes", 3),
    "no checkpoint": lambda _, answer: answer.become(206, b"x" * 9, Content_Range="bytes 0-8/9", ETag='"e"'),
}
HTTP_SECRETS: dict[str, Callable[[str], tuple[str, Any]]] = {
    "user": lambda host: (f"http://user:{CANARY}@{host}/object", None),
    "query": lambda host: (f"http://{host}/object?X-Amz-Signature={CANARY}", None),
    "header": lambda host: (f"http://{host}/object", {"headers": {"Authorization": f"Bearer {CANARY}"}}),
    "cache": lambda host: (f"simplecache::http://user:{CANARY}@{host}/object", None),
}


@each_row("secret", HTTP_SECRETS)
@each_row("error", HTTP_ERRORS)
def test_through_every_answer_of_a_web_server(caplog, error, secret):
    if (error, secret) == ("no range", "cache"):
        pytest.skip("a cache asks for the whole, and so gets no wrong range")
    with ScriptedServer(save({"weight": torch.arange(9.0)}), HTTP_ERRORS[error]) as server:
        uri, options = HTTP_SECRETS[secret](server.url.split("/")[2])
        with nothing_is_shown(caplog):
            load(uri, options)


NO_SERVER: dict[str, tuple[str, Any]] = {
    "s3": ("s3://bucket/a.safetensors", {**S3_SECRETS, "endpoint_url": f"http://{CLOSED}"}),
    "s3 in TLS": ("s3://bucket/a.safetensors", {**S3_SECRETS, "endpoint_url": f"https://{CLOSED}"}),
    "s3 in the URL": (f"s3://AKID:{CANARY}@bucket/a.safetensors", {"endpoint_url": f"http://{CLOSED}"}),
    "s3 endpoint": ("s3://bucket/a.safetensors", {**S3_SECRETS, "endpoint_url": f"http://user:{CANARY}@{CLOSED}"}),
    "gs": ("gs://bucket/a.safetensors", {"token": f"ya29.{CANARY}", "endpoint_url": f"http://{CLOSED}"}),
    "gs key": ("gs://bucket/a.safetensors", {"token": {"private_key": CANARY, "client_email": "a@b"}}),
    "gs in the URL": (f"gs://user:{CANARY}@bucket/a.safetensors", {"endpoint_url": f"http://{CLOSED}"}),
    "az key": (
        "az://container/a.safetensors",
        {"connection_string": f"AccountName=acct;AccountKey={CANARY_KEY};BlobEndpoint=http://{CLOSED}/acct"},
    ),
    "az SAS": (
        "az://container/a.safetensors",
        {"account_name": "acct", "sas_token": f"sv=2024&sig={CANARY}", "account_host": CLOSED},
    ),
    "az SAS in the URL": (f"https://acct.blob.core.windows.net.invalid/c/a.safetensors?sv=2024&sig={CANARY}", None),
    "hf": ("hf://owner/repo/a.safetensors", {"token": f"hf_{CANARY}", "endpoint": f"http://{CLOSED}"}),
    "hf in the URL": (f"hf://user:{CANARY}@owner/repo/a.safetensors", {"endpoint": f"http://{CLOSED}"}),
    "http": (f"http://user:{CANARY}@{CLOSED}/a.safetensors", None),
    "https": (f"https://user:{CANARY}@{CLOSED}/a.safetensors?sig={CANARY}", None),
    "http proxy": ("http://storage.invalid/a.safetensors", {"proxy": f"http://user:{CANARY}@{CLOSED}"}),
    "nfs": (f"nfs://user:{CANARY}@{CLOSED}/export/a.safetensors", None),
    "nfs option": (f"nfs://{CLOSED}/export/a.safetensors?password={CANARY}", None),
    "ftp": (f"ftp://user:{CANARY}@{CLOSED}/a.safetensors", None),
    "sftp": (f"sftp://user:{CANARY}@{CLOSED}/a.safetensors", None),
    "webdav": (f"webhdfs://user:{CANARY}@{CLOSED}/a.safetensors", {"password": CANARY}),
    "github": (f"github://owner:{CANARY}@repo/a.safetensors", {"username": "u", "token": CANARY}),
    "chain": (f"zip://a.safetensors::https://user:{CANARY}@{CLOSED}/a.zip?sig={CANARY}", None),
    "cache": (f"simplecache::s3://AKID:{CANARY}@bucket/a.safetensors", {"s3": {"endpoint_url": f"http://{CLOSED}"}}),
    "unknown": (f"nosuch://user:{CANARY}@host/a.safetensors?sig={CANARY}", {"password": CANARY}),
    "bad option": ("s3://bucket/a.safetensors", {**S3_SECRETS, "no_such_option": CANARY}),
    "memory": (f"memory://user:{CANARY}@host/absent.safetensors", None),
}


@each_row("case", NO_SERVER)
def test_an_unreachable_server_shows_no_secret(caplog, monkeypatch, case):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with nothing_is_shown(caplog):
        load(*NO_SERVER[case])


@pytest.mark.parametrize("scheme", ["s3", "gs", "http", "https", "hf"])
def test_a_password_of_the_proxy(caplog, monkeypatch, scheme):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://user:{CANARY}@{CLOSED}")
    options = {
        "s3": {"anon": True},
        "gs": {"token": "anon"},
        "http": None,
        "https": None,
        "hf": {"token": False},
    }
    host = "owner/repo" if scheme == "hf" else "storage.invalid"
    with nothing_is_shown(caplog):
        load(f"{scheme}://{host}/a.safetensors", options[scheme])


@pytest.mark.server
@pytest.mark.parametrize("path", ["private/nix.safetensors", "nosuchbucket/nix.safetensors", "private/models"])
def test_a_wrong_key_of_s3(s3_server, caplog, path):
    options = {**s3_server.storage_options(), "secret": CANARY}
    with nothing_is_shown(caplog):
        load(f"s3://{path}", options)


@pytest.mark.server
def test_a_wrong_token_of_gcs(gcs_server, caplog):
    with nothing_is_shown(caplog):
        load("gs://private/nix.safetensors", {**gcs_server.storage_options(), "token": f"ya29.{CANARY}"})


@pytest.mark.server
@pytest.mark.parametrize("kind", ["key", "sas"])
def test_a_wrong_key_of_azure(azure_server, caplog, kind):
    given = {key: value for key, value in azure_server.storage_options().items() if key != "account_key"}
    text = given.get("connection_string", "")
    parts = [part for part in text.split(";") if not part.startswith("AccountKey")]
    secret = f"AccountKey={CANARY_KEY}" if kind == "key" else f"SharedAccessSignature=sv=2024-01-01&sig={CANARY}"
    with nothing_is_shown(caplog):
        load("az://private/nix.safetensors", {**given, "connection_string": ";".join([*parts, secret])})


@pytest.mark.server
def test_a_wrong_token_of_the_hub(hub_server, caplog):
    with nothing_is_shown(caplog):
        load("hf://owner/nix/a.safetensors", {"endpoint": hub_server.url, "token": f"hf_{CANARY}"})
