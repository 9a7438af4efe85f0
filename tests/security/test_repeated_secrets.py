"""An error shows nothing of a server's answer that repeats a secret, in whatever part of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from latin_rows import latin_rows
from servers.places import base
from servers.scripted_http import Answer, Request, ScriptedServer
from shown import shown_by

import streamer
from streamer.plugins import open_store

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

SECRET = "C4n4ryS3cr3tXyzAbcdefgh0123456789"
COMMIT = "a" * 40
BRIEF = streamer.Options(max_attempts=1, block_deadline_s=0.5, deadline_s=20)
SENT = f"you sent {SECRET}"


def azure(url: str) -> dict[str, Any]:
    return {"connection_string": f"BlobEndpoint={url}/account;SharedAccessSignature=sv=2024&sp=rl&sig={SECRET}"}


PLACES: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "web": lambda url: (f"{url}/a.safetensors", {"headers": {"X-Key": SECRET}}),
    "web folder": lambda url: (f"{url}/folder", {"headers": {"X-Key": SECRET}}),
    "web query": lambda url: (f"{url}/a.safetensors?sig={SECRET}", {}),
    "s3": lambda url: ("s3://bucket/folder", {"key": "k", "secret": SECRET, "token": SECRET, "endpoint_url": url}),
    "gcs": lambda url: ("gs://bucket/folder", {"token": f"ya29.{SECRET}", "endpoint_url": url}),
    "gcs file": lambda url: ("gs://bucket/a.safetensors", {"token": f"ya29.{SECRET}", "endpoint_url": url}),
    "hub": lambda url: (f"hf://owner/name@{COMMIT}", {"endpoint": url, "token": f"hf_{SECRET}"}),
    "hub branch": lambda url: ("hf://owner/name", {"endpoint": url, "token": f"hf_{SECRET}"}),
    "hub file": lambda url: (f"hf://owner/name@{COMMIT}/a.safetensors", {"endpoint": url, "token": f"hf_{SECRET}"}),
    "azure": lambda url: ("az://container/folder", azure(url)),
    "azure file": lambda url: ("az://container/a.safetensors", azure(url)),
}
IDS = ("x-amz-request-id", "x-ms-request-id", "x-ms-error-code", "X-Error-Code", "X-GUploader-UploadID")


def answering(status: int, body: Any, kind: str = "text/plain", **headers: str) -> Callable[[Request, Answer], None]:
    text = body if isinstance(body, str) else json.dumps(body)
    return lambda request, answer: answer.become(status, text.encode(), Content_Type=kind, **headers)


def cut(request: Request, answer: Answer) -> None:
    answer.become(200, SENT.encode() * 1000, Content_Type="application/json")
    answer.sent_bytes = 100


ANSWERS: dict[str, Callable[[Request, Answer], None]] = {
    "text": answering(403, SENT),
    "an error": answering(403, f"<Error><Code>{SECRET}</Code><Message>{SENT}</Message></Error>", "application/xml"),
    "an error in JSON": answering(
        400, {"error": {"message": SENT, "errors": [{"reason": SECRET}]}}, "application/json"
    ),
    "nothing there": answering(404, SENT),
    "busy": answering(503, SENT),
    "headers": answering(403, "", **{name.replace("-", "_"): SECRET for name in IDS}),
    "a redirect": answering(302, SENT, Location=f"ftp://host/{SECRET}"),
    "a redirect to no URL": answering(302, SENT, Location=f"http://[{SECRET}"),
    "a redirect to this machine": answering(302, SENT, Location=f"http://169.254.169.254/{SECRET}"),
    "no listing": answering(200, SENT),
    "a document": answering(200, {"sha": SECRET, "items": SECRET, "nextPageToken": SECRET}, "application/json"),
    "a list": answering(200, [{"type": "file", "path": SECRET, "size": SECRET}, SECRET], "application/json"),
    "items": answering(200, {"items": [{"name": f"folder/{SECRET}", "size": "x"}]}, "application/json"),
    "another page": answering(200, "[]", "application/json", Link=f'<http://{SECRET}.example/>; rel="next"'),
    "a listing": answering(
        200, f"<ListBucketResult><Contents><Key>{SECRET}</Key><Size>x</Size></Contents></ListBucketResult>", "text/xml"
    ),
    "a listing of Azure's": answering(
        200, f"<EnumerationResults><Blobs><Blob><Name>{SECRET}</Name></Blob></Blobs></EnumerationResults>", "text/xml"
    ),
    "a page": answering(200, f"<![{SENT}]>", "text/html"),
    "a range": lambda request, answer: answer.headers.update({"Content-Range": SECRET}),
    "an encoding": lambda request, answer: answer.headers.update({"Content-Encoding": SECRET}),
    "cut": cut,
}


@pytest.mark.parametrize(("answer", "_turn", "place"), latin_rows(ANSWERS, range(3), PLACES))
def test_no_error_shows_what_a_server_repeats_regression(answer: str, _turn: int, place: str) -> None:
    with ScriptedServer(SENT.encode() * 3, ANSWERS[answer]) as server:
        server.answers_head = True
        uri, storage_options = PLACES[place](base(server))
        with pytest.raises(streamer.StreamerError) as caught:
            streamer.load(uri, storage_options=storage_options, options=BRIEF)
        assert server.requests
    shown = shown_by(caught.value)
    assert [text for text in shown if SECRET[:16] in text] == []


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://bucket/a", {"endpoint_url": f"http://user:{SECRET}@host"}),
        ("s3://bucket/a", {"client_kwargs": {"endpoint_url": f"http://user:{SECRET}@host"}}),
        ("gs://bucket/a", {"endpoint_url": f"http://user:{SECRET}@host", "token": "anon"}),
        ("hf://owner/name", {"endpoint": f"http://user:{SECRET}@host", "token": False}),
        ("hf://owner/name", {"endpoint": f"http://user:{SECRET}@[host", "token": False}),
    ],
)
def test_no_error_shows_the_password_of_an_endpoint_regression(uri: str, options: dict[str, Any]) -> None:
    with pytest.raises(streamer.OptionError) as caught:
        open_store(uri, options)
    shown = shown_by(caught.value)
    assert shown
    assert [text for text in shown if SECRET in text] == []
