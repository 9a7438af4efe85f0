"""The header in front of each tensor of Tensorizer's files: what it repeats of the index, hashes, and its encryption.

Guarantees: a header that is returned fills its bytes exactly, and its chunks cover the data of its tensor. It is pure,
and nothing in it is authenticated yet. Refuses with FormatError: any other bytes, unknown ciphers and hashes, chunks
that are too large to be decrypted as a whole, and derivations of a key that take gigabytes or minutes.

Format: https://github.com/coreweave/tensorizer
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import Any, NamedTuple

from streamer.core.errors import FormatError

CRC32, SHA256 = 0, 1  # kinds of a hash
HASH_BYTES = {CRC32: 4, SHA256: 32}
NONCE_BYTES, MAC_BYTES, SALT_BYTES = 24, 16, 16
LEAST_CHUNK_BYTES, CHUNK_STEP_BYTES = 1024, 64  # as Tensorizer requires
MOST_CHUNK_BYTES = 64 << 20  # Tensorizer writes 2 MiB; a chunk is decrypted as a whole, by each of several threads
ARGON2ID13 = 2
# Argon2 as a file demands it runs before the file is known to be ours. The largest preset of Tensorizer is 1 GiB, 4.
MOST_DERIVATION_BYTES, MOST_DERIVATION_PASSES = 2 << 30, 16
_KEY_DERIVATION, _PARALLEL, _SEQUENTIAL = 1, 2, 3  # kinds of an entry of the encryption
_PASSWORD_HASH = 1  # kind of a derivation
_DERIVATION = Struct("<HQQiH")  # kind, passes, bytes of memory, algorithm, bytes of the salt
_CHUNKS = Struct(f"<Q{NONCE_BYTES}sQ")  # bytes of a chunk, first nonce, number of MACs


class Derivation(NamedTuple):
    """How a key was derived from a passphrase with Argon2id."""

    passes: int  # its cost in time
    memory_bytes: int  # its cost in memory
    salt: bytes


class SealedChunks(NamedTuple):
    """The chunks of an encrypted tensor; each has a nonce and a MAC of its own."""

    chunk_bytes: int  # size of each but the last
    nonce: bytes  # of the first; each next chunk has the next number, the lowest byte first
    macs: bytes  # all MACs, one after the other

    def nonce_of(self, number: int) -> bytes:
        """Return the nonce of a chunk, counted from 0."""
        value = (int.from_bytes(self.nonce, "little") + number) % (1 << 8 * NONCE_BYTES)
        return value.to_bytes(NONCE_BYTES, "little")

    def mac_of(self, number: int) -> bytes:
        """Return the MAC of a chunk, counted from 0."""
        return self.macs[number * MAC_BYTES : (number + 1) * MAC_BYTES]


class TensorHeader(NamedTuple):
    """One header."""

    name: bytes  # as it is stored
    dtype: bytes  # as it is stored
    shape: tuple[int, ...]  # dimensions
    data_bytes: int  # size of the data
    # Kind and value of each hash of `hashed` followed by the data before encryption
    hashes: Sequence[tuple[int, bytes]]
    hashed: bytes  # the header with zeros in place of hashes, and without its encryption
    chunks: SealedChunks | None  # the encryption of the data; None if the data is not encrypted
    derivation: Derivation | None  # how the key was derived; None unless from a passphrase


def parsed_header(data: bytes, *, is_long: bool) -> TensorHeader:
    """Parse the header of a tensor in an encrypted file."""
    try:
        return _parsed(_Fields(data), is_long=is_long)
    except (error, IndexError) as cause:
        raise FormatError("the header of a tensor is malformed") from cause


class _Fields:
    """Bytes that are read field by field."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def numbers(self, packed: Struct | str) -> tuple[Any, ...]:
        packed = Struct(packed) if isinstance(packed, str) else packed
        self.at += packed.size
        return packed.unpack_from(self.data, self.at - packed.size)

    def take(self, length: int) -> bytes:
        self.at += length
        if self.at > len(self.data):
            raise FormatError("the header of a tensor ends inside of a field")
        return self.data[self.at - length : self.at]

    def sized(self, length_format: str) -> bytes:
        return self.take(self.numbers(length_format)[0])

    def check_end(self) -> None:
        if self.at != len(self.data):
            raise FormatError("the header of a tensor has bytes that belong to nothing")


def _parsed(fields: _Fields, *, is_long: bool) -> TensorHeader:
    if fields.numbers("<Q")[0] != len(fields.data):
        raise FormatError("the header of a tensor has another length than the index says")
    fields.numbers("<HB")  # number of its module, and whether it is a parameter
    name, dtype = fields.sized("<H"), fields.sized("<B")
    dimensions = fields.numbers("<B")[0]
    shape = fields.numbers(f"<{dimensions}{'Q' if is_long else 'I'}")
    hashes, zeroed = _hashes(fields.sized("<H"))
    before = fields.data[: fields.at - len(zeroed)] + zeroed
    chunks, derivation = _encryption(_Fields(fields.sized("<Q")))
    behind = fields.data[fields.at :]
    data_bytes = fields.numbers("<q")[0]
    fields.check_end()
    if chunks is not None:
        chunks = _checked_chunks(chunks, data_bytes)
    return TensorHeader(name, dtype, shape, data_bytes, hashes, before + behind, chunks, derivation)


def _hashes(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return the hashes of a block, and the block with zeros in their place."""
    fields, zeroed, found = _Fields(data), bytearray(data), []
    for _ in range(fields.numbers("<B")[0]):
        kind, length = fields.numbers("<BB")
        if HASH_BYTES.get(kind) != length:
            raise FormatError(f"a tensor has a hash of an unknown kind {kind}, or of a wrong size")
        zeroed[fields.at : fields.at + length] = bytes(length)
        found.append((kind, fields.take(length)))
    fields.check_end()
    return found, bytes(zeroed)


def _encryption(fields: _Fields) -> tuple[SealedChunks | None, Derivation | None]:
    chunks: SealedChunks | None = None
    derivation: Derivation | None = None
    for _ in range(fields.numbers("<H")[0]):
        entry = _Fields(fields.sized("<Q"))
        kind = entry.numbers("<H")[0]
        if kind == _KEY_DERIVATION and derivation is None:
            derivation = _derivation(entry)
        elif kind in (_PARALLEL, _SEQUENTIAL) and chunks is None:
            chunks = _parallel(entry) if kind == _PARALLEL else SealedChunks(0, entry.take(NONCE_BYTES), entry.take(16))
        else:
            raise FormatError(f"a tensor is encrypted in a way that is unknown (kind {kind}), or in two ways")
        entry.check_end()
    fields.check_end()
    return chunks, derivation


def _derivation(entry: _Fields) -> Derivation:
    kind, passes, memory_bytes, algorithm, salt_bytes = entry.numbers(_DERIVATION)
    if (kind, algorithm, salt_bytes) != (_PASSWORD_HASH, ARGON2ID13, SALT_BYTES):
        raise FormatError("the key of a tensor was derived in an unknown way")
    if memory_bytes > MOST_DERIVATION_BYTES or passes > MOST_DERIVATION_PASSES:
        what = f"to derive its key from a passphrase takes {memory_bytes} bytes and {passes} passes"
        raise FormatError(what, hint="Derive the key with tensorizer, and give its 32 bytes as key=")
    return Derivation(passes, memory_bytes, entry.take(SALT_BYTES))


def _parallel(entry: _Fields) -> SealedChunks:
    chunk_bytes, nonce, count = entry.numbers(_CHUNKS)
    if chunk_bytes < LEAST_CHUNK_BYTES or chunk_bytes % CHUNK_STEP_BYTES:
        raise FormatError(f"a tensor is encrypted in chunks of {chunk_bytes} bytes")
    return SealedChunks(chunk_bytes, nonce, entry.take(count * MAC_BYTES))


def _checked_chunks(chunks: SealedChunks, data_bytes: int) -> SealedChunks:
    count = len(chunks.macs) // MAC_BYTES
    if count == 1:  # Tensorizer then decrypts all data at once, whatever size a chunk has
        chunks = chunks._replace(chunk_bytes=data_bytes)
    if data_bytes < 1 or count != -(-data_bytes // chunks.chunk_bytes):
        raise FormatError(f"a tensor of {data_bytes} bytes has {count} encrypted chunks of {chunks.chunk_bytes} bytes")
    if chunks.chunk_bytes > MOST_CHUNK_BYTES:
        what = f"a tensor is encrypted in chunks of {chunks.chunk_bytes} bytes, more than {MOST_CHUNK_BYTES}"
        raise FormatError(what, hint="Decrypt it with tensorizer, and save it again")
    return chunks
