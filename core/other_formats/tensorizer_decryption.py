"""Decrypts the tensors of Tensorizer's encrypted files: XSalsa20-Poly1305 in chunks, by PyNaCl.

Guarantees: no byte is returned before the MAC of its chunk fits. Once all bytes of a tensor were read, in any order and
by any threads, the hashes in its header fit as well: they bind its name, dtype and shape to its data. A chunk whose MAC
mismatches is read once more, for it may have been damaged on the way. A reader holds a few chunks, not the tensor.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import zlib
from collections.abc import Callable
from typing import Any

from streamer.core.conditions import Condition
from streamer.core.encryption.secret_keys import KEY_BYTES, Passphrase, SecretKey
from streamer.core.errors import FormatError, OutOfMemoryError, TamperedError, UsageError
from streamer.core.other_formats.interface import CheckpointFile
from streamer.core.other_formats.tensorizer_header import (
    ARGON2ID13,
    CRC32,
    SHA256,
    Derivation,
    SealedChunks,
    TensorHeader,
)
from streamer.core.quoting import quoted

HASHED_AGAIN_BYTES = 4 << 20  # read at a time if the bytes of a tensor did not come in their order
# Of the wait for a thread that reads the bytes before these. It ends by itself: this only bounds a mistake of ours.
ORDER_DEADLINE_S = 600.0
_HINT = (
    "Give the key with which it was saved; if you did, do not use the file, but get it again from where it was saved"
)


def derived_key(passphrase: Passphrase, derivation: Derivation) -> SecretKey:
    """Derive the key of a file from its passphrase with Argon2id."""
    bindings = _bindings()
    passes, memory_bytes, salt = derivation
    try:
        return SecretKey(
            bindings.crypto_pwhash_alg(KEY_BYTES, passphrase.secret(), salt, passes, memory_bytes, ARGON2ID13)
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"its key cannot be derived with {passes} passes in {memory_bytes} bytes") from error
    except (RuntimeError, MemoryError) as error:
        raise OutOfMemoryError(f"to derive the key takes {memory_bytes} bytes of memory") from error


def _bindings() -> Any:
    try:
        from nacl import bindings  # noqa: PLC0415  an extra, for encrypted files alone
    except ImportError as error:
        hint = "Install the extra streamer[tensorizer] from the repository or wheel that streamer came from"
        raise UsageError("PyNaCl, which decrypts files of Tensorizer, is not installed", hint=hint) from error
    return bindings


class DecryptedTensor:
    """The bytes of an encrypted tensor, decrypted; a `Reader`."""

    def __init__(
        self, file: CheckpointFile, begin: int, header: TensorHeader, chunks: SealedChunks, key: SecretKey
    ) -> None:
        self._file, self._begin, self._chunks, self._key = file, begin, chunks, key
        self._name, self.size_bytes = header.name, header.data_bytes
        self._open = _bindings().crypto_secretbox_open_easy
        self._hashes = _HashesInOrder(header, self._error)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer; see `Reader.read_into`."""
        target, end = buffer.cast("B"), offset + buffer.nbytes
        with self._hashes.reading(offset, end):
            self._decrypt_into(target, offset)
            begin = self._hashes.add(target, offset)
        if begin is not None:
            self._hash_again(begin)

    def check_first_chunk(self) -> None:
        """Decrypt the first chunk, to notice another key early; raises as `read_into`."""
        self._decrypt_into(memoryview(bytearray(min(self._chunks.chunk_bytes, self.size_bytes))), 0)

    def _decrypt_into(self, target: memoryview, offset: int) -> None:
        """Fill the target. Chunks that it holds as a whole are read and decrypted in place."""
        size, end = self._chunks.chunk_bytes, offset + len(target)
        first, last = -(-offset // size) * size, end if end == self.size_bytes else end // size * size
        if first < last:
            middle = target[first - offset : last - offset]
            self._file.read_into(middle, self._begin + first)
            for begin in range(first, last, size):
                piece = middle[begin - first : begin - first + size]
                piece[:] = self._opened(begin // size, piece)
        for number in sorted({offset // size, (end - 1) // size}):
            begin, stop = number * size, min((number + 1) * size, self.size_bytes)
            if first <= begin and stop <= last:
                continue
            data = self._opened(number, self._read(begin, stop))
            low, high = max(begin, offset), min(stop, end)
            target[low - offset : high - offset] = data[low - begin : high - begin]

    def _read(self, begin: int, end: int) -> memoryview:
        data = memoryview(bytearray(end - begin))
        self._file.read_into(data, self._begin + begin)
        return data

    def _opened(self, number: int, data: memoryview) -> bytes:
        """Decrypt a chunk; if its MAC mismatches, read it once more."""
        opened = self._opened_once(number, data)
        if opened is None:
            begin = number * self._chunks.chunk_bytes
            opened = self._opened_once(number, self._read(begin, begin + len(data)))
        if opened is None:
            raise self._error(f"chunk {number}")
        return opened

    def _opened_once(self, number: int, data: memoryview) -> bytes | None:
        from nacl.exceptions import CryptoError  # noqa: PLC0415  as above

        chunks = self._chunks
        try:
            opened: bytes = self._open(
                b"".join((chunks.mac_of(number), data)), chunks.nonce_of(number), self._key.secret()
            )
        except CryptoError:
            return None
        return opened

    def _hash_again(self, begin: int) -> None:
        """Add the rest of the tensor to its hashes: its bytes were authentic, and came in another order."""
        for offset in range(begin, self.size_bytes, HASHED_AGAIN_BYTES):
            piece = memoryview(bytearray(min(HASHED_AGAIN_BYTES, self.size_bytes - offset)))
            self._decrypt_into(piece, offset)
            self._hashes.add(piece, offset)

    def _error(self, what: str) -> TamperedError:
        name = quoted(self._name.decode(errors="replace"))
        return TamperedError(
            f"{what} of tensor {name} is not as it was saved, or the key is another one",
            uri=self._file.uri,
            hint=_HINT,
        )


class _HashesInOrder:
    """The hashes of a tensor, which get its bytes in their order, while threads read it in any order.

    A thread whose bytes come next adds them. One that is ahead waits for the thread that reads the bytes between. If
    nobody reads these now, the thread goes on, and the last one learns that the hashes still lack them.
    """

    def __init__(self, header: TensorHeader, error: Callable[[str], TamperedError]) -> None:
        self._size_bytes, self._expected, self._error = header.data_bytes, header.hashes, error
        self._sha256 = hashlib.sha256(header.hashed)
        self._has_crc32 = any(kind == CRC32 for kind, _ in header.hashes)
        self._crc32 = zlib.crc32(header.hashed)
        self._position = 0
        self._fits: bool | None = None  # whether the hashes are those in the header; None until all bytes were added
        self._seen: list[tuple[int, int]] = []  # ranges that were read, sorted and joined
        self._running: list[tuple[int, int]] = []
        self._changed = Condition()

    def reading(self, begin: int, end: int) -> _Reading:
        """Return a context within which a thread reads a range, and calls `add`."""
        return _Reading(self._running, self._changed, (begin, end))

    def add(self, data: memoryview, begin: int) -> int | None:
        """Add bytes that were read.

        Returns:
            The offset from which on the hashes lack bytes, if all of the tensor was read; else None.
        """
        end = begin + len(data)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_awaited(begin), ORDER_DEADLINE_S)
            if begin <= self._position < end:
                self._update(data[self._position - begin :])
                self._position = end
                self._fits = self._compared() if end == self._size_bytes else None
                self._changed.notify_all()
            self._seen = _joined(self._seen, (begin, end))
            if self._fits is False:
                raise self._error("the name, the shape or a byte")
            return self._position if self._fits is None and self._seen == [(0, self._size_bytes)] else None

    def _is_awaited(self, begin: int) -> bool:
        return self._position < begin and any(first <= self._position < last for first, last in self._running)

    def _update(self, data: memoryview) -> None:
        self._sha256.update(data)
        if self._has_crc32:
            self._crc32 = zlib.crc32(data, self._crc32)

    def _compared(self) -> bool:
        found = {CRC32: self._crc32.to_bytes(4, "little"), SHA256: self._sha256.digest()}
        return all(hmac.compare_digest(found[kind], expected) for kind, expected in self._expected)


class _Reading:
    """A range that a thread reads now."""

    def __init__(self, running: list[tuple[int, int]], changed: threading.Condition, span: tuple[int, int]) -> None:
        self._running, self._changed, self._span = running, changed, span

    def __enter__(self) -> None:
        with self._changed:
            self._running.append(self._span)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._running.remove(self._span)
            self._changed.notify_all()


def _joined(ranges: list[tuple[int, int]], new: tuple[int, int]) -> list[tuple[int, int]]:
    """Add a range to others, all sorted and apart."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted([*ranges, new]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
