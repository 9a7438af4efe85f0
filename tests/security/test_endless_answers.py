"""A server whose answers, pages or listings never end takes neither memory nor time; each knob of it is an option."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from each_row import each_row
from servers.hostile import Poured, pour
from servers.places import STORES, Place, azure, base, gcs, hub, s3
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import Options
from streamer.backends.s3.client import S3Client
from streamer.backends.s3.store import S3Store
from streamer.core.errors import StorageError
from streamer.core.store.digests import NoDigest
from streamer.core.store.sources import ObjectInfo

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

DATA = bytes(range(256)) * 16
BODY_BYTES = 256 << 20  # of a body "without end", so that a test without its mend still ends
IN_SOCKETS_BYTES = 24 << 20  # the most that the kernel may hold between two ends
SMALL = Options(answer_bytes=1 << 20)

Endless = Callable[[Answer], None]


def serving(script: Callable[[Request, Answer], None]) -> ScriptedServer:
    return ScriptedServer(DATA, script)


# --- web servers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, str(3 << 30)])
def test_a_probe_reads_only_the_requested_byte(length: str | None) -> None:
    poured = Poured()

    def script(request: Request, answer: Answer) -> None:
        del answer.headers["Content-Length"]
        answer.headers |= {"Content-Length": length} if length else {}
        pour(answer, BODY_BYTES, poured)

    with serving(script) as server, pytest.raises(StorageError):
        streamer.load(f"{server.url}.safetensors", options=Options(block_deadline_s=1, max_attempts=1))
    assert poured.sent_bytes < IN_SOCKETS_BYTES


ENDLESS_HEADERS = {
    "a line": {"X-Endless": "a" * 110_000},
    "lines": {f"X-Endless-{number}": "a" * 1000 for number in range(400)},
}


@pytest.mark.parametrize("status", [206, 403])
@pytest.mark.parametrize("headers", ENDLESS_HEADERS)
def test_headers_without_end_before_a_range_are_the_servers_fault_regression(headers: str, status: int) -> None:
    """libcurl says of a long line that memory is out, and so did the error; many lines were a lost connection."""

    def script(request: Request, answer: Answer) -> None:
        if request.number > 0:  # the probe is answered as it should be
            answer.status = status
            answer.headers |= ENDLESS_HEADERS[headers]

    with serving(script) as server, pytest.raises(streamer.RangeResponseError, match="do not end") as caught:
        streamer.load(f"{server.url}.safetensors", options=Options(block_deadline_s=5))
    assert (caught.value.status, caught.value.attempts) == (status, 2)
    assert "Check the endpoint" in str(caught.value)


def page_of(links: list[str]) -> bytes:
    return "".join(f'<a href="{link}">x</a>' for link in links).encode()


def test_an_index_page_of_too_many_links_is_refused_before_the_next_request() -> None:
    page = page_of([f"{number}.safetensors" for number in range(101)])
    with serving(lambda request, answer: answer.become(200, page, Content_Type="text/html")) as server:
        with pytest.raises(StorageError, match="more than 100 entries") as caught:
            streamer.load(f"{base(server)}/folder", options=Options(listing_entries=100))
        assert [request.path for request in server.requests] == ["/folder", "/folder/"]
    assert "raise listing_entries" in str(caught.value)


def test_names_that_cannot_be_shards_are_not_requested() -> None:
    page = page_of([f"{number}.txt" for number in range(500)])
    with serving(lambda request, answer: answer.become(200, page, Content_Type="text/html")) as server:
        with pytest.raises(StorageError, match="safetensors file"):
            streamer.load(f"{base(server)}/folder")
        # Whether it is a file, and the page: a second time, for what the message says of the folder.
        assert [request.path for request in server.requests] == ["/folder", "/folder/", "/folder/"]


def test_but_a_pattern_may_mean_them() -> None:
    """What a listing does not tell is asked for when it is wanted."""
    page = page_of(["a.bin"])

    def script(request: Request, answer: Answer) -> None:
        if request.path.endswith("/"):
            answer.become(200, page, Content_Type="text/html")

    empty = (2).to_bytes(8, "little") + b"{}"
    with ScriptedServer(empty, script) as server:
        assert streamer.load(f"{base(server)}/*.bin") == {}


def test_an_endless_index_page_is_refused() -> None:
    poured = Poured()

    def script(request: Request, answer: Answer) -> None:
        answer.status, answer.headers = 200, {"Content-Type": "text/html"}
        pour(answer, BODY_BYTES, poured)

    with serving(script) as server, pytest.raises(StorageError, match="no end"):
        streamer.load(f"{base(server)}/folder")
    assert poured.sent_bytes < (16 << 20) + IN_SOCKETS_BYTES


# --- stores, which are asked for listings and documents ---------------------------------------------------------------


def load(place: Place, server: ScriptedServer, options: Options) -> dict[str, Any]:
    uri, storage_options = place(server)
    return streamer.load(uri, storage_options=storage_options, options=options)


@each_row("length", [None, str(3 << 30)])
@each_row("status", [200, 400])
@each_row("place", STORES)
def test_an_endless_answer_is_refused(place: Place, status: int, length: str | None) -> None:
    poured = Poured()

    def script(request: Request, answer: Answer) -> None:
        answer.status = status
        answer.headers = {"Content-Type": "application/xml", **({"Content-Length": length} if length else {})}
        pour(answer, BODY_BYTES, poured)

    with serving(script) as server, pytest.raises(StorageError) as caught:
        load(place, server, SMALL)
    assert poured.sent_bytes < 3 * IN_SOCKETS_BYTES  # asked again by the client of S3
    if not (place is hub and status == 400):  # of whose errors only the beginning is read
        assert "more than 1048576 bytes" in str(caught.value)
        assert "answer_bytes" in str(caught.value)


def test_what_the_client_of_azure_might_unpack_stays_packed() -> None:
    packed = gzip.compress(bytes(BODY_BYTES // 4))
    assert len(packed) < SMALL.answer_bytes

    def script(request: Request, answer: Answer) -> None:
        answer.become(200, packed, Content_Type="application/xml", Content_Encoding="gzip")

    with serving(script) as server:
        with pytest.raises(StorageError, match="compresses its answer"):
            load(azure, server, SMALL)
        assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}


def s3_page(names: list[str], number: int) -> bytes:
    entries = "".join(
        f"<Contents><Key>{name}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for name in names
    )
    return (
        f"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{number}</NextContinuationToken>"
        f"{entries}</ListBucketResult>"
    ).encode()


def gcs_page(names: list[str], number: int) -> bytes:
    return json.dumps({"items": [{"name": name, "size": "1"} for name in names], "nextPageToken": str(number)}).encode()


def hub_page(names: list[str], number: int) -> bytes:
    return json.dumps([{"type": "file", "path": name, "size": 1} for name in names]).encode()


def azure_page(names: list[str], number: int) -> bytes:
    blobs = "".join(
        f"<Blob><Name>{name}</Name><Properties><Content-Length>1</Content-Length><BlobType>BlockBlob</BlobType>"
        "</Properties></Blob>"
        for name in names
    )
    return (
        f'<?xml version="1.0"?><EnumerationResults ContainerName="container"><Blobs>{blobs}</Blobs>'
        f"<NextMarker>{number}</NextMarker></EnumerationResults>"
    ).encode()


PAGES = {s3: s3_page, gcs: gcs_page, hub: hub_page, azure: azure_page}


def listing_without_end(place: Place, names_on_page: int) -> ScriptedServer:
    def script(request: Request, answer: Answer) -> None:
        names = [f"folder/{request.number}-{index}.txt" for index in range(names_on_page)]
        link = f'<http://{request.headers["host"]}/api/page/{request.number}>; rel="next"'
        kind = "application/json" if place in (gcs, hub) else "application/xml"
        answer.become(200, PAGES[place](names, request.number + 1), Content_Type=kind, Link=link)

    return serving(script)


@pytest.mark.parametrize("place", STORES)
def test_a_listing_of_endless_pages_is_refused(place: Place) -> None:
    with listing_without_end(place, 10) as server:
        with pytest.raises(StorageError, match="more than 95 entries") as caught:
            load(place, server, Options(listing_entries=95, deadline_s=30))
        assert len(server.requests) == 10
    assert "raise listing_entries" in str(caught.value)


@pytest.mark.parametrize("place", STORES)
def test_a_listing_of_endless_empty_pages_is_refused(place: Place) -> None:
    with listing_without_end(place, 0) as server:
        with pytest.raises(StorageError, match="8 pages of it bring nothing") as caught:
            load(place, server, Options(listing_empty_pages=7, deadline_s=30))
        assert len(server.requests) == 8
    assert "raise listing_empty_pages" in str(caught.value)


def test_parts_of_an_endless_upload_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 tells the checksums of parts in pages, too."""
    asked: list[int] = []

    def answer(_client: S3Client, method: str, bucket: str, **wanted: Any) -> dict[str, Any]:
        if method == "head_object":
            return {"ContentLength": 9, "ChecksumCRC32C": "4waSgw==-5"}
        asked.append(wanted["PartsAfter"])
        return {"ObjectParts": {"IsTruncated": True, "NextPartNumberMarker": len(asked)}}

    monkeypatch.setattr(S3Client, "call", answer)
    store = S3Store("s3://bucket/key", {"anon": True})
    assert isinstance(store.digest(ObjectInfo("bucket/key", "s3://bucket/key", 9)), NoDigest)
    assert asked == [0]


@pytest.mark.parametrize("place", STORES)
def test_no_further_page_is_requested_after_the_caller_has_left_regression(place: Place) -> None:
    """The thread that listed went on for as long as there were pages."""
    with listing_without_end(place, 1) as server:
        pages = server.script
        assert pages is not None

        def slowly(request: Request, answer: Answer) -> None:
            time.sleep(0.1)
            pages(request, answer)

        server.script = slowly
        with pytest.raises(streamer.TransferTimeoutError, match="deadline_s"):
            load(place, server, Options(deadline_s=1.0))
        asked = len(server.requests)
        time.sleep(0.5)
        assert len(server.requests) <= asked + 1  # the page that was under way
