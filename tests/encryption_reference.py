"""Reads encrypted safetensors files as docs/encryption.md describes them, with nothing of the product.

It is what another implementation would be: the tests compare the product with it, in both directions.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

TAG_BYTES = 16


class Outer(NamedTuple):
    """An encrypted file, divided."""

    header: bytes  # with the length before it
    document: dict[str, Any]
    parameters: dict[str, Any]
    tensors: list[tuple[str, int, int]]  # name, begin, end in the file; in the order of their bytes
    data: bytes


def divided(data: bytes) -> Outer:
    length = int.from_bytes(data[:8], "little")
    document = json.loads(data[8 : 8 + length])
    parameters = json.loads(document["__metadata__"]["streamer.encryption"])
    begin = 8 + length
    tensors = [
        (name, begin + value["data_offsets"][0], begin + value["data_offsets"][1])
        for name, value in document.items()
        if name != "__metadata__"
    ]
    return Outer(data[:begin], document, parameters, sorted(tensors, key=lambda each: each[1:]), data)


def shard_key(key: bytes, parameters: Mapping[str, Any], header: bytes, what: str = "shard") -> bytes:
    info = f"streamer-encryption-1 {what}".encode() + hashlib.sha256(header).digest()
    return HKDF(SHA256(), 32, bytes.fromhex(parameters["salt"]), info).derive(key)


def tag_0(key: bytes, parameters: Mapping[str, Any], header: bytes, tags: bytes) -> bytes:
    """Authenticate the header, and the tags of all pieces."""
    return hmac.digest(shard_key(key, parameters, header, "tags"), tags, "sha256")[:TAG_BYTES]


def key_id(key: bytes) -> str:
    return HKDF(SHA256(), 8, None, b"streamer-encryption-1 key id").derive(key).hex()


def pieces(begin: int, end: int, size: int) -> list[tuple[int, int]]:
    cuts = [begin, *range((begin // size + 1) * size, end, size), end]
    return list(itertools.pairwise(cuts)) if begin < end else []


def decrypted(data: bytes, key: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    """Return dtype, shape and bytes of each tensor; raises cryptography's InvalidTag."""
    outer = divided(data)
    cipher = AESGCM(shard_key(key, outer.parameters, outer.header))
    tags = data[outer.tensors[-1][1] : outer.tensors[-1][2]]
    numbers = iter(range(len(tags) // TAG_BYTES))

    def opened(begin: int, end: int) -> bytes:
        plain = b""
        for first, last in pieces(begin, end, outer.parameters["piece_bytes"]):
            number = next(numbers)
            tag = tags[number * TAG_BYTES : (number + 1) * TAG_BYTES]
            plain += cipher.decrypt(number.to_bytes(12, "big"), data[first:last] + tag, None)
        return plain

    assert next(numbers) == 0
    assert hmac.compare_digest(tags[:TAG_BYTES], tag_0(key, outer.parameters, outer.header, tags[TAG_BYTES:]))
    document, tensors = outer.document, outer.tensors[:-1]
    if outer.parameters["hides_names"]:
        hidden = opened(*tensors[0][1:])
        length, payload = int.from_bytes(hidden[:8], "little"), tensors[1][1]
        document = json.loads(hidden[8 : 8 + length])
        offsets = {name: each["data_offsets"] for name, each in document.items() if name != "__metadata__"}
        tensors = sorted(
            ((name, payload + first, payload + last) for name, (first, last) in offsets.items()),
            key=lambda each: each[1:],
        )
    found = {
        name: (document[name]["dtype"], document[name]["shape"], opened(begin, end)) for name, begin, end in tensors
    }
    assert next(numbers, None) is None
    return found


def encrypted(tensors: Mapping[str, tuple[str, list[int], bytes]], key: bytes, parameters: Mapping[str, Any]) -> bytes:
    """Write a file with readable names; `tensors` are in the order of their bytes."""
    size = parameters["piece_bytes"]
    name = f"streamer.tags-{parameters['shard']:05d}-of-{parameters['shards']:05d}"

    def header(tags: int) -> bytes:
        document: dict[str, Any] = {"__metadata__": {"streamer.encryption": json.dumps(parameters)}}
        begin = 0
        for each, (dtype, shape, data) in tensors.items():
            document[each] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(data)]}
            begin += len(data)
        document[name] = {"dtype": "U8", "shape": [tags], "data_offsets": [begin, begin + tags]}
        text = json.dumps(document).encode()
        text += b" " * (4096 - 8 - len(text))
        return len(text).to_bytes(8, "little") + text

    position, ranges = 4096, []
    for _, _, data in tensors.values():
        ranges.append(pieces(position, position + len(data), size))
        position += len(data)
    begun = header(TAG_BYTES * (1 + sum(map(len, ranges))))
    cipher = AESGCM(shard_key(key, parameters, begun))
    body, tags = b"", b""
    position, number = 4096, 0
    for (_, _, data), cuts in zip(tensors.values(), ranges, strict=True):
        for first, last in cuts:
            number += 1
            sealed = cipher.encrypt(number.to_bytes(12, "big"), data[first - position : last - position], None)
            body, tags = body + sealed[:-TAG_BYTES], tags + sealed[-TAG_BYTES:]
        position += len(data)
    return begun + body + tag_0(key, parameters, begun, tags) + tags
