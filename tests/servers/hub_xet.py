"""The part of the stand-in for the Hub that hf_xet calls when it uploads to a bucket: grants, xorbs, shards, a batch.

Objects are kept by the Xet hash that the client computes, which nothing here checks. Formats and requests:
https://huggingface.co/docs/xet
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers.hub import HubServer

HEADER_BYTES = ENTRY_BYTES = 48
IS_VERIFIED, HAS_METADATA = 1 << 31, 1 << 30
PLAIN, LZ4 = 0, 1


class HubXet:
    """What a `HubServer` takes by Xet."""

    def __init__(self, hub: HubServer) -> None:
        self._hub, self._guard = hub, threading.Lock()
        self._xorbs: dict[str, list[bytes]] = {}  # chunks by hash
        self._files: dict[str, bytes] = {}  # by hash

    def answer(self, request: BaseHTTPRequestHandler, path: str) -> bool:
        """Answer a request of hf_xet, or the batch that follows; say whether it was one."""
        from servers import hub

        if path.endswith("/xet-write-token"):
            token = {"accessToken": "xet", "exp": int(time.time()) + 3600, "casUrl": f"{self._hub.url}/cas"}
            hub._send_json(request, token)
            return True
        if request.command != "POST" or not path.startswith(("/cas/", "/api/buckets/")):
            if path.startswith("/cas/"):
                hub._refuse(request, 404, None, "no such chunk")
            return path.startswith("/cas/")
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if path.startswith("/cas/v1/xorbs/"):
            self._xorbs[path.rpartition("/")[2]] = [*_chunks(body)]
            hub._send_json(request, {"was_inserted": True})
        elif path == "/cas/v1/shards":
            self._add_files(body)
            hub._send_json(request, {"result": 1})
        elif path.endswith("/batch"):
            with self._guard:  # of two batches at a time, none may be lost
                self._change(path, body)
            hub._send_json(request, {"success": True, "failed": []})
        else:
            hub._refuse(request, 404, None, "no such service")
        return True

    def _change(self, path: str, body: bytes) -> None:
        repository = self._hub.repositories[path.removeprefix("/api/").removesuffix("/batch").replace("s", "", 1)]
        files = dict((repository.found("main") or ("", {}))[1])
        for line in map(json.loads, body.splitlines()):
            if line["type"] == "addFile":
                files[line["path"]] = self._files[line["xetHash"]]
            else:
                del files[line["path"]]
        repository.commit(files)

    def _add_files(self, shard: bytes) -> None:
        at = HEADER_BYTES
        while shard[at : at + 32] != b"\xff" * 32:
            name = _hash(shard, at)
            flags, count = struct.unpack_from("<II", shard, at + 32)
            data = b""
            for number in range(count):
                entry = at + HEADER_BYTES + number * ENTRY_BYTES
                begin, end = struct.unpack_from("<II", shard, entry + 40)
                data += b"".join(self._xorbs[_hash(shard, entry)][begin:end])
            self._files[name] = data
            at += HEADER_BYTES + ENTRY_BYTES * (count * (1 + bool(flags & IS_VERIFIED)) + bool(flags & HAS_METADATA))


def _hash(data: bytes, at: int) -> str:
    return "".join(f"{word:016x}" for word in struct.unpack_from("<4Q", data, at))


def _chunks(xorb: bytes) -> Iterator[bytes]:
    at = 0
    while at + 8 <= len(xorb) and xorb[at] == 0:
        size, kind = int.from_bytes(xorb[at + 1 : at + 4], "little"), xorb[at + 4]
        data = xorb[at + 8 : at + 8 + size]
        assert kind in (PLAIN, LZ4), "only bytes that look like texts or random numbers are sent here"
        yield data if kind == PLAIN else _of_lz4(data)
        at += 8 + size


def _of_lz4(frame: bytes) -> bytes:
    """Decompress a frame of LZ4: https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md."""
    flags = frame[4]
    at, out = 7 + 8 * bool(flags & 8), bytearray()
    while size := int.from_bytes(frame[at : at + 4], "little"):
        block = frame[at + 4 : at + 4 + (size & ~(1 << 31))]
        at += 4 + len(block) + 4 * bool(flags & 16)
        out += block if size >> 31 else b""
        position = len(block) if size >> 31 else 0
        while position < len(block):
            token, position = block[position], position + 1
            length, position = _length(block, position, token >> 4)
            out += block[position : position + length]
            position += length
            if position >= len(block):
                break
            offset, position = int.from_bytes(block[position : position + 2], "little"), position + 2
            length, position = _length(block, position, token & 15)
            for _ in range(length + 4):
                out.append(out[-offset])
    return bytes(out)


def _length(block: bytes, position: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            length, position = length + block[position], position + 1
            if block[position - 1] != 255:
                break
    return length, position
