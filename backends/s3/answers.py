"""Parses S3's answers to our requests: pages of listings, errors, answers of other servers. Pure.

XML documents become the same dictionaries as botocore's. Guarantees: each listed object has a name that can be
requested and a size that a file can have; otherwise a `StorageError`.

A page of a console, a login or a proxy at a wrong endpoint is recognised: it is no listing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import unquote_plus, urlsplit

from streamer.backends.client.answer_values import (
    element_name,
    parse_name,
    parse_size,
    parse_word,
    parse_xml,
    quoted_start,
)
from streamer.backends.client.exchange import Response
from streamer.backends.client.retry import Attempts
from streamer.core.causes import raise_from
from streamer.core.errors import StorageError, StreamerError
from streamer.core.secrets.redact import redact

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

LOOKED_AT_BYTES = 4096  # the root element of a listing comes soon after its XML declaration

_ROOT = re.compile(rb"<(?:[\w-]+:)?([A-Za-z][\w-]*)")
_DECLARED = re.compile(rb"\s*<\?xml[^>]*>?")

# By botocore's names; the checksums that are cheapest to compute come first.
FIELDS = {
    "ChecksumCRC64NVME": "crc64nvme",
    "ChecksumCRC32C": "crc32c",
    "ChecksumCRC32": "crc32",
    "ChecksumSHA256": "sha256",
    "ChecksumSHA1": "sha1",
}


# Elements that may be there several times, and botocore's names of the lists; elements that are numbers.
_LISTS = {"CommonPrefixes": "CommonPrefixes", "Contents": "Contents", "Part": "Parts", "Upload": "Uploads"}
_NUMBERS = frozenset({"NextPartNumberMarker", "PartNumber", "Size"})


class ListedObject(NamedTuple):
    """An object of a listing: its key, its size, and its ETag if the listing has one."""

    key: str
    size_bytes: int
    etag: str | None


def count_of_entries(page: Mapping[str, Any]) -> int:
    """Count the objects and folders of a page."""
    return len(page.get("Contents") or []) + len(page.get("CommonPrefixes") or [])


def objects_in(page: Mapping[str, Any], uri: str) -> list[ListedObject]:
    """Return the objects of a page, without the empty objects that consoles make to stand for folders."""
    try:
        objects = [
            ListedObject(parse_name(entry["Key"], uri), parse_size(entry["Size"], uri), entry.get("ETag") or None)
            for entry in page.get("Contents") or []
        ]
    except KeyError:
        raise StorageError("S3 lists an object without its name or size", uri=uri, hint="Check endpoint_url") from None
    return [each for each in objects if not each.key.endswith("/")]


def names_in(page: Mapping[str, Any], folder: str) -> list[str]:
    """Return the names of a page's objects within the folder, and the names of sub-folders with a slash at the end."""
    keys = [each.get("Key") for each in page.get("Contents") or []]
    folders = [each.get("Prefix") for each in page.get("CommonPrefixes") or []]
    return [str(each).removeprefix(folder) for each in (*folders, *keys) if each and each != folder]


def parse_page(document: bytes) -> dict[str, Any] | None:
    """Parse a page of a listing whose ``encoding-type`` is ``url``; return None if it is no such page.

    Example:
        >>> parse_page(b"<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>")
        {'Contents': [{'Key': 'a', 'Size': 1}], 'CommonPrefixes': []}
    """
    page = parse_result(document, "ListBucketResult")
    if page is None:
        return None
    page = {"Contents": page.pop("Contents", []), "CommonPrefixes": page.pop("CommonPrefixes", []), **page}
    if page.get("EncodingType") == "url":
        for entry in (*page["Contents"], *page["CommonPrefixes"]):
            entry |= {name: unquote_plus(entry[name]) for name in ("Key", "Prefix") if entry.get(name)}
    return page


def parse_result(document: bytes, name: str) -> dict[str, Any] | None:
    """Parse a document as botocore does; return None if it has another root, or if its numbers are none."""
    root = parse_xml(document, name)
    try:
        return None if root is None else _fields_of(root)
    except ValueError:
        return None


def parse_error(document: bytes) -> dict[str, Any]:
    """Parse the error document of a refused request; return an empty dict if there is none.

    Example:
        >>> parse_error(b"<Error><Code>NoSuchKey</Code><Key>a</Key></Error>")
        {'Code': 'NoSuchKey', 'Key': 'a'}
    """
    root = parse_xml(document, "Error")
    return {} if root is None else {element_name(child): child.text or "" for child in root}


def _fields_of(element: Element) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for child in element:
        name, text = element_name(child), child.text or ""
        if name in _LISTS:
            fields.setdefault(_LISTS[name], []).append(_fields_of(child))
        elif name in _NUMBERS and text:
            fields[name] = int(text)
        elif name == "IsTruncated":
            fields[name] = text == "true"
        else:
            fields[name] = _fields_of(child) if len(child) else text
    return fields


class ForeignAnswerError(Exception):
    """The answer to a request for a listing is not a listing."""

    def __init__(self, endpoint: str, kind: str, body: bytes) -> None:
        super().__init__()
        self._endpoint = redact(endpoint)
        self._kind = parse_word(kind.partition(";")[0].strip()) or "something"
        self._quote = quoted_start(body) if body.strip() else None

    def storage_error(self, uri: str) -> StorageError:
        """Return the error for the user."""
        what = "nothing" if self._quote is None else f"{self._kind} that begins {self._quote}"
        return StorageError(
            f"The endpoint {self._endpoint} does not speak S3: it answers the request for a listing with {what}",
            uri=uri,
            hint="Check endpoint_url: a console has another port than its S3, and a proxy may want a login",
        )


def refuse_foreign_listing(url: str, response: Response) -> None:
    """Raise `ForeignAnswerError` if a successful answer to a request for a listing is not a listing."""
    if not _may_be_listing(response.body[:LOOKED_AT_BYTES]):
        endpoint = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        raise ForeignAnswerError(endpoint, response.headers.get("content-type", ""), response.body)


def _may_be_listing(start: bytes) -> bool:
    start = start.removeprefix(b"\xef\xbb\xbf")
    declared = _DECLARED.match(start)
    rest = start[declared.end() if declared else 0 :].lstrip()
    root = _ROOT.match(rest)
    if root is None:  # truncated before the root, or an XHTML page
        return declared is not None and rest[:9].upper() != b"<!DOCTYPE"
    return root[1] in (b"ListBucketResult", b"Error")


def raise_translated(translated: StreamerError, error: Exception) -> NoReturn:
    """Raise an error of this package; an answer, which may repeat a secret, is neither its cause nor its context."""
    is_answer = isinstance(error, (RefusedError, ForeignAnswerError))
    raise_from(translated, None if is_answer or translated is error else error)


class RefusedError(Exception):
    """S3 refuses a request; an error document in a successful answer counts as status 500.

    `response` is the same dictionary as that of botocore's `ClientError`.
    """

    def __init__(self, response: Response, attempts: Attempts) -> None:
        super().__init__()
        self.status = response.status if response.status >= 300 else 500
        self.headers, self.document = response.headers, parse_error(response.body)
        metadata = {
            "HTTPStatusCode": self.status,
            "HTTPHeaders": response.headers,
            "RetryAttempts": attempts.number - 1,
        }
        self.response: dict[str, Any] = {"Error": self.document, "ResponseMetadata": metadata}

    @property
    def code(self) -> str | None:
        """The code of the error document; None if it has none."""
        return parse_word(self.document.get("Code"))
