"""What each parser must do with any bytes, said in one sentence a target.

A target takes bytes and returns None, or raises: then the parser is wrong. They need no fuzzer, so the tests run them
over the corpus too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from functools import partial

from safetensors import SafetensorError, deserialize

from fuzzing import answers
from streamer.core.encryption.keys import KeySource
from streamer.core.errors import EncryptionKeyError, FormatError, ManifestError, ShardIndexError, TruncatedError
from streamer.core.format.dtypes import byte_length
from streamer.core.format.header import LENGTH_BYTES, header_size_bytes, parse_header
from streamer.core.format.index import parse_index
from streamer.core.format.manifest import parse_manifest, render_manifest
from streamer.core.other_formats.dcp import METADATA, Dcp
from streamer.core.other_formats.gguf import Gguf
from streamer.core.other_formats.interface import BytesFile, CheckpointFile, CheckpointIndex, Format
from streamer.core.other_formats.npz import Npz
from streamer.core.other_formats.tensorizer import Tensorizer
from streamer.core.other_formats.torch_zip import TorchZip
from streamer.core.secrets.redact import redact
from streamer.core.store.names import scheme_of

MAX_RANK = 64
SECRET = "CANARYsecret"
MOST_FUZZED_BYTES = 1 << 20


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


def _format(
    parser: Format, read_index: Callable[[list[CheckpointFile]], CheckpointIndex] | None = None
) -> Callable[[bytes], None]:
    """A file is refused with one of three errors, or every tensor that fits in it is read or refused so.

    The errors are FormatError, TruncatedError, and EncryptionKeyError for an encrypted file.
    """

    def target(data: bytes) -> None:
        files: list[CheckpointFile] = [BytesFile(data, METADATA if isinstance(parser, Dcp) else "file")]
        if isinstance(parser, Dcp):
            files.append(BytesFile(b"", "__0_0.distcp"))
        try:
            for place in (read_index or parser.read_index)(files).tensors:
                reader, size_bytes = place.reader or place.file, byte_length(place.shape, place.dtype)
                if 0 < size_bytes <= min(MOST_FUZZED_BYTES, reader.size_bytes - place.begin):
                    reader.read_into(memoryview(bytearray(size_bytes)), place.begin)
        except (FormatError, TruncatedError, EncryptionKeyError):
            return

    return target


TARGETS: dict[str, Callable[[bytes], None]] = {
    "header": header,
    "index": index,
    "manifest": manifest,
    "uri": uri,
    "torch_zip": _format(TorchZip()),
    "gguf": _format(Gguf()),
    "npz": _format(Npz()),
    "dcp": _format(Dcp()),
    "tensorizer": _format(Tensorizer()),
    "encrypted_tensorizer": _format(
        Tensorizer(), partial(Tensorizer().read_encrypted_index, key=KeySource(bytes(range(32))))
    ),
    **answers.TARGETS,
}
