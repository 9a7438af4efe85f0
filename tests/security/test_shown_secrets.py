"""Neither an error and its causes, nor the repr of an object of ours shows an option or the secret of a URL."""

from __future__ import annotations

import asyncio
import base64
import json
import socketserver
from typing import Any

import fsspec
import pytest
from servers.background import served
from servers.scripted_http import ScriptedServer
from shown import shown_by

import streamer
from streamer.plugins import open_store

pytestmark = pytest.mark.usefixtures("short_pauses")

CANARY = "C4n4ryS3cr3tXyz"
CANARY_KEY = base64.b64encode(CANARY.encode() * 3).decode()
CLOSED = "127.0.0.1:9"  # nothing listens on the port of "discard"
HASTY = streamer.Options(max_attempts=1, block_deadline_s=1.0)
S3 = {"key": "AKIDEXAMPLE", "secret": CANARY, "token": CANARY}
S3_HERE = {**S3, "endpoint_url": f"http://{CLOSED}"}
AZURE_HERE = f"AccountName=acct;AccountKey={CANARY_KEY};BlobEndpoint=http://{CLOSED}/acct"

ERRORS: dict[str, tuple[str, Any]] = {
    "s3": ("s3://bucket/a.safetensors", S3_HERE),
    "s3 by scheme": ("s3://bucket/a.safetensors", {"s3": S3_HERE, "gs": {"token": CANARY}}),
    "s3 unknown option": ("s3://bucket/a.safetensors", {**S3, "no_such_option": CANARY}),
    "s3 refused option": ("s3://bucket/a.safetensors", {**S3, "client_kwargs": {"verify": False, "a": CANARY}}),
    "s3 of a client": (
        "s3://bucket/a.safetensors",
        {"client_kwargs": {"aws_access_key_id": "AKID", "aws_secret_access_key": CANARY, "no_such": 1}},
    ),
    "s3 asynchronous": ("s3://bucket/a.safetensors", {**S3, "asynchronous": True}),
    "gs": ("gs://bucket/a.safetensors", {"token": f"ya29.{CANARY}", "endpoint_url": f"http://{CLOSED}"}),
    "gs key": ("gs://bucket/a.safetensors", {"token": {"private_key": CANARY, "client_email": "a@b"}}),
    "gs key file": ("gs://bucket/a.safetensors", {"token": f"/absent/{CANARY}.json"}),
    "gs unknown option": ("gs://bucket/a.safetensors", {"token": f"ya29.{CANARY}", "no_such": 1, "project": None}),
    "gs connector": ("gs://bucket/a.safetensors", {"token": f"ya29.{CANARY}", "session_kwargs": {"a": CANARY}}),
    "az key": ("az://container/a.safetensors", {"connection_string": AZURE_HERE}),
    "az malformed key": ("az://container/a.safetensors", {"account_name": "acct", "account_key": f"{CANARY}!"}),
    "az SAS": (
        "az://container/a.safetensors",
        {"account_name": "acct", "sas_token": f"sv=2024&sig={CANARY}", "account_host": CLOSED},
    ),
    "az no account": ("az://container/a.safetensors", {"sas_token": f"sv=2024&sig={CANARY}"}),
    "az two": (
        "https://acct.blob.core.windows.net/c/a.safetensors",
        {"account_name": "other", "account_key": CANARY_KEY},
    ),
    "az certificates": (
        "az://container/a.safetensors",
        {
            "connection_string": AZURE_HERE,
            "connection_verify": "/absent.pem",
            "proxies": {"http": f"http://u:{CANARY}@p"},
        },
    ),
    "hf": ("hf://owner/repo/a.safetensors", {"token": f"hf_{CANARY}", "endpoint": f"http://{CLOSED}"}),
    "hf wrong option": ("hf://owner/repo/a.safetensors", {"token": f"hf_{CANARY}", "tokn": CANARY}),
    "hf certificates": ("hf://owner/repo/a.safetensors", {"token": f"hf_{CANARY}", "verify": "/absent.pem"}),
    "hf malformed token": ("hf://owner/repo/a.safetensors", {"token": [CANARY]}),
    "http": (f"http://{CLOSED}/a.safetensors", {"headers": {"Authorization": f"Bearer {CANARY}"}}),
    "http login": (f"http://{CLOSED}/a.safetensors", {"auth": ("user", CANARY)}),
    "http malformed login": (f"http://{CLOSED}/a.safetensors", {"auth": (CANARY,)}),
    "http malformed proxy": (
        f"http://{CLOSED}/a.safetensors",
        {"proxy": "http://proxy", "proxy_auth": [CANARY, CANARY, ""], "headers": {"X-Key": CANARY}},
    ),
    "http malformed header": (f"http://{CLOSED}/a.safetensors", {"headers": {"X-Key": f"{CANARY}\r\n"}}),
    "http malformed headers": (f"http://{CLOSED}/a.safetensors", {"headers": [CANARY]}),
    "http malformed cookies": (f"http://{CLOSED}/a.safetensors", {"cookies": [CANARY]}),
    "http forbidden header": (f"http://{CLOSED}/a.safetensors", {"headers": {"X-Key": CANARY, "Range": "x"}}),
    "http proxy": ("http://storage.invalid/a.safetensors", {"proxy": f"http://user:{CANARY}@{CLOSED}"}),
    "http through fsspec": (f"http://{CLOSED}/a.safetensors", {"headers": {"X-Key": CANARY}, "max_redirects": 5}),
    "http unknown option": (f"http://{CLOSED}/a.safetensors", {"headers": {"X-Key": CANARY}, "no_such": CANARY}),
    "nfs": (f"nfs://{CLOSED}/export/a.safetensors", {"password": CANARY}),
    "file": ("/absent/a.safetensors", {"password": CANARY}),
    "sftp": (f"sftp://{CLOSED}/a.safetensors", {"username": "u", "password": CANARY}),
    "chain": ("simplecache::s3://bucket/a.safetensors", {"s3": S3_HERE}),
    "archive": ("zip://a.safetensors", {"fo": f"http://{CLOSED}/a.zip", "target_options": {"headers": {"X": CANARY}}}),
    "unknown": ("nosuch://host/a.safetensors", {"password": CANARY}),
}
WAYS = {
    "load": lambda uri, options: streamer.load(uri, storage_options=options, options=HASTY),
    "load_into": lambda uri, options: streamer.load_into(uri, {}, storage_options=options, options=HASTY),
    "load_file": lambda uri, options: streamer.load_file(uri, storage_options=options, options=HASTY),
    "stream": lambda uri, options: streamer.stream(uri, storage_options=options, options=HASTY),
    "open": lambda uri, options: streamer.open(uri, storage_options=options, options=HASTY),
    "safe_open": lambda uri, options: streamer.safe_open(uri, "pt", storage_options=options, options=HASTY),
    "a list": lambda uri, options: streamer.load([uri, uri], storage_options=[options, None], options=HASTY),
    "aload": lambda uri, options: asyncio.run(streamer.aload(uri, storage_options=options, options=HASTY)),
    "save": lambda uri, options: streamer.save({}, uri, storage_options=options, options=HASTY),
    "save_model": lambda uri, options: streamer.save_model({}, uri, storage_options=options, options=HASTY),
    "asave": lambda uri, options: asyncio.run(streamer.asave({}, uri, storage_options=options, options=HASTY)),
    "write_manifest": lambda uri, options: streamer.write_manifest(uri, storage_options=options, options=HASTY),
}


@pytest.mark.parametrize("case", ERRORS)
def test_no_error_shows_an_option(monkeypatch, case):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("SOME_PASSWORD", CANARY)
    with pytest.raises(streamer.StreamerError) as caught:
        WAYS["load"](*ERRORS[case])
    shown = shown_by(caught.value)
    assert shown
    assert [text for text in shown if CANARY in text or CANARY_KEY[:24] in text] == []


@pytest.mark.parametrize("way", WAYS)
def test_neither_does_any_way_in(monkeypatch, way):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(streamer.StreamerError) as caught:
        WAYS[way](*ERRORS["s3"])
    shown = shown_by(caught.value)
    assert shown
    assert [text for text in shown if CANARY in text] == []


@pytest.mark.parametrize(
    "answer",
    [
        b"220 mail ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 403 No\r\nContent-Length: 30\r\n\r\nyou sent " + CANARY.encode() + b"......",
    ],
    ids=["no HTTP", "malformed", "an echo"],
)
def test_neither_does_an_error_about_an_answer_regression(answer):
    """aiohttp's own error holds the request with all its headers."""

    class Answering(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answering) as server, served(server):
        url = f"http://127.0.0.1:{server.server_address[1]}/x.safetensors"
        with pytest.raises(streamer.StreamerError) as caught:
            streamer.load(url, storage_options={"headers": {"Authorization": f"Bearer {CANARY}"}})
    assert [text for text in shown_by(caught.value) if CANARY in text] == []


URLS = {
    "http login": f"http://user:{CANARY}@{CLOSED}/a.safetensors",
    "http query": f"http://{CLOSED}/a.safetensors?sig={CANARY}",
    "http folder": f"http://user:{CANARY}@{CLOSED}/x/",
    "http glob": f"http://user:{CANARY}@{CLOSED}/x/*.safetensors",
    "http index": f"https://u:{CANARY}@{CLOSED}/model.safetensors.index.json?X-Amz-Signature={CANARY}",
    "http malformed": f"http://u:{CANARY}@[::1/a.safetensors",
    "s3 login": f"s3://KEY:{CANARY}@bucket/a.safetensors",
    "s3 query": f"s3://bucket/a.safetensors?X-Amz-Signature={CANARY}",
    "gs login": f"gs://u:{CANARY}@bucket/a.safetensors",
    "gs query": f"gs://bucket/a.safetensors?token={CANARY}",
    "az SAS": f"https://acct.blob.core.windows.net.invalid/c/a.safetensors?sv=2024&sig={CANARY}",
    "az login": f"az://u:{CANARY}@acct.blob.core.windows.net/c/a.safetensors",
    "abfss": f"abfss://c:{CANARY}@acct.dfs.core.windows.net/a.safetensors",
    "az query": f"az://c/a.safetensors?sv=2024&sig={CANARY}",
    "hf login": f"hf://u:{CANARY}@owner/repo/a.safetensors",
    "nfs login": f"nfs://u:{CANARY}@{CLOSED}/export/a.safetensors",
    "nfs query": f"nfs://{CLOSED}/export/a.safetensors?password={CANARY}",
    "file": f"file://u:{CANARY}@host/a.safetensors",
    "memory": f"memory://u:{CANARY}@host/a.safetensors",
    "sftp": f"sftp://u:{CANARY}@{CLOSED}/a.safetensors",
    "cache": f"simplecache::http://u:{CANARY}@{CLOSED}/a.safetensors",
    "cache of S3": f"simplecache::s3://K:{CANARY}@bucket/a.safetensors",
    "archive": f"zip://a.safetensors::http://u:{CANARY}@{CLOSED}/a.zip",
    "github": f"github://u:{CANARY}@x:y/a.safetensors",
    "unknown": f"nosuch://u:{CANARY}@host/a",
}


@pytest.mark.parametrize("case", URLS)
def test_no_error_shows_what_a_url_hides(monkeypatch, case):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "an example of a key")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{CLOSED}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{CLOSED}")
    with pytest.raises(streamer.StreamerError) as caught:
        streamer.load(URLS[case], options=HASTY)
    shown = shown_by(caught.value)
    assert shown
    assert [text for text in shown if CANARY in text] == []


ONE_URL = URLS["cache"]
URL_WAYS = {
    **{name: lambda way=way: way(ONE_URL, None) for name, way in WAYS.items() if name != "a list"},
    "a list": lambda: streamer.load([ONE_URL, ONE_URL], options=HASTY),
    "a generator": lambda: streamer.load((url for url in (ONE_URL, ONE_URL)), options=HASTY),
    "a list with another mistake": lambda: streamer.load([ONE_URL, None], options=HASTY),  # type: ignore[list-item]
    "a wrong word": lambda: streamer.load(ONE_URL, verify="x"),  # type: ignore[arg-type]
    "a wrong framework": lambda: streamer.load(ONE_URL, framework="x"),
    # Not `ONE_URL`: that its host answered would be remembered for other tests of this process.
    "its own file system": lambda: streamer.load(URLS["memory"], fs=fsspec.filesystem("memory"), options=HASTY),
    "open_store": lambda: open_store(URLS["unknown"]),
}


@pytest.mark.parametrize("way", URL_WAYS)
def test_neither_does_any_way_in_with_a_url(monkeypatch, way):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(streamer.StreamerError) as caught:
        URL_WAYS[way]()
    shown = shown_by(caught.value)
    assert shown
    assert [text for text in shown if CANARY in text] == []


LATE = {
    "no header": lambda request, answer: answer.become(206, b"x" * (request.end - request.begin)),
    "refused later": lambda request, answer: answer.become(403, b"no") if request.number > 3 else None,
    "cut later": lambda request, answer: setattr(answer, "sent_bytes", 3) if request.number > 1 else None,
    "another version": lambda request, answer: answer.headers.update(ETag=f'"{request.number}"'),
}


@pytest.mark.parametrize(
    "form",
    [
        "http://u:{}@{}/a.safetensors",
        "http://{1}/a.safetensors?sig={0}",
        "blockcache::http://u:{}@{}/a.safetensors",
        "simplecache::http://{1}/a.safetensors?sig={0}",
    ],
)
@pytest.mark.parametrize("fault", LATE)
def test_neither_does_an_error_while_bytes_are_read(tmp_path, fault, form):
    header = json.dumps({"a": {"dtype": "U8", "shape": [3_000_000], "data_offsets": [0, 3_000_000]}}).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(3_000_000)
    storage_options = {form.partition("::")[0]: {"cache_storage": str(tmp_path)}} if "::" in form else None
    options = streamer.Options(block_bytes=65536, max_attempts=1)
    with ScriptedServer(data, LATE[fault]) as server:
        url = form.format(CANARY, f"127.0.0.1:{server.port}")
        with pytest.raises(streamer.StreamerError) as caught:
            streamer.load(url, storage_options=storage_options, options=options)
    shown = shown_by(caught.value)
    assert shown
    assert [text for text in [*shown, str(caught.value)] if CANARY in text] == []


def test_two_urls_that_differ_by_their_secret_are_not_taken_for_one():
    made = []

    class Recorded(fsspec.AbstractFileSystem):
        protocol = "recorded"

        def __init__(self, **options):
            super().__init__(**options)
            made.append(options)

        @staticmethod
        def _get_kwargs_from_urls(url):
            return {"login": url.partition("://")[2].partition("@")[0]}

    fsspec.register_implementation("recorded", Recorded, clobber=True)
    for secret in (CANARY, "another"):
        open_store(f"recorded://user:{secret}@host/a")
    assert [each["login"] for each in made] == [f"user:{CANARY}", "user:another"]
    assert {type(each["login"]) for each in made} == {str}


def test_two_secrets_are_not_taken_for_one():
    """fsspec tells its instances apart by the text of their arguments."""
    made = []

    class Recorded(fsspec.AbstractFileSystem):
        protocol = "recorded"

        def __init__(self, **options):
            super().__init__(**options)
            made.append(options)

    fsspec.register_implementation("recorded", Recorded, clobber=True)
    for secret in (CANARY, "another"):
        open_store("recorded://a", {"login": {"password": secret}})
    assert made == [{"login": {"password": CANARY}}, {"login": {"password": "another"}}]
    assert all(type(each["login"]) is dict for each in made)
