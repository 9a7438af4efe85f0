"""Values in a server's answers, parsed, checked, or quoted in a message: documents, names, sizes, encodings. Pure.

Guarantees: whatever bytes a server sends, the result is a value of the expected kind, or a `StorageError` that blames
the server. Names are text that can be sent back; words (codes, request ids) hold only characters that any terminal and
log can show. A quote is one short printable line. A server may repeat the request: a run of characters as long as a
key, token or signature is replaced by ``***``.

Some values of ``Content-Encoding`` leave the bytes unchanged; native/http/range_response.cc has the same list. If a
body is framed or compressed despite such a value, its size, its header or its checksum is wrong, and it is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sized
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NoReturn

from streamer.core.errors import ObjectNotFoundError, StorageError, TruncatedError
from streamer.core.quoting import quoted
from streamer.core.store.sources import MAX_SIZE_BYTES

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MOST_CHARACTERS = 4096  # S3, Google and Azure allow 1024; the Hub's limit is that of Git
CHECK_SERVER = "Check the endpoint, and the proxy on the way to it"
FOREIGN = "A proxy or a login page may have answered in the server's place"

_NUMBER = re.compile(r"[0-9]{1,19}")  # Python itself may refuse to parse longer numbers
_CODE = re.compile(rb'(?:<Code>\s*|"reason"\s*:\s*")([A-Za-z0-9.]{1,64})\s*[<"]')
_WORD = re.compile(r"[\w.:;=/-]{1,128}", re.ASCII)  # "Root=1-68a;2f4" is an id of the Hub

# ``aws-chunked`` is the framing of an upload. Some S3 servers remove the framing, but store the name with the object.
_PLAIN = frozenset({"", "aws-chunked", "identity"})

LOOKED_AT_BYTES = 4096
TAIL_BYTES = 4096  # the end of a document's root, perhaps before a comment
SHOWN_CHARACTERS = 60
SHORTEST_SECRET = 16  # as in native/http/secrets.h

# A `Date` is some seconds old when it is read, or older after a slow network. A smaller difference does no harm: S3
# tolerates 15 minutes, and our URLs are valid for 10.
TOLERANCE_S = 60.0

# The clock of a machine without a battery starts in 1970. A larger difference is no valid time, and may overflow.
MOST_S = 100 * 365.25 * 86400

_MAY_BE_SECRET = re.compile(rf"[\w+/=.~%:-]{{{SHORTEST_SECRET},}}", re.ASCII)
_BLANKS = re.compile(r"\s+")
_PAGE = re.compile(rb"(?:<\?xml[^>]*>)?\s*<(?:!|html)", re.IGNORECASE)
_DECLARES = re.compile(r"<!(?:DOCTYPE|ENTITY)")
_ROOT = re.compile(rb"(?:<\?xml[^>]*\?>)?\s*<([A-Za-z][\w.:-]*)[^>]*?(/?)>")


def parse_document(body: bytes) -> Any | None:
    """Parse a JSON document; None if it is malformed, holds infinite numbers or is nested a thousand times.

    Example:
        >>> [parse_document(body) for body in (b'{"a": 1}', b"[Infinity]", b"[" * 100_000)]
        [{'a': 1}, None, None]
    """
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def parse_name(value: object, uri: str) -> str:
    """Return the name of a listed object."""
    if not isinstance(value, str) or not value or not _has_whole_characters(value):
        raise StorageError("The server lists an object whose name is not text", uri=uri, hint=CHECK_SERVER)
    if len(value) > MOST_CHARACTERS:
        what = f"The server lists an object whose name has {len(value)} characters"
        raise StorageError(what, uri=uri, hint=CHECK_SERVER)
    return value


def folder_in_bucket(path: str) -> tuple[str, str]:
    """Divide the path of a folder into its bucket, and how the names of its objects begin.

    Example:
        >>> [folder_in_bucket(path) for path in ("b", "b/m", "b/m/", "b/")]
        [('b', ''), ('b', 'm/'), ('b', 'm//'), ('b', '/')]
    """
    bucket, slash, folder = path.partition("/")
    return bucket, folder + slash


def is_directly_in(folder: str, name: str, uri: str) -> bool:
    """Say whether a listed object is a file directly in a folder: not in a sub-folder, and not the folder itself."""
    if not name.startswith(folder):
        raise StorageError("The server lists objects that are not in the folder", uri=uri, hint=CHECK_SERVER)
    return len(name) > len(folder) and "/" not in name[len(folder) :]


def refuse_version_of_folder(entries: Sized, version: object, uri: str, hint: str) -> None:
    """Refuse a pinned version if the URL names a folder."""
    if version and len(entries):
        raise ObjectNotFoundError("This is a folder, and the URL pins the version of one object", uri=uri, hint=hint)


def parse_size(value: object, uri: str) -> int:
    """Return the size of an object.

    Example:
        >>> parse_size("12", uri="s3://bucket/key")
        12
    """
    size_bytes = -1
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        size_bytes = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        size_bytes = value
    if 0 <= size_bytes <= MAX_SIZE_BYTES:
        return size_bytes
    raise StorageError("The server reports a size that no file can have", uri=uri, hint=CHECK_SERVER)


def parse_word(value: object) -> str | None:
    r"""Return a word, such as an error code or a request id; None for anything else.

    Example:
        >>> [parse_word(value) for value in ("tx0000-1", "Root=1-68a;2f4", "a b", "caf\xe9", 1)]
        ['tx0000-1', 'Root=1-68a;2f4', None, None, None]
    """
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def code_in(body: bytes) -> str | None:
    """Return the code of an error document: ``<Code>`` of S3 and Azure, ``reason`` of Google's JSON; None without one.

    Example:
        >>> [code_in(body) for body in (b"<Error><Code>SlowDown</Code></Error>", b'{"reason": "backendError"}', b"")]
        ['SlowDown', 'backendError', None]
    """
    found = _CODE.search(body[:LOOKED_AT_BYTES])
    return found[1].decode() if found else None


def parse_xml(document: bytes, name: str) -> Element | None:
    """Return the root of a document; None for another root, and for a document with entities or a type of its own."""
    from xml.etree.ElementTree import ParseError, fromstring  # noqa: PLC0415 (one object needs no document)

    try:
        text = document.decode("utf-8-sig")
        root = None if _DECLARES.search(text) else fromstring(text)  # noqa: S314 (entities are XML's own)
    except (ParseError, UnicodeDecodeError):
        return None
    return None if root is None or element_name(root) != name else root


def element_name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _has_whole_characters(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def is_plain(headers: Mapping[str, str]) -> bool:
    """Say whether the body of an answer is sent without compression.

    Example:
        >>> [is_plain({"Content-Encoding": value}) for value in ("AWS-Chunked", "identity, aws-chunked", "gzip")]
        [True, True, False]
    """
    values = ",".join(value for name, value in headers.items() if name.lower() == "content-encoding")
    return all(token.strip().lower() in _PLAIN for token in values.split(","))


def described(headers: Mapping[str, str]) -> str:
    """Describe an answer by its type, length and version, for the error that it is not what was asked for.

    Example:
        >>> described({"content-type": "text/html; charset=utf-8", "content-length": "87"})
        'text/html of 87 bytes, without a version'
    """
    kind, length = headers.get("content-type", "").partition(";")[0].strip(), headers.get("content-length", "")
    size = f"of {length} bytes" if length.isascii() and length.isdigit() else "without a length"
    version = "with" if headers.get("etag") or headers.get("last-modified") else "without"
    return f"{parse_word(kind) or 'something without a type'} {size}, {version} a version"


def is_text(kind: str) -> bool:
    """Say whether a Content-Type is that of a page or a document, and not of weights.

    Example:
        >>> [is_text(kind) for kind in ("text/html; charset=utf-8", "application/json", "application/octet-stream")]
        [True, True, False]
    """
    stated = kind.partition(";")[0].strip().lower()
    return stated.startswith("text/") or stated.endswith(("html", "json", "xml"))


def refuse_cut(body: bytes) -> None:
    """Refuse a document of JSON or XML that ends before its end: a listing would lack names without a remark."""
    text = body.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in (b"{", b"["):
        is_whole = parse_document(body) is not None
    elif text[:1] == b"<" and not _PAGE.match(text):
        root = _ROOT.match(text)
        is_whole = root is not None and bool(
            root[2] or re.search(rb"</%b\s*>" % re.escape(root[1]), text[-TAIL_BYTES:])
        )
    else:
        return
    if not is_whole:
        hint = "Load again; if that fails, check the server and the proxy on the way to it"
        raise TruncatedError("The server's answer to a request about objects breaks off before its end", hint=hint)


def quoted_start(body: bytes) -> str:
    """Quote the first words of a body.

    Example:
        >>> print(quoted_start(b"220 mail ESMTP"), quoted_start(b"<p>token: hf_aBcDeFgHiJkLmNoP</p>"))
        '220 mail ESMTP' '<p>token: ***</p>'
    """
    text = body[:LOOKED_AT_BYTES].decode(errors="replace").lstrip("\ufeff")
    if len(body) > LOOKED_AT_BYTES:  # the cut may leave a part of a secret that is too short to be recognised
        text = text[:-SHORTEST_SECRET]
    shown = _MAY_BE_SECRET.sub("***", _BLANKS.sub(" ", text).strip())
    return quoted(shown[:SHOWN_CHARACTERS]) + ("…" if len(shown) > SHOWN_CHARACTERS else "")


def clock_offset_s(date: str | None, now_s: float) -> float | None:
    """Return how many seconds the server's clock is ahead of this machine's: 0 if too few to matter, None if unknown.

    Example:
        >>> clock_offset_s("Thu, 01 Jan 1970 01:00:00 GMT", 0.0)
        3600.0
    """
    try:
        server_time = parsedate_to_datetime(date or "")
        if server_time.tzinfo is None:  # "-0000" means an unknown time zone
            return None
        offset_s = server_time.timestamp() - now_s
    except (OverflowError, TypeError, ValueError):
        return None
    if abs(offset_s) > MOST_S:
        return None
    return offset_s if abs(offset_s) > TOLERANCE_S else 0.0
