"""The manifest of a checkpoint: for each tensor of each shard its dtype, shape, size, CRC32C and SHA-256, as JSON.

Guarantees: an accepted document has one meaning. A manifest fits a checkpoint only if every loaded shard has the size
and exactly the tensors that the manifest names. Refuses with ManifestError, before any weight byte is read.
A CRC32C finds accidents. A SHA-256, which is there if it was asked for, also finds attackers who can change what a load
gets, and not the manifest. It is that of pieces (native/integrity/piece_hash.h), which depend on the tensor's place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from streamer.core.errors import ManifestError
from streamer.core.format import strict_json
from streamer.core.format.header_entries import TensorEntry
from streamer.core.quoting import quoted

FORMAT = "streamer.manifest"
VERSION = 1
ALGORITHM, HASH = "crc32c", "sha256"
MAX_MANIFEST_BYTES = 1 << 30  # ten million tensors; a larger file is no manifest, and would fill the memory

_HASH_KEY = "sha256_of_pieces"
_OF_EMPTY = (None, hashlib.sha256().digest())  # the SHA-256 of an empty tensor, or none
_VALUE, _HASH_VALUE = re.compile(r"[0-9a-f]{8}"), re.compile(r"[0-9a-f]{64}")
_HINT = "Write it anew: python -m streamer manifest URI"


@dataclass(frozen=True)
class TensorDigest:
    """One tensor: its dtype, shape and size in the header, and the digests of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    crc32c: int
    sha256: bytes | None = None  # of the SHA-256 of each piece
    begin: int | None = None  # offset of the first byte in the file, if there is a SHA-256


@dataclass(frozen=True)
class ShardManifest:
    """One shard: the size of its file, and its tensors by name."""

    size_bytes: int
    tensors: Mapping[str, TensorDigest]


@dataclass(frozen=True)
class Manifest:
    """A checkpoint."""

    shards: Mapping[str, ShardManifest]  # the shards by file name
    # The shards of the older checkpoint, which exists until this checkpoint is complete
    older: Mapping[str, ShardManifest] = field(default_factory=dict)

    def of(self, names: Collection[str]) -> Manifest:
        """Return the manifest of the checkpoint, this or the older one, that has these shards."""
        is_older = not self.shards.keys() & names and bool(self.older.keys() & names)
        return Manifest(self.older if is_older else self.shards)


def render_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as text that `parse_manifest` reads.

    Example:
        >>> parse_manifest(render_manifest(Manifest({})), uri="m").shards
        {}
    """
    shards = ",\n".join(_shard_text(name, shard) for name, shard in manifest.shards.items())
    older = ",\n".join(_shard_text(name, shard) for name, shard in manifest.older.items())
    older = f', "older": {{\n{older}}}' if older else ""
    head = json.dumps({"format": FORMAT, "version": VERSION, "algorithm": ALGORITHM})
    return f'{head[:-1]}, "shards": {{\n{shards}}}{older}}}\n'.encode()


def _shard_text(name: str, shard: ShardManifest) -> str:
    """Return the text of a shard, with one line for each tensor, so that `diff` shows which tensors differ."""
    tensors = ",\n".join(f"{json.dumps(tensor)}: {_tensor_text(each)}" for tensor, each in shard.tensors.items())
    return f'{json.dumps(name)}: {{"size_bytes": {shard.size_bytes}, "tensors": {{\n{tensors}}}}}'


def _tensor_text(digest: TensorDigest) -> str:
    crc = {ALGORITHM: f"{digest.crc32c:08x}"}
    hashed = {"begin": digest.begin, _HASH_KEY: digest.sha256.hex()} if digest.sha256 else {}
    return json.dumps({"dtype": digest.dtype, "shape": digest.shape, "bytes": digest.size_bytes} | crc | hashed)


def parse_manifest(data: bytes, *, uri: str) -> Manifest:
    """Read a manifest."""
    try:
        document = strict_json.loads(strict_json.decode_utf8(data))
    except ValueError as error:
        raise ManifestError(f"the manifest is no JSON: {error}", uri=uri, hint=_HINT) from error
    try:
        if document["format"] != FORMAT or document["version"] != VERSION or document["algorithm"] != ALGORITHM:
            _refuse(
                f"it is {quoted(document['format'])} version {quoted(document['version'])} with"
                f" {quoted(document['algorithm'])}, not {FORMAT!r} version {VERSION} with {ALGORITHM!r}",
                uri,
            )
        shards, older = document["shards"], document.get("older", {})
        return Manifest(
            {name: _shard(shard) for name, shard in shards.items()},
            {name: _shard(shard) for name, shard in older.items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ManifestError("the manifest is malformed", uri=uri, hint=_HINT) from error


def check_shard(name: str, size_bytes: int, entries: Sequence[TensorEntry], manifest: Manifest, *, uri: str) -> None:
    """Compare a shard's header with the manifest."""
    shard = manifest.shards.get(name)
    if shard is None:
        _refuse(f"it has no shard {quoted(name)}", uri)
    names = {entry.name for entry in entries}
    for tensor in shard.tensors:
        if tensor not in names:
            _refuse(f"shard {quoted(name)} lacks its tensor {quoted(tensor)}", uri)
    for entry in entries:
        _check_tensor(entry, shard.tensors.get(entry.name), name, uri)
    if size_bytes != shard.size_bytes:
        _refuse(f"shard {quoted(name)} has {size_bytes} bytes, in the manifest {shard.size_bytes}", uri)


def _check_tensor(entry: TensorEntry, digest: TensorDigest | None, shard: str, uri: str) -> None:
    begin = entry.begin if digest is not None and digest.sha256 else None
    actual = (entry.dtype, tuple(entry.shape), entry.end - entry.begin, begin)
    expected = (digest.dtype, digest.shape, digest.size_bytes, digest.begin) if digest else None
    is_wrong = digest is not None and digest.size_bytes == 0 and (digest.crc32c or digest.sha256 not in _OF_EMPTY)
    if digest is not None and actual == expected and not is_wrong:
        return
    tensor = f"tensor {quoted(entry.name)} of shard {quoted(shard)}"
    if digest is None or expected is None:
        _refuse(f"{tensor} is not in it", uri)
    names = ("dtype", "shape", "size in bytes", "first byte")
    for what, is_now, was in zip(names, actual, expected, strict=True):
        if is_now != was:
            _refuse(f"{tensor} has {what} {is_now}, in the manifest {was}", uri)
    _refuse(f"{tensor} is empty, and its digests are not", uri)


def _shard(document: Any) -> ShardManifest:
    tensors = {name: _tensor(tensor) for name, tensor in document["tensors"].items()}
    return ShardManifest(_whole(document["size_bytes"]), tensors)


def _tensor(document: Any) -> TensorDigest:
    dtype, hashed, begin = document["dtype"], None, None
    if not isinstance(dtype, str):
        raise ValueError
    if _HASH_KEY in document:
        hashed, begin = bytes.fromhex(_digits(document[_HASH_KEY], _HASH_VALUE)), _whole(document["begin"])
    shape, size_bytes = tuple(map(_whole, document["shape"])), _whole(document["bytes"])
    return TensorDigest(dtype, shape, size_bytes, int(_digits(document[ALGORITHM], _VALUE), 16), hashed, begin)


def _digits(value: object, form: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def _refuse(why: str, uri: str) -> NoReturn:
    raise ManifestError(f"the manifest does not fit: {why}", uri=uri, hint=_HINT)
