"""Writes encrypted files of Tensorizer by hand, so that a test can make any part of them wrong."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from nacl.bindings import crypto_pwhash_alg, crypto_secretbox_easy

KEY = bytes(range(32))
FILE_HEADER_BYTES = 73
LEAST_MEMORY_BYTES = 8192  # of Argon2, so that tests are fast
SALT = bytes(range(16))


@dataclass(frozen=True)
class SealedTensor:
    """A tensor as it lies in a file, and its entry in the index."""

    name: bytes
    dtype: bytes
    shape: tuple[int, ...]
    chunk_bytes: int
    nonce: bytes
    macs: tuple[bytes, ...]
    data: bytes
    hashes: bytes
    derivation: bytes = b""
    cipher: bytes | None = None
    named: bytes = b""  # in the index, if that differs
    size_bytes: int | None = None  # in the index, if that differs

    def entries(self) -> list[bytes]:
        """Return the entries of its encryption."""
        if self.cipher is not None:
            return [self.cipher] if self.cipher else []
        macs = b"".join(self.macs)
        chunks = struct.pack("<HQ24sQ", 2, self.chunk_bytes, self.nonce, len(self.macs)) + macs
        return [each for each in (self.derivation, chunks) if each]

    def header(self, cipher: Sequence[bytes] | None = None) -> bytes:
        """Return its header."""
        text = struct.pack("<HBH", 0, 2, len(self.name)) + self.name + bytes([len(self.dtype)]) + self.dtype
        text += struct.pack(f"<B{len(self.shape)}I", len(self.shape), *self.shape)
        text += struct.pack("<H", len(self.hashes)) + self.hashes
        entries = self.entries() if cipher is None else cipher
        sealed = struct.pack("<H", len(entries)) + b"".join(struct.pack("<Q", len(each)) + each for each in entries)
        text += struct.pack("<Q", len(sealed)) + sealed + struct.pack("<q", len(self.data))
        return struct.pack("<Q", 8 + len(text)) + text

    def index(self, begin: int) -> bytes:
        """Return its entry in the index, if its header begins at an offset."""
        name = self.named or self.name
        text = struct.pack("<H", len(name)) + name + b"\2" + bytes([len(self.dtype)]) + self.dtype
        text += struct.pack(f"<B{len(self.shape)}I", len(self.shape), *self.shape)
        size = len(self.data) if self.size_bytes is None else self.size_bytes
        return text + struct.pack("<3Q", begin, begin + len(self.header()), size)


def sealed(
    name: str, array: np.ndarray[Any, Any], key: bytes = KEY, chunk_bytes: int = 1024, **parts: Any
) -> SealedTensor:
    """Encrypt an array as Tensorizer does."""
    plain, nonce = array.tobytes(), os.urandom(16) + bytes(8)
    boxes = [
        crypto_secretbox_easy(
            plain[begin : begin + chunk_bytes],
            (int.from_bytes(nonce, "little") + begin // chunk_bytes).to_bytes(24, "little"),
            key,
        )
        for begin in range(0, len(plain), chunk_bytes)
    ]
    macs, data = tuple(box[:16] for box in boxes), b"".join(box[16:] for box in boxes)
    dtype = array.dtype.newbyteorder("<").str.encode()
    made = SealedTensor(name.encode(), dtype, array.shape, chunk_bytes, nonce, macs, data, b"", **parts)
    return hashed(made, plain)


def hashed(tensor: SealedTensor, plain: bytes) -> SealedTensor:
    """Fill in the hashes, of both kinds."""
    zeroed = replace(tensor, hashes=b"\2\0\4" + bytes(4) + b"\1\x20" + bytes(32))
    covered = without_encryption(zeroed) + plain
    sha256, crc32 = hashlib.sha256(covered).digest(), struct.pack("<I", zlib.crc32(covered))
    return replace(tensor, hashes=b"\2\0\4" + crc32 + b"\1\x20" + sha256)


def without_encryption(tensor: SealedTensor) -> bytes:
    """Return the bytes of the header that hashes cover."""
    whole = tensor.header()
    sealed_bytes = 8 + 2 + sum(8 + len(each) for each in tensor.entries())
    return whole[: len(whole) - 8 - sealed_bytes] + whole[-8:]


def derived(passphrase: str) -> tuple[bytes, bytes]:
    """Return the key of a passphrase, and the entry that says how it was derived."""
    entry = struct.pack("<HHQQiH", 1, 1, 1, LEAST_MEMORY_BYTES, 2, len(SALT)) + SALT
    return crypto_pwhash_alg(32, passphrase.encode(), SALT, 1, LEAST_MEMORY_BYTES, 2), entry


def file_of(tensors: Sequence[SealedTensor], *, version: int = 4, flags: int = 1) -> bytes:
    """Return a file with these tensors."""
    length = sum(len(each.index(0)) for each in tensors)
    index, body, at = b"", b"", FILE_HEADER_BYTES + length
    for each in tensors:
        index += each.index(at)
        body += each.header() + each.data
        at = FILE_HEADER_BYTES + length + len(body)
    head = b"|TZR|" + struct.pack("<I", version) + flags.to_bytes(32, "little")
    return head + struct.pack("<4Q", at, 0, len(tensors), length) + index + body
