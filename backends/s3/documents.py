"""Parses S3's XML documents (a page of a listing, an error) into the same dictionaries as botocore. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote_plus
from xml.etree.ElementTree import Element, ParseError, fromstring

__all__ = ["parse_error", "parse_page"]


def parse_page(document: bytes) -> dict[str, Any] | None:
    """Parse the answer to a request whose ``encoding-type`` is ``url``.

    Returns:
        The result of botocore's ``list_objects_v2``, without fields that are not used here; None if it is no such page.

    Example:
        >>> parse_page(b"<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>")
        {'Contents': [{'Key': 'a', 'Size': 1}], 'CommonPrefixes': [], 'IsTruncated': False}
    """
    root = _root(document, "ListBucketResult")
    if root is None:
        return None
    texts = _texts(root)
    is_encoded = texts.get("EncodingType") == "url"
    try:
        entries = [_entry(each, is_encoded=is_encoded) for each in _children(root, "Contents")]
    except ValueError:
        return None
    folders = [_entry(each, is_encoded=is_encoded) for each in _children(root, "CommonPrefixes")]
    page = {"Contents": entries, "CommonPrefixes": folders, "IsTruncated": texts.get("IsTruncated") == "true"}
    return page | {name: texts[name] for name in ("NextContinuationToken",) if name in texts}


def parse_error(document: bytes) -> dict[str, str]:
    """Parse the error document of a refused request; return an empty dict if there is none.

    Example:
        >>> parse_error(b"<Error><Code>NoSuchKey</Code><Key>a</Key></Error>")
        {'Code': 'NoSuchKey', 'Key': 'a'}
    """
    root = _root(document, "Error")
    return {} if root is None else _texts(root)


def _root(document: bytes, name: str) -> Element | None:
    try:
        text = document.decode()
        root = None if "<!" in text else fromstring(text)  # noqa: S314 (without a declaration, entities are XML's own)
    except (ParseError, UnicodeDecodeError):
        return None
    return None if root is None or _name(root) != name else root


def _entry(element: Element, *, is_encoded: bool) -> dict[str, Any]:
    texts = _texts(element)
    entry: dict[str, Any] = {name: texts[name] for name in ("Key", "Prefix", "ETag") if name in texts}
    for name in ("Key", "Prefix"):
        if is_encoded and name in entry:
            entry[name] = unquote_plus(entry[name])
    if "Size" in texts:
        entry["Size"] = int(texts["Size"])
    return entry


def _texts(element: Element) -> dict[str, str]:
    return {_name(child): child.text or "" for child in element}


def _children(element: Element, name: str) -> Iterator[Element]:
    return (child for child in element if _name(child) == name)


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]  # without its namespace
