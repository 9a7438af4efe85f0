"""Names of objects, and their paths in a store: a path that is a URL holds names percent-encoded."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from streamer.core.errors import UsageError
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import KEY_SCHEMES

# Google refuses line ends; Azure and its clients take a backslash for a slash.
_REFUSED = {**dict.fromkeys(("gs", "gcs"), "\r\n"), **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), "\\")}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)(?:://|::)")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_KEYS_ARE_TEXT = frozenset({"s3", "s3a", *_REFUSED})


def check_can_hold(scheme: str, name: str, uri: str) -> None:
    """Check that a storage can hold an object of this name, before anything is sent."""
    wrong = next((each for each in name if each in _REFUSED.get(scheme, "")), None)
    if wrong is None and scheme in _KEYS_ARE_TEXT:
        wrong = next((each for each in name if "\ud800" <= each <= "\udfff"), None)
    if wrong is not None:
        what = f"this storage can hold no name with {wrong!a}: {quoted(name)}"
        raise UsageError(what, uri=uri, hint="Rename the file, or leave it out")


def scheme_of(uri: str) -> str:
    """Return the lower-case scheme of a URL; ``"file"`` for a path, the first protocol of a chained URL.

    A URL with one slash (``models:/name``) is one if a plug-in serves its scheme; ``./models:/name`` is a path.

    Example:
        >>> [scheme_of(uri) for uri in ("S3://b/k", "simplecache::s3://b/k", "/models", "file:///models")]
        ['s3', 'simplecache', 'file', 'file']
    """
    match = _SCHEME.match(uri)
    if match is None:
        match = _ONE_SLASH.match(uri)
        return match[1].lower() if match and _is_of_plugin(match[1].lower()) else "file"
    scheme = match[1].lower()
    return "file" if scheme == "local" else scheme


@lru_cache
def _is_of_plugin(scheme: str) -> bool:
    """Say whether another distribution serves a scheme."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (takes 15 ms)

    points = entry_points(group="streamer.backends", name=scheme)
    return any(not point.value.startswith("streamer.") for point in points)


def is_url(path: str) -> bool:
    """Say whether a store's own path is a URL, as those of web servers are."""
    return "://" in path


def whole_name(uri: str, path: str) -> str:
    """Return the URI of an object with its whole name; in messages, a URI ends where a query may begin.

    Example:
        >>> whole_name("s3://bucket/what", "bucket/what?.json"), whole_name("https://host/get", "https://host/get")
        ('s3://bucket/what?.json', 'https://host/get')
    """
    _, mark, rest = path.partition("?")
    has_more = mark and scheme_of(uri) in KEY_SCHEMES
    return uri.partition("?")[0] + mark + rest if has_more else uri


def name_in(path: str) -> str:
    """Return the name of the object at a path.

    Example:
        >>> name_in("https://host/m/100%25.json?signature=1"), name_in("bucket/m/100%25.json")
        ('100%.json', '100%25.json')
    """
    if not is_url(path):
        return path.rpartition("/")[2]
    return unquoted(path.partition("?")[0].rpartition("/")[2])


def unquoted(text: str) -> str:
    """Decode percent codes; a byte that is not UTF-8 becomes a lone surrogate, as in `streamer.core.folders.paths`."""
    return unquote(text, errors="surrogateescape")


def path_in(folder: str, name: str) -> str:
    """Return the path of an object.

    Example:
        >>> path_in("https://host/m", "%2e%2e/a#b"), path_in("bucket/m", "a#b")
        ('https://host/m/%252e%252e/a%23b', 'bucket/m/a#b')
    """
    if not folder:
        return name
    return f"{folder}/{quote(name, errors='surrogateescape') if is_url(folder) else name}"
