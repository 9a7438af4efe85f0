"""What each parser must do with any bytes, said in one sentence a target.

A target takes bytes and returns None, or raises: then the parser is wrong. They need no fuzzer, so the tests run them
over the corpus too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from safetensors import SafetensorError, deserialize

from fuzzing import answers
from streamer.core.errors import FormatError, ManifestError, ShardIndexError, TruncatedError
from streamer.core.format.header import LENGTH_BYTES, header_size_bytes, parse_header
from streamer.core.format.index import parse_index
from streamer.core.format.manifest import parse_manifest, render_manifest
from streamer.core.secrets.redact import redact
from streamer.plugins.registry import scheme_of

MAX_RANK = 64
SECRET = "CANARYsecret"


def header(data: bytes) -> None:
    """A header is parsed or refused with FormatError or TruncatedError; what we accept, safetensors accepts too."""
    try:
        size = header_size_bytes(data[:LENGTH_BYTES], len(data), uri="fuzz")
        found = parse_header(memoryview(data)[:size], len(data), uri="fuzz", max_rank=MAX_RANK)
    except (FormatError, TruncatedError):
        return
    try:
        reference = dict(deserialize(data))
    except SafetensorError as error:
        raise AssertionError(f"safetensors refuses what we accept: {error}") from error
    assert {entry.name for entry in found.entries} == set(reference)
    for entry in found.entries:
        assert bytes(reference[entry.name]["data"]) == data[entry.begin : entry.end]
        assert tuple(reference[entry.name]["shape"]) == tuple(entry.shape)


def index(data: bytes) -> None:
    """An index is refused with ShardIndexError, or none of its shards leads out of the folder."""
    try:
        found = parse_index(data, uri="fuzz")
    except ShardIndexError:
        return
    for shard in found.shards:
        path = posixpath.normpath(posixpath.join("/inside", shard))
        assert path.startswith("/inside/"), shard
        assert not any(mark in shard for mark in ("\\", "\0", "://", "%2e", "%2E")), shard


def manifest(data: bytes) -> None:
    """A manifest is refused with ManifestError, or is the same when it was written down and read again."""
    try:
        found = parse_manifest(data, uri="fuzz")
    except ManifestError:
        return
    assert parse_manifest(render_manifest(found), uri="fuzz") == found


def uri(data: bytes) -> None:
    """A URI has a lower-case scheme, and is redacted to text without the password or the signature in it."""
    text = data.decode("utf-8", "surrogateescape")
    scheme = scheme_of(text)
    assert scheme == scheme.lower()
    assert isinstance(redact(text), str)
    for secret in (f"s3://user:{SECRET}@host/{text}", f"https://host/path?X-Amz-Signature={SECRET}&{text}"):
        if "\n" not in text:
            assert SECRET not in redact(secret), secret


TARGETS: dict[str, Callable[[bytes], None]] = {
    "header": header,
    "index": index,
    "manifest": manifest,
    "uri": uri,
    **answers.TARGETS,
}
