"""Checks the answers of a plug-in's store, so that its mistakes are errors that name it, not wrong or missing tensors.

Guarantees: an answer has the types that the class of the contract states; sizes are possible; a listing belongs to one
folder and ends. No message shows a URL or a header, because it may hold a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from numbers import Integral
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from streamer.core.options.limits import Limits, ListingCount
from streamer.core.quoting import printable, quoted
from streamer.core.store.digests import NoDigest, ObjectDigest, PartDigest, doubt_of, is_sound
from streamer.core.store.sources import (
    MAX_SIZE_BYTES,
    AnswerChecksum,
    FileSource,
    HttpSource,
    NfsSource,
    ObjectInfo,
    PythonSource,
    Source,
)

_URL = re.compile(r"https?://[^\s/?#]\S*", re.IGNORECASE)
_OF_THE_ENGINE = frozenset({"content-length", "if-range", "range", "transfer-encoding"})
MOST_THREADS = 256  # the limit of `Options`


class BrokenContractError(Exception):
    """An answer of a plug-in is not allowed by docs/write-a-plugin.md."""


def kind_of(value: object) -> str:
    """Return the name of a value's type.

    Example:
        >>> [kind_of(value) for value in (None, 7, [])]
        ['None', 'int', 'list']
    """
    return "None" if value is None else type(value).__name__


def checked(answer: Any, *classes: type) -> Any:
    """Return a value of one of these classes, if its attributes have the types that the class states."""
    cls = next((each for each in classes if isinstance(answer, each)), None)
    if cls is None:
        raise BrokenContractError(f"returned {kind_of(answer)}, not {' or '.join(each.__name__ for each in classes)}")
    changed = {}
    for name, hint in _hints_of(cls).items():
        given = getattr(answer, name)
        value = _plain(given)
        if not _is_of(value, hint):
            stated = cls.__dataclass_fields__[name].type  # type: ignore[attr-defined]  # each class of the contract is one
            raise BrokenContractError(f"gave {kind_of(given)} as {name}, which must be {stated}")
        if value is not given:
            changed[name] = value
    return replace(answer, **changed) if changed else answer


@cache
def _hints_of(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _plain(value: Any) -> Any:
    """Return a path object as text, and an integer of numpy as one of Python."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return int(value) if isinstance(value, Integral) and not isinstance(value, int) else value


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of an annotation; of collections, only a mapping's members are looked at."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in parts
    if origin is UnionType:
        return any(_is_of(value, each) for each in parts)
    if origin is Mapping and isinstance(value, Mapping):
        return all(_is_of(name, parts[0]) and _is_of(each, parts[1]) for name, each in value.items())
    if isinstance(value, bool) and hint in (int, float):
        return False
    return isinstance(value, (int, float) if hint is float else origin or hint)


def number_in(value: Any, what: str, low: int, high: int) -> int:
    """Return a value if it is a whole number within bounds."""
    number = _plain(value)
    if not _is_of(number, int):
        raise BrokenContractError(f"gave {kind_of(value)} as {what}, which must be int")
    if not low <= number <= high:
        raise BrokenContractError(f"gave {number} as {what}, which must be from {low} to {high}")
    return int(number)


def info_in(answer: Any, path: str | None = None) -> ObjectInfo:
    """Return the description of one object; `path` is the one that was asked for."""
    info: ObjectInfo = checked(answer, ObjectInfo)
    if not info.path:
        raise BrokenContractError("gave an empty path, which names no object")
    if path is not None and info.path.strip("/") != path.strip("/"):
        raise BrokenContractError(f"described {printable(info.path[:200])} when asked for {printable(path[:200])}")
    if info.size_bytes is not None:
        number_in(info.size_bytes, "size_bytes", 0, MAX_SIZE_BYTES)
    return info


def listing_in(answer: Any, folder: str, limits: Limits, uri: str) -> list[ObjectInfo]:
    """Return the objects directly in a folder, sorted."""
    listed: dict[str, ObjectInfo] = {}
    for info in map(info_in, _each(answer, limits, uri)):
        if not is_directly_in(folder, info.path):
            continue
        if info.path in listed:
            raise BrokenContractError(f"listed {quoted(info.path)} twice")
        listed[info.path] = info
    return sorted(listed.values(), key=lambda info: info.path)


def names_in(answer: Any, limits: Limits, uri: str) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    names = set(_each(answer, limits, uri))
    for name in names:
        if not isinstance(name, str) or "/" in name:
            raise BrokenContractError(f"listed {name!r:.200}, which is not the name of one folder")
    return sorted(names)


def _each(answer: Any, limits: Limits, uri: str) -> Iterator[Any]:
    """Yield the entries of a listing; refuse one that has too many, or is none."""
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise BrokenContractError(f"returned {kind_of(answer)}, not a list")
    count = ListingCount(limits, uri)
    for each in answer:
        count.add(1)
        yield each


def is_directly_in(folder: str, path: str) -> bool:
    """Return whether a listed path is an object directly in a folder, not the folder itself or in a sub-folder.

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


def digest_in(answer: Any, info: ObjectInfo) -> ObjectDigest | NoDigest:
    """Return the digest of an object."""
    digest: ObjectDigest | NoDigest = checked(answer, ObjectDigest, NoDigest)
    if isinstance(digest, NoDigest):
        return digest
    for part in digest.parts:
        checked(part, PartDigest)
    if doubt_of(digest, info.version) is None and not is_sound(digest, info.size_bytes):
        raise BrokenContractError(
            f"gave a digest by {quoted(digest.algorithm)} that is not sound: its algorithm is unknown, its parts do "
            f"not cover the {info.size_bytes} bytes of the object, or a value is not all its digits in lower case"
        )
    return digest


def source_in(answer: Any) -> Source:
    """Return the checked source of an object; its constructor has checked URL and headers already."""
    source: Source = checked(answer, HttpSource, FileSource, NfsSource, PythonSource)
    if isinstance(source, HttpSource):
        if not _URL.fullmatch(source.url):
            raise BrokenContractError("gave a url that is not http:// or https://, or has spaces that are not quoted")
        if own := _OF_THE_ENGINE & {name.lower() for name in source.headers}:
            raise BrokenContractError(f"gave a header {quoted(min(own))}, which the engine sets itself")
        whole_bytes = MAX_SIZE_BYTES if source.whole_bytes is None else source.whole_bytes
        number_in(whole_bytes, "whole_bytes", 1, MAX_SIZE_BYTES)
        number_in(source.offset_bytes, "offset_bytes", 0, whole_bytes if source.whole_bytes is not None else 0)
        if source.answer_checksum is not None:
            number_in(checked(source.answer_checksum, AnswerChecksum).max_bytes, "max_bytes", 1, MAX_SIZE_BYTES)
    elif isinstance(source, FileSource):
        if not source.path.startswith("/") or "\0" in source.path:
            raise BrokenContractError("gave a path that is relative, or holds a NUL")
    elif isinstance(source, PythonSource):
        if source.max_threads is not None:
            number_in(source.max_threads, "max_threads", 1, MOST_THREADS)
        if source.timeout_s is not None and not source.timeout_s > 0:
            raise BrokenContractError("gave a timeout_s that is no positive number of seconds")
    return source
