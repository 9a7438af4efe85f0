"""What decides the bytes of an object beside its version: loads share, cache and compare objects by this alone.

An identity is a digest of the exact URL with its query, the object behind redirects, the endpoint, the login and
headers of the requests, and the proxy of requests without TLS. It is the same in another process and after a renewal:
the parts of a signature that differ from one signing to the next are left out. It is empty if nothing of that kind
identifies the object; such an object is neither shared nor cached. An identity is made of secrets, so whoever shows it
to others salts it first.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

from streamer.core.store.sources import HttpSource, IdentifyingStore, ObjectInfo, Source, Store

SALT_BYTES = 8
ROUNDS = 10_000  # some milliseconds, once for a load or a pull

# Query parameters that differ between two signatures of one object: by the parameters that every such signature has.
# https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
# https://cloud.google.com/storage/docs/authentication/signatures
# https://learn.microsoft.com/rest/api/storageservices/create-service-sas
# https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/private-content-signed-urls.html
_OF_SIGNATURES: dict[tuple[str, ...], set[str]] = {
    **{
        (f"x-{cloud}-date", f"x-{cloud}-signature"): {
            f"x-{cloud}-{name}"
            for name in ("algorithm", "credential", "date", "expires", "security-token", "signature", "signedheaders")
        }
        for cloud in ("amz", "goog")
    },
    ("awsaccesskeyid", "expires", "signature"): {"awsaccesskeyid", "expires", "signature", "x-amz-security-token"},
    ("expires", "googleaccessid", "signature"): {"expires", "googleaccessid", "signature"},
    ("key-pair-id", "signature"): {"expires", "key-pair-id", "policy", "signature"},
    ("sig", "sv"): {
        *("jwt", "se", "sig", "sip", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp", "spr", "sr", "st", "sv")
    },
}


def digest_of(*parts: Any) -> str:
    """Return a digest of plain values, the same in every process; empty if a part is no plain value.

    Example:
        >>> digest_of({"key": "a", "secret": "b"}) == digest_of({"secret": "b", "key": "a"})
        True
        >>> digest_of(object())
        ''
    """
    try:
        text = json.dumps([_plain(each) for each in parts], sort_keys=True, default=_text_of)
    except (TypeError, ValueError, RecursionError):
        return ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def stable_url(url: str) -> str:
    """Return a URL without what differs from one signature to the next; whatever else is in its query is kept.

    Example:
        >>> stable_url("https://host/get?file=a&X-Amz-Date=1&X-Amz-Signature=2"), stable_url("https://host/get?sv=a")
        ('https://host/get?file=a', 'https://host/get?sv=a')
    """
    address, mark, query = url.partition("?")
    pairs = [(unquote_plus(each.partition("=")[0]).lower(), each) for each in query.split("&")]
    names = {name for name, _ in pairs}
    dropped = set().union(*(each for marks, each in _OF_SIGNATURES.items() if names.issuperset(marks)))
    return address + mark + "&".join(each for name, each in pairs if name not in dropped) if dropped else url


def identity_of(store: Store, info: ObjectInfo, source: Source | None = None) -> str:
    """Return the identity of an object that a store has described.

    A store that does not name identities is taken at its word: the URL and options that it was opened with, its path of
    the object, and the address of the source.
    """
    if isinstance(store, IdentifyingStore):
        return store.identity(info)
    origin = getattr(store, "origin", "file")  # local files are not wrapped
    address = (stable_url(source.url), source.headers) if isinstance(source, HttpSource) else ()
    return digest_of(origin, info.path, *address) if origin else ""


@lru_cache(maxsize=16)
def seal_of(identity: str, salt: str = "") -> str:
    """Return a salted digest of an identity, for a file or a name that others can read: a guess takes milliseconds.

    Example:
        >>> is_sealed("a", seal_of("a")), is_sealed("a", seal_of("b")), is_sealed("", seal_of(""))
        (True, False, False)
    """
    salt = salt or os.urandom(SALT_BYTES).hex()
    return f"{salt}-{hashlib.pbkdf2_hmac('sha256', identity.encode(), salt.encode(), ROUNDS).hex()}"


def is_sealed(identity: str, seal: str) -> bool:
    """Say whether a seal was made of this identity; of an unknown one, none was."""
    return identity != "" and seal == seal_of(identity, seal.partition("-")[0])


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _text_of(value: Any) -> str:
    if isinstance(value, (bytes, os.PathLike)):
        return repr(os.fsdecode(value))
    raise TypeError
