"""Removes every secret from a URL before it is shown; `streamer.core.secrets.texts` does so for texts of servers.

Only parts on an allow-list are kept: scheme, host, port, path, and the query keys of `KEPT_QUERY_KEYS`. User names,
passwords, signatures, tokens and fragments are dropped, in every part of a chained URL (``a::b``). If a URL is too
malformed to distinguish a host from a password, the doubtful part is dropped, too. A path without a scheme is returned
unchanged: it has no query, so ``?`` and ``#`` are part of its name. In the key of an object store, and in the path of
``file://``, ``#`` is part of the name, too.
"""

from __future__ import annotations

import re

KEPT_QUERY_KEYS = frozenset({"versionId"})  # it names the bytes that were read, and grants no access
CONTAINER_SCHEMES = frozenset({"abfs", "abfss", "wasb", "wasbs"})  # container@account: the container is no secret
# Schemes whose URLs have no fragments.
KEY_SCHEMES = CONTAINER_SCHEMES | {"az", "file", "gcs", "gs", "hf", "local", "s3", "s3a"}
DROPPED = "***"

_LINK = re.compile(r"::(?![^\[\]/@?#]*\])")  # not the `::` inside the brackets of an IPv6 host
_KEPT_VALUE = re.compile(r"[\w.+/=~%-]+", re.ASCII)  # a version id, without characters that could start a second query
_SUSPECT = re.compile(r"[@?#]")
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]+)?")
_DIGEST = re.compile(r"@sha(?:256:[0-9a-f]{64}|512:[0-9a-f]{128})(?![0-9a-f])")  # names an image, and is no host
_CONTAINER = re.compile(r"[A-Za-z0-9$-]{1,63}")


def redact(uri: str) -> str:
    """Return `uri` without its secrets, for messages.

    Example:
        >>> redact("simplecache::s3://AKID:SECRET@bucket/key?versionId=7&X-Amz-Signature=abc")
        'simplecache::s3://bucket/key?versionId=7'
        >>> redact("/models/what?.safetensors"), redact("s3://bucket/model#2"), redact("https://host/model#2")
        ('/models/what?.safetensors', 's3://bucket/model#2', 'https://host/model')
    """
    parts = _LINK.split(uri)
    if len(parts) == 1 and "://" not in uri:
        return uri
    shown: list[str] = []
    for part in parts:
        text, is_whole = _redact_part(part)
        if text == DROPPED:
            _drop_neighbours(shown)
        shown.append(text)
        if not is_whole:
            # The removed text may itself hold a `::`, so the parts after it may be secret, too.
            return "::".join(shown if text == DROPPED or len(shown) == len(parts) else [*shown, DROPPED])
    return "::".join(shown)


def _drop_neighbours(shown: list[str]) -> None:
    """Drop the parts back to the last URL: they may be the beginning of the secret that was just removed."""
    while shown and "://" not in shown[-1]:
        shown.pop()


def _redact_part(part: str) -> tuple[str, bool]:
    """Return the text that may be shown; and False if a secret may go on after the end of the part."""
    scheme, has_scheme, rest = part.partition("://")
    if not has_scheme:
        # The name of a protocol, a path, or the rest of a password with `::` in it.
        return (DROPPED, False) if _SUSPECT.search(part) else (part, True)
    path, query = _split_query(scheme.lower(), rest)
    kept = _kept_query(query)
    host_and_path = DROPPED if _is_ambiguous(path, rest) else _without_user(scheme, path)
    is_whole = rest == path + kept and DROPPED not in host_and_path
    return f"{scheme}://{host_and_path}{kept}", is_whole


def _is_ambiguous(path: str, rest: str) -> bool:
    """Say whether a password may end at more than one place: at several `@`, or after what looks like a query."""
    has_password = ":" in rest.partition("@")[0]
    return has_password and (rest.count("@") > 1 or ("@" in rest and "@" not in path))


def _split_query(scheme: str, text: str) -> tuple[str, str]:
    # A raw `?` or `#` inside a password ends the path early; the text after the `@` is then dropped, never shown.
    path, _, query = (text if _has_key(scheme, text) else text.partition("#")[0]).partition("?")
    return path, query


def _has_key(scheme: str, text: str) -> bool:
    """Say whether a bucket and a key follow a scheme, and certainly no user with a password."""
    bucket = text.partition("/")[0]
    user, has_user, host = bucket.rpartition("@")
    is_container = scheme in CONTAINER_SCHEMES and _CONTAINER.fullmatch(user) is not None
    return scheme in KEY_SCHEMES and (not has_user or is_container) and not {*":#?"} & {*host}


def _kept_query(query: str) -> str:
    pairs = (pair.partition("=") for pair in query.split("&"))
    kept = [f"{key}={value}" for key, _, value in pairs if key in KEPT_QUERY_KEYS and _KEPT_VALUE.fullmatch(value)]
    return "?" + "&".join(kept) if kept else ""


def _without_user(scheme: str, rest: str) -> str:
    authority, slash, path = rest.partition("/")
    user, has_user, host = authority.rpartition("@")
    if has_user:
        keeps_container = scheme.lower() in CONTAINER_SCHEMES and _CONTAINER.fullmatch(user)
        return f"{user}@{host}{slash}{path}" if keeps_container else f"{host}{slash}{path}"
    if ":" not in authority or authority.startswith("arn:"):
        return rest
    if "@" in _DIGEST.sub("", path):  # a password with a `/` in it, as AWS secrets have
        return path.rpartition("@")[2]
    return rest if _HOST_AND_PORT.fullmatch(authority) else DROPPED
