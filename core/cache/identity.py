"""What an object is called in the cache, and which objects are never cached.

Guarantees: two objects have one name only if what decides their bytes is the same: URL with its query, endpoint, login
and headers, version and size. So what the cache holds is not stale. Refused are objects whose version does not name
their bytes: without one, or with one that is weak (`core/store/versions.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from streamer.core.engine.session import SourceObject
from streamer.core.store.sources import FileSource, HttpSource, PythonSource

__all__ = ["Identity", "identity_of", "why_not_cached"]


@dataclass(frozen=True)
class Identity:
    """What is cached.

    Attributes:
        uri: The URI, without secrets, to be shown.
        server: The server, as the store names it.
        version: The object's version, as the store describes it.
        size_bytes: Size of the object.
        object: The object's `SourceObject.identity`, salted with a secret of the cache, so that nobody can guess logins
            and queries by the name of a folder.
    """

    uri: str
    server: str
    version: str
    size_bytes: int
    object: str = ""

    @property
    def key(self) -> str:
        """The name of its folder.

        Example:
            >>> Identity("s3://b/k", "https://s3.example.com", '"1"', 4, "0a").key[:8]
            '24915fac'
        """
        text = json.dumps([self.server, self.version, self.size_bytes, self.object])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def identity_of(source_object: SourceObject, salt: bytes) -> Identity:
    """Return the identity of an object that is cached."""
    source = source_object.source
    host = urlsplit(source.url).netloc.rpartition("@")[2] if isinstance(source, HttpSource) else ""
    server = source_object.server or host
    version = source_object.stored_version or ""
    salted = hmac.new(salt, source_object.identity.encode(), "sha256").hexdigest()
    return Identity(source_object.uri, server, version, source_object.size_bytes, salted)


def why_not_cached(source_object: SourceObject) -> str | None:
    """Say why an object is not cached; "" if the reason need not be reported, None if the object is cached."""
    source, version = source_object.source, source_object.stored_version
    if isinstance(source, FileSource) or source_object.size_bytes == 0:
        return ""
    if isinstance(source, PythonSource):
        return "it is read through Python"
    if version is None:
        return "its storage gives no version"
    if not source_object.identity:
        return "its login is an object of this process, so another process cannot tell whether it is the same"
    # Under any other header, or none, the URL itself names the version, or holds a condition.
    headers = ("ETag", "Last-Modified")
    if isinstance(source, HttpSource) and source.version is None and source.version_header in headers:
        return "its storage gives no version with its address"
    if not source_object.is_settled:
        return "its server gives only a weak ETag, which other bytes may have, too"
    return None
