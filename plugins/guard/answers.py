"""Checks the answers of a plug-in's store about objects: descriptions, listings, digests. Pure.

Guarantees: results have the documented types, and a listing belongs to one folder: an object in a sub-folder is left
out, an object outside of the folder is refused. An endless listing is refused when it has too many entries.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from streamer.core.options.limits import Limits, ListingCount
from streamer.core.quoting import printable, quoted
from streamer.core.store.digests import NoDigest, ObjectDigest, PartDigest
from streamer.core.store.sources import MAX_SIZE_BYTES, ObjectInfo
from streamer.plugins.guard.plugin import BrokenContractError, kind_of

__all__ = ["digest_in", "info_in", "listing_in", "names_in", "number_in", "text_in"]


def text_in(value: Any, what: str, *, may_be_none: bool = False) -> Any:
    """Return a value if it is text.

    Raises:
        BrokenContractError: it is not text.
    """
    if isinstance(value, str) or (value is None and may_be_none):
        return value
    raise BrokenContractError(f"gave {kind_of(value)} as {what}, which is text{' or None' if may_be_none else ''}")


def number_in(value: Any, what: str, low: int, high: int) -> int:
    """Return a value if it is a whole number, which may be of numpy.

    Raises:
        BrokenContractError: it is not, or is out of its bounds.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise BrokenContractError(f"gave {kind_of(value)} as {what}, which is a whole number")
    if not low <= number <= high:
        raise BrokenContractError(f"gave {number} as {what}, which is from {low} to {high}")
    return number


def info_in(answer: Any, path: str | None = None) -> ObjectInfo:
    """Return the description of one object.

    Args:
        answer: The store's return value.
        path: The requested object; None for an entry of a listing.

    Raises:
        BrokenContractError: it is no description, or describes another object.
    """
    if not isinstance(answer, ObjectInfo):
        raise BrokenContractError(f"returned {kind_of(answer)}, not an ObjectInfo")
    if not text_in(answer.path, "path"):
        raise BrokenContractError("gave an empty path, which names no object")
    if path is not None and answer.path.strip("/") != path.strip("/"):
        raise BrokenContractError(f"described {printable(answer.path[:200])} when asked for {printable(path[:200])}")
    text_in(answer.uri, "uri")
    text_in(answer.version, "version", may_be_none=True)
    if answer.size_bytes is None:
        return answer
    size_bytes = number_in(answer.size_bytes, "size_bytes", 0, MAX_SIZE_BYTES)
    return answer if type(answer.size_bytes) is int else replace(answer, size_bytes=size_bytes)


def listing_in(answer: Any, folder: str, limits: Limits, uri: str) -> list[ObjectInfo]:
    """Return the objects directly in a folder, sorted.

    Args:
        answer: The return value of the store's `find`.
        folder: The prefix that it was called with.
        limits: Bounds of the number of entries.
        uri: The folder, without secrets.

    Raises:
        BrokenContractError: it is no listing, or the listing of another folder.
        StorageError: there are too many entries.
    """
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise BrokenContractError(f"returned {kind_of(answer)}, not a list of ObjectInfo")
    count = ListingCount(limits, uri)
    listed: dict[str, ObjectInfo] = {}
    for each in answer:
        count.add(1)
        if not isinstance(each, ObjectInfo):
            raise BrokenContractError(f"listed {kind_of(each)}, not an ObjectInfo")
        info = info_in(each)
        if not is_directly_in(folder, info.path):
            continue
        if info.path in listed:
            raise BrokenContractError(f"listed {quoted(info.path)} twice")
        listed[info.path] = info
    return sorted(listed.values(), key=lambda info: info.path)


def names_in(answer: Any, limits: Limits, uri: str | None) -> list[str]:
    """Return the names of the folders in a folder, sorted.

    Args:
        answer: The return value of the store's `folders`.
        limits: Bounds of the number of entries.
        uri: The folder, without secrets.

    Raises:
        BrokenContractError: the value is no list of names.
        StorageError: there are too many names.
    """
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise BrokenContractError(f"returned {kind_of(answer)}, not a list of names")
    count, names = ListingCount(limits, uri or ""), set()
    for each in answer:
        count.add(1)
        names.add(str(text_in(each, "name of a folder")))
    return sorted(names)


def is_directly_in(folder: str, path: str) -> bool:
    """Say whether a listed path is an object directly in a folder, not the folder itself or in a sub-folder.

    Raises:
        BrokenContractError: the path is outside of the folder.

    Example:
        >>> [is_directly_in("models/llama", f"models/llama{rest}") for rest in ("/a.safetensors", "/old/b", "/", "")]
        [True, False, False, False]
    """
    inside, rest = folder.strip("/"), path.lstrip("/")
    if inside:
        if rest.rstrip("/") == inside:
            return False
        if not rest.startswith(f"{inside}/"):
            raise BrokenContractError(f"listed {quoted(path)}, which is not in the folder {quoted(folder)}")
        rest = rest[len(inside) + 1 :]
    if ".." in rest.split("/"):
        raise BrokenContractError(f"listed {quoted(path)}, which leads out of the folder {quoted(folder)}")
    return bool(rest) and "/" not in rest


def digest_in(answer: Any) -> ObjectDigest | NoDigest:
    """Return the digest of an object; the caller checks whether it fits the object's size.

    Raises:
        BrokenContractError: it is no digest.
    """
    if isinstance(answer, NoDigest):
        text_in(answer.reason, "reason of NoDigest")
        return answer
    if not isinstance(answer, ObjectDigest):
        raise BrokenContractError(f"returned {kind_of(answer)}, neither an ObjectDigest nor a NoDigest")
    text_in(answer.algorithm, "algorithm")
    for part in answer.parts:
        if not isinstance(part, PartDigest):
            raise BrokenContractError(f"has {kind_of(part)} among its parts, not a PartDigest")
        text_in(part.value, "value of a part")
        number_in(part.end, "end of a part", 0, MAX_SIZE_BYTES)
    return answer
