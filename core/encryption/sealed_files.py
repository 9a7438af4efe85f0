"""The format of an encrypted safetensors file, which docs/encryption.md describes: parameters, keys, and pieces.

Guarantees: the key of a file depends on every byte of its header, so a changed name, dtype, shape or offset makes all
of its tags wrong. Values that are read before the header is authenticated are used only after their bounds are checked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamer import _native
from streamer.core.encryption.keys import MOST_CONTEXT_CHARACTERS, MOST_KEY_ID_CHARACTERS, MOST_WRAPPED_BYTES, NewKey
from streamer.core.encryption.secret_keys import SecretKey
from streamer.core.errors import EncryptionKeyError, FormatError, TamperedError, UsageError
from streamer.core.format.header_entries import ENCRYPTION_METADATA, TensorEntry

TAGS_TENSOR, HEADER_TENSOR, PAYLOAD_TENSOR = "streamer.tags", "streamer.header", "streamer.tensors"
TAG_BYTES = 16
VERSION = 1
# A tag for each 256 KiB costs nothing to read or to check, and a few rows of a tensor need no more than 512 KiB.
PIECE_BYTES = 256 << 10
LEAST_PIECE_BYTES, MOST_PIECE_BYTES = (
    4 << 10,
    16 << 20,
)  # blocks hold whole pieces; the smallest default block has 4 MiB
MOST_SHARDS = 1_000_000
SALT_BYTES, CHECKPOINT_ID_BYTES = 32, 16
_SHARD_INFO, _TAGS_INFO = b"streamer-encryption-1 shard", b"streamer-encryption-1 tags"
_HINT = "Do not use it; get it again from where it was saved"
_OWN_TENSOR = re.compile(r"streamer\.(?:tags|header|tensors)-[0-9]{5,}-of-[0-9]{5,}")
_HEXADECIMAL = re.compile(r"[0-9a-f]*")


@dataclass(frozen=True)
class SealedParameters:
    """The parameters of the encryption, as the header of an encrypted file holds them."""

    key_id: str  # name of the key
    wrapped: bytes  # the key, encrypted by a key service; empty without one
    checkpoint: str  # random number of the checkpoint, the same in each of its files
    shard: int  # number of the file, from 1
    shards: int  # number of files of the checkpoint
    salt: bytes  # random bytes, different in each file
    piece_bytes: int = PIECE_BYTES  # size of a piece; a power of two
    hides_names: bool = False  # whether the header of the tensors is encrypted
    context: str = ""  # the name to which the checkpoint is bound; empty if it is bound to none

    def rendered(self) -> str:
        """Return the text for the metadata of the header."""
        values: dict[str, Any] = {
            "version": VERSION,
            "cipher": "AES-256-GCM",
            "key_id": self.key_id,
            "checkpoint": self.checkpoint,
            "shard": self.shard,
            "shards": self.shards,
            "salt": self.salt.hex(),
            "piece_bytes": self.piece_bytes,
            "hides_names": self.hides_names,
        }
        if self.wrapped:
            values["wrapped_key"] = base64.b64encode(self.wrapped).decode()
        if self.context:
            values["context"] = self.context
        return json.dumps(values, separators=(",", ":"))


def new_parameters(
    key: NewKey, shards: int, *, hides_names: bool, context: str | None = None
) -> list[SealedParameters]:
    """Make the parameters of the files of one checkpoint, each with a salt of its own."""
    checkpoint = secrets.token_hex(CHECKPOINT_ID_BYTES)
    first = SealedParameters(key.key_id, key.wrapped, checkpoint, 1, shards, b"", hides_names=hides_names)
    first = replace(first, context=context or "")
    return [replace(first, shard=number, salt=secrets.token_bytes(SALT_BYTES)) for number in range(1, shards + 1)]


def reserved_name(name: str) -> UsageError:
    """Return the error for a name of a tensor, or of the metadata, that belongs to the format of encrypted files."""
    hint = "Rename it: names with streamer. at their beginning are reserved"
    return UsageError(f"the name {name[:80]!r} belongs to the format of encrypted files", hint=hint)


def refuse_reserved(names: Iterable[str], metadata: Iterable[str]) -> None:
    """Refuse to save what readers would take for an encrypted file."""
    reserved = [name for name in names if _OWN_TENSOR.fullmatch(name)] + [
        key for key in metadata if key == ENCRYPTION_METADATA
    ]
    if reserved:
        raise reserved_name(reserved[0])


def parsed_parameters(metadata: Mapping[str, str] | None, uri: str) -> SealedParameters | None:
    """Read the parameters; None if the file is not encrypted."""
    text = (metadata or {}).get(ENCRYPTION_METADATA)
    if text is None:
        return None
    try:
        values = json.loads(text)
        if isinstance(values, dict) and values.get("version") != VERSION:
            what = f"the file is encrypted by version {str(values.get('version'))[:20]} of the format, not {VERSION}"
            raise FormatError(what, uri=uri, hint="Install a newer streamer")
        return _checked(values)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        what = "the parameters of the encryption in the header are malformed"
        raise FormatError(what, uri=uri, hint="It is damaged: upload or download it again") from error


def _checked(values: Any) -> SealedParameters:
    key_id, shard, shards, piece_bytes = (values[name] for name in ("key_id", "shard", "shards", "piece_bytes"))
    wrapped, context = base64.b64decode(values.get("wrapped_key", ""), validate=True), values.get("context", "")
    is_sound = (
        values["cipher"] == "AES-256-GCM"
        and isinstance(key_id, str)
        and len(key_id) <= MOST_KEY_ID_CHARACTERS
        and len(wrapped) <= MOST_WRAPPED_BYTES
        and all(type(each) is int for each in (shard, shards, piece_bytes))
        and 1 <= shard <= shards <= MOST_SHARDS
        and LEAST_PIECE_BYTES <= piece_bytes <= MOST_PIECE_BYTES
        and piece_bytes.bit_count() == 1
        and type(values["hides_names"]) is bool
        and isinstance(context, str)
        and len(context) <= MOST_CONTEXT_CHARACTERS
    )
    if not is_sound:
        raise ValueError("a value is out of its bounds")
    checkpoint, salt = _hexadecimal(values["checkpoint"], CHECKPOINT_ID_BYTES), _hexadecimal(values["salt"], SALT_BYTES)
    hides_names = values["hides_names"]
    return SealedParameters(key_id, wrapped, checkpoint.hex(), shard, shards, salt, piece_bytes, hides_names, context)


def _hexadecimal(text: Any, size_bytes: int) -> bytes:
    if len(text) != 2 * size_bytes or not _HEXADECIMAL.fullmatch(text):
        raise ValueError("wrong number of hexadecimal digits")
    return bytes.fromhex(text)


def refuse_encrypted(metadata: Mapping[str, str] | None, names: Iterable[str], uri: str) -> None:
    """Refuse an encrypted file if there is no key."""
    found = parsed_parameters(metadata, uri)
    if found is not None:
        how = "a key provider that unwraps it" if found.wrapped else "its bytes, the path of a file, or env:NAME"
        what = f"the checkpoint is encrypted with key {found.key_id!r}, and no key is given"
        raise EncryptionKeyError(what, uri=uri, hint=f"Give key=: {how}")
    if any(_OWN_TENSOR.fullmatch(name) for name in names):
        what = "the file is encrypted, but the parameters of its encryption were removed from its header"
        raise TamperedError(what, uri=uri, hint=_HINT)


def tensor_name(kind: str, shard: int, shards: int) -> str:
    """Return the name of a tensor that this format adds; the name differs in each file.

    Example:
        >>> tensor_name(TAGS_TENSOR, 1, 2)
        'streamer.tags-00001-of-00002'
    """
    return f"{kind}-{shard:05d}-of-{shards:05d}"


def cipher_of(key: SecretKey, parameters: SealedParameters, header: bytes) -> _native.PieceCipher:
    """Return the cipher of one file."""
    info = _SHARD_INFO + hashlib.sha256(header).digest()
    return _native.PieceCipher(key.derived(parameters.salt, info), parameters.piece_bytes)


def tags_digest(key: SecretKey, parameters: SealedParameters, header: bytes) -> hmac.HMAC:
    """Begin the digest of the tags of all pieces, whose first 16 bytes are tag 0; arguments as for `cipher_of`."""
    info = _TAGS_INFO + hashlib.sha256(header).digest()
    return hmac.new(key.derived(parameters.salt, info), digestmod=hashlib.sha256)


class SealedFile:
    """One encrypted file whose header was authenticated.

    Attributes:
        parameters: The parameters of the file.
        cipher: The cipher of the file.
        tags: The tags of its pieces, by number.
    """

    def __init__(
        self,
        parameters: SealedParameters,
        cipher: _native.PieceCipher,
        tags: bytes | memoryview,
        ranges: Iterable[tuple[int, int]],
    ) -> None:
        self.parameters, self.cipher, self.tags = parameters, cipher, tags
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._firsts: list[int] = []
        number = 1  # tag 0 does not belong to a piece
        for begin, end in ranges:
            if begin < end:
                self._begins.append(begin)
                self._ends.append(end)
                self._firsts.append(number)
                number += cipher.pieces_in(begin, end)
        self.piece_count = number

    def first_piece(self, begin: int, end: int) -> int | None:
        """Return the number of the first piece of a range; None if the range cuts a piece at its begin or end."""
        if begin == end:
            return 0
        index = bisect_right(self._begins, begin) - 1
        if index < 0 or end > self._ends[index]:
            return None
        first, last, size = self._begins[index], self._ends[index], self.parameters.piece_bytes
        if (begin != first and begin % size) or (end != last and end % size):
            return None
        return self._firsts[index] + begin // size - first // size

    def whole_pieces(self, begin: int, end: int) -> tuple[int, int]:
        """Widen a range of one tensor to whole pieces."""
        index = bisect_right(self._begins, begin) - 1
        size = self.parameters.piece_bytes
        return max(self._begins[index], begin // size * size), min(self._ends[index], -(-end // size) * size)

    def tensor_range(self, begin: int) -> tuple[int, int]:
        """Return the range of bytes of the tensor that holds this byte."""
        index = bisect_right(self._begins, begin) - 1
        return self._begins[index], self._ends[index]

    def decrypted(self, data: bytes | memoryview, begin: int, uri: str) -> bytes:
        """Decrypt a small tensor."""
        first = self.first_piece(begin, begin + len(data))
        assert first is not None
        count = self.cipher.pieces_in(begin, begin + len(data))
        tags = memoryview(self.tags)[first * TAG_BYTES : (first + count) * TAG_BYTES]
        plain = self.cipher.decrypt(data, begin, first, tags)
        if plain is None:
            raise TamperedError("the encrypted header of the tensors is not as it was saved", uri=uri, hint=_HINT)
        return plain


def sealed_file(
    key: SecretKey,
    parameters: SealedParameters,
    *,
    header: bytes,
    tags: bytes | memoryview,
    entries: Sequence[TensorEntry],
    uri: str,
) -> SealedFile:
    """Authenticate the header and the tags of a file."""
    digest = tags_digest(key, parameters, header)
    digest.update(tags[TAG_BYTES:])
    if not hmac.compare_digest(digest.digest()[:TAG_BYTES], bytes(tags[:TAG_BYTES])):
        what = "the header or the tags of the encrypted file are not as they were saved, or the key is another one"
        raise TamperedError(what, uri=uri, hint=_HINT)
    cipher = cipher_of(key, parameters, header)
    return SealedFile(parameters, cipher, tags, [(each.begin, each.end) for each in entries])
