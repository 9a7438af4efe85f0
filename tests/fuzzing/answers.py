"""What the control plane must do with whatever a server answers: each says its law as those of `targets` do.

In all of them an error is a `StorageError` whose text any log can take. An input of several parts has a line for each
header, then an empty line, then the body.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin, urlsplit

from streamer.backends.client.answer_values import clock_offset_s, parse_document, parse_word
from streamer.backends.client.first_byte import size_of
from streamer.backends.client.redirects import Hop, next_hop, origin_of
from streamer.backends.gcs.client import object_in, page_in
from streamer.backends.gcs.errors import Answer, Caller
from streamer.backends.gcs.errors import refusal as gcs_refusal
from streamer.backends.hf import client as hf_errors
from streamer.backends.hf.answers import commit_in, entries_in, files_in, next_page
from streamer.backends.http import errors as http_errors
from streamer.backends.http.index_page import may_be_shard, names_in
from streamer.backends.http.probe import check_kind, expiry_of, version_in
from streamer.backends.s3.answers import RefusedError, count_of_entries, objects_in, parse_page
from streamer.backends.s3.checksums import digest_in_head
from streamer.backends.s3.errors import storage_error
from streamer.core.errors import StorageError
from streamer.core.options.limits import Limits

__all__ = ["TARGETS"]

MOST_BYTES = (1 << 63) - 1
FOLDER = "https://host:8443/models/small/"
LIMITS = Limits(listing_entries=1000)


def index_page(data: bytes) -> None:
    """An index page is refused, or each of its names is a file of that very folder."""
    try:
        names = names_in(data.decode(errors="replace"), FOLDER, LIMITS)
    except StorageError as error:
        _check(error)
        return
    assert len(names) <= LIMITS.listing_entries
    for name in names:
        found = urljoin(FOLDER, f"./{name}")
        assert origin_of(found) == origin_of(FOLDER), name
        assert urlsplit(found).path.rpartition("/")[0] == urlsplit(FOLDER).path.rstrip("/"), name
        may_be_shard(name)


def hub_listing(data: bytes) -> None:
    """A page of the Hub is refused, or gives files with sizes, and the next page is of the same origin."""
    headers, body = _parts(data)
    questions: list[Callable[[], object]] = [
        lambda: commit_in(body, "hf://x"),
        lambda: _check_hub_files(body),
        lambda: _check_same_origin(next_page([headers.get("link", "")], FOLDER, "https://host:8443", "hf://x")),
    ]
    for question in questions:
        _refuse_or_answer(question)


def gcs_listing(data: bytes) -> None:
    """A page of Google's is refused, or gives objects with names and sizes that can be."""

    def ask() -> None:
        document = parse_document(data)
        if isinstance(document, dict):
            entries, token = page_in(document, "gs://x")
            assert token is None or token
            for entry in entries:
                found = object_in(entry, "gs://x")
                _check_object(found.name, found.size_bytes)

    _refuse_or_answer(ask)


def s3_listing(data: bytes) -> None:
    """A page is refused, or it gives objects with names and sizes that can be."""
    page = parse_page(data)
    if page is None:
        return

    def ask() -> None:
        assert count_of_entries(page) >= 0
        for found in objects_in(page, "s3://x"):
            _check_object(found.key, found.size_bytes)

    _refuse_or_answer(ask)


def probe_header(data: bytes) -> None:
    """The header of a probe is refused, or tells a size that a file can have; a redirect stays with HTTP."""
    headers, _ = _parts(data)
    reported = {name.lower(): value for name, value in headers.items()}
    for status in (200, 206):
        _refuse_or_answer(lambda status=status: _check_size(size_of(status, reported, "https://x")[0]))
    _refuse_or_answer(lambda: check_kind(reported, "/a.safetensors", "https://x"))
    version, _ = version_in(reported)
    assert version is None or version.isascii()
    location = reported.get("location", "")
    _refuse_or_answer(lambda: _check_hop(next_hop(Hop(FOLDER, {"secret": "x"}), location, "https://x")))
    expiry_of(f"https://x/?{location}", reported, 0.0)
    clock_offset_s(reported.get("Date"), 0.0)
    digest_in_head({"ChecksumCRC32C": reported.get("X-Amz-Checksum-Crc32C")}, 1)


def error_body(data: bytes) -> None:
    """Whatever says an error, it is a `StorageError`."""
    headers, body = _parts(data)
    for status in (400, 401, 403, 404, 429, 500):
        _check(http_errors.refusal(status, headers, body, "https://x"))
        _check(hf_errors.refusal(status, headers, body, "hf://x", has_token=False))
        document = parse_document(body)
        request_id = parse_word(headers.get("x-guploader-uploadid"))  # as the client of GCS does
        answer = Answer(status, document if isinstance(document, dict) else None, request_id)
        _check(gcs_refusal(answer, Caller(None, None), "gs://x"))
        refused = SimpleNamespace(status=status, headers=headers, body=body)
        _check(storage_error(RefusedError(refused, SimpleNamespace(number=1)), "s3://x", "bucket"))


def _parts(data: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = data.partition(b"\n\n")
    lines = (line.partition(":") for line in head.decode("utf-8", "surrogateescape").split("\n"))  # as aiohttp
    return {name.strip().lower(): value.strip() for name, _, value in lines}, body


def _refuse_or_answer(ask: Callable[[], object]) -> None:
    try:
        ask()
    except StorageError as error:
        _check(error)


def _check(error: Any) -> None:
    assert isinstance(error, StorageError), error
    str(error).encode()


def _check_size(size_bytes: int) -> None:
    assert 0 <= size_bytes <= MOST_BYTES


def _check_object(name: str, size_bytes: int) -> None:
    assert name
    assert name.encode()
    _check_size(size_bytes)


def _check_hub_files(body: bytes) -> None:
    for file in files_in(entries_in(body, "hf://x"), "folder", "hf://x"):
        _check_size(file.size_bytes)
        json.dumps(file.name).encode()


def _check_same_origin(url: str | None) -> None:
    assert url is None or origin_of(url) == origin_of(FOLDER)


def _check_hop(hop: Hop) -> None:
    assert hop.url.startswith("https://")
    assert not hop.headers or origin_of(hop.url) == origin_of(FOLDER)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "error_body": error_body,
    "gcs_listing": gcs_listing,
    "hub_listing": hub_listing,
    "index_page": index_page,
    "probe_header": probe_header,
    "s3_listing": s3_listing,
}
