"""Answers of status 200 that are not what was asked for: pages of portals, other documents, listings without an end.

The same odd answers are given for every storage: no file may go missing without an error, and the error blames the
answer, not the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from each_row import each_row
from servers.listed_folder import LISTINGS, SIZE, is_listing, shard
from servers.one_file import DATA, FILES, one_file, place_of
from servers.scripted_http import Answer, Request

import streamer
from streamer import Options

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

PORTAL = (
    b"<!DOCTYPE html><html><head><title>Login</title></head><body><form action='/login'>Log in</form></body></html>"
)
INDEX = "<html><head><title>Index of /m/</title></head><body><pre><a href='../'>../</a>\n{}</pre></body></html>"


def _http_page(_: dict[str, str], answer: Answer, __: str) -> None:
    links = "".join(f'<a href="{number}.safetensors">{number}</a>\n' for number in range(3))
    answer.become(200, INDEX.format(links).encode(), Content_Type="text/html")


PAGES = {**LISTINGS, "http": _http_page}


def without_length(answer: Answer) -> None:
    del answer.headers["Content-Length"]
    answer.headers["Connection"] = "close"
    answer.handler.close_connection = True


def body(answer: Answer, content: bytes) -> None:
    answer.body = content
    answer.headers["Content-Length"] = str(len(content))


def portal_without_length(answer: Answer) -> None:
    answer.become(200, PORTAL, Content_Type="text/html")
    without_length(answer)


FOREIGN: dict[str, Callable[[Answer], None]] = {
    "portal": lambda answer: answer.become(200, PORTAL, Content_Type="text/html; charset=utf-8"),
    "portal without a length": portal_without_length,
    "nothing": lambda answer: answer.become(200),
    "json": lambda answer: answer.become(200, b'{"error": "login"}', Content_Type="application/json"),
    "text": lambda answer: answer.become(200, b"please log in", Content_Type="text/plain"),
    "xml": lambda answer: answer.become(200, b"<?xml version='1.0'?><A><Ok/></A>", Content_Type="application/xml"),
}


def cut(share: float, *, has_length: bool = True) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        body(answer, answer.body[: int(len(answer.body) * share)])
        if not has_length:
            without_length(answer)

    return change


@contextmanager
def folder(storage: str, change: Callable[[Answer, int], None]) -> Any:
    """Serve a folder of three shards; `change` is called with each answer to a listing, and its number."""
    listings: list[str] = []

    def script(request: Request, answer: Answer) -> None:
        path = urlsplit(request.path)
        if path.path.endswith("/m/") if storage == "http" else is_listing(request):
            query = {name: values[0] for name, values in parse_qs(path.query).items()}
            PAGES[storage](query, answer, server.url.removesuffix("/object"))
            listings.append(request.path)
            change(answer, len(listings))
        elif re.search(r"\d\.safetensors", request.path):
            if answer.status == 206 and request.begin < request.end:
                number = int(request.path.partition(".safetensors")[0][-1])
                answer.body = shard(number)[request.begin : request.end]
        else:
            answer.become(404)

    with one_file(script) as server:
        uri, options = FILES[storage](server.url.removesuffix("/object"))
        yield uri.removesuffix("a.safetensors") + "m", options, listings


def load(uri: str, options: dict[str, Any]) -> Any:
    return streamer.load(uri, framework="np", storage_options=options, options=Options(deadline_s=20))


@each_row("storage", FILES)
@each_row("odd", FOREIGN)
def test_an_answer_that_is_no_listing_is_reported_regression(storage: str, odd: str) -> None:
    with (
        folder(storage, lambda answer, _: FOREIGN[odd](answer)) as (uri, options, _),
        pytest.raises(streamer.StorageError) as caught,
    ):
        load(uri, options)
    assert not isinstance(caught.value, (streamer.ObjectNotFoundError, streamer.TransferTimeoutError))
    assert re.search("text/|application/|nothing|without a type|is no|lists no", str(caught.value))
    assert re.search("proxy", str(caught.value))


@each_row("storage", [each for each in FILES if each != "gs"])  # whose lookups are documents
@each_row("odd", FOREIGN)
def test_an_odd_answer_to_a_lookup_is_blamed_and_not_the_file_regression(storage: str, odd: str) -> None:
    """It was "the object is empty", or "the file was replaced while it was read"."""

    def script(request: Request, answer: Answer) -> None:
        is_lookup = answer.handler.command == "HEAD" or request.headers.get("range") == "bytes=0-0"
        if is_lookup and "/api/" not in request.path:
            FOREIGN[odd](answer)

    with one_file(script) as server, pytest.raises(streamer.StorageError) as caught:
        load(*place_of(storage, server))
    assert not isinstance(caught.value, (streamer.ChangedError, streamer.TruncatedError))
    assert "proxy" in str(caught.value)
    assert re.search(r"text/|application/|without a type|web page", str(caught.value))


@each_row("odd", FOREIGN)
def test_an_odd_answer_to_a_lookup_in_gcs_is_described(odd: str) -> None:
    def script(request: Request, answer: Answer) -> None:
        if "/download/" not in request.path:
            FOREIGN[odd](answer)

    with one_file(script) as server:
        uri, options = place_of("gs", server)
        with pytest.raises(streamer.StorageError, match="proxy or a login page"):
            streamer.load(uri.removesuffix("a.safetensors") + "m", framework="np", storage_options=options)


CUTS = {"half": cut(0.5), "half, without a length": cut(0.5, has_length=False), "nearly whole": cut(0.9)}


@each_row("storage", FILES)
@each_row("how", CUTS)
def test_a_listing_that_breaks_off_is_requested_again_regression(storage: str, how: str) -> None:
    def once(answer: Answer, number: int) -> None:
        if number == 1:
            CUTS[how](answer)

    with folder(storage, once) as (uri, options, listings):
        assert len(load(uri, options)) == 6
    assert listings[0] == listings[1]


@each_row("storage", FILES)
@each_row("how", CUTS)
def test_a_listing_that_always_breaks_off_is_an_error_regression(storage: str, how: str) -> None:
    ends = pytest.raises(streamer.TruncatedError, match=r"breaks off|truncated")
    with folder(storage, lambda answer, _: CUTS[how](answer)) as (uri, options, listings), ends:
        load(uri, options)
    assert len(listings) == 3


def test_a_page_of_azure_without_a_marker_is_requested_again_regression() -> None:
    def once(answer: Answer, number: int) -> None:
        if number == 2:
            body(answer, re.sub(rb"<NextMarker.*?(/>|</NextMarker>)", b"", answer.body))

    with folder("az", once) as (uri, options, listings):
        assert len(load(uri, options)) == 6
    assert len(listings) == 4


def test_a_full_page_of_s3_without_a_mark_of_the_end_is_an_error_regression() -> None:
    def change(answer: Answer, _: int) -> None:
        entries = b"".join(b"<Contents><Key>m/%d</Key><Size>1</Size></Contents>" % number for number in range(1000))
        body(answer, b"<ListBucketResult>" + entries + b"</ListBucketResult>")

    with folder("s3", change) as (uri, options, _), pytest.raises(streamer.StorageError, match="broke off"):
        load(uri, options)


def twice(answer: Answer, *, is_same: bool) -> None:
    """Name each object twice."""

    def other(entry: bytes) -> bytes:
        return entry if is_same else entry.replace(b"v1", b"v2").replace(str(SIZE).encode(), b"99")

    if answer.body[:1] in (b"[", b"{"):
        page = json.loads(answer.body)
        entries = page if isinstance(page, list) else page["items"]
        entries += [json.loads(other(json.dumps(each).encode())) for each in entries]
        body(answer, json.dumps(page).encode())
    else:
        body(answer, re.sub(rb"<(Contents|Blob|a)\b.*?</\1>", lambda found: found[0] + other(found[0]), answer.body))


@pytest.mark.parametrize("storage", FILES)
def test_an_object_that_is_listed_twice_alike_is_one_regression(storage: str) -> None:
    with folder(storage, lambda answer, _: twice(answer, is_same=True)) as (uri, options, _):
        assert len(load(uri, options)) == 6


@pytest.mark.parametrize("storage", [each for each in FILES if each != "http"])  # whose pages have no sizes
def test_an_object_with_two_descriptions_is_listed_again_regression(storage: str) -> None:
    """Each was taken for a shard: "the same shard is named twice"."""
    pages = len(LISTINGS)

    def at_first(answer: Answer, number: int) -> None:
        if number < pages:
            twice(answer, is_same=False)

    with folder(storage, at_first) as (uri, options, _):
        assert len(load(uri, options)) == 6
    ends = pytest.raises(streamer.ChangedError, match="names the object twice")
    with folder(storage, lambda answer, _: twice(answer, is_same=False)) as (uri, options, _), ends:
        load(uri, options)


def test_an_index_that_a_server_without_listings_has_is_still_loaded() -> None:
    """The folder's page is one of a web application: that says nothing about the index that was named."""
    index = json.dumps({"weight_map": {"weight": "a.safetensors", "bias": "a.safetensors"}}).encode()

    def script(request: Request, answer: Answer) -> None:
        if request.path.endswith("/"):
            answer.become(200, PORTAL, Content_Type="text/html")
        elif request.path.endswith("index.json"):
            part = index[request.begin : min(request.end, len(index))]
            answer.become(
                206, part, Content_Range=f"bytes {request.begin}-{request.begin + len(part) - 1}/{len(index)}"
            )
        elif "." not in request.path:
            answer.become(404)

    with one_file(script, DATA) as server:
        url = server.url.removesuffix("/object")
        for uri in (f"{url}/m/model.safetensors.index.json", f"{url}/m"):
            assert len(load(uri, {})) == 2
