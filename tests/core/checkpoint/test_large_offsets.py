"""Tensors behind 2 GiB, 4 GiB and 5 TB are read right: from sparse files, and from servers of objects that large.

A file of terabytes costs no disk here: one tensor is a hole, and is not asked for.
"""

from __future__ import annotations

import errno
import itertools
import json
import struct

import pytest
import torch
from each_row import each_row
from servers.scripted_http import ScriptedServer

import streamer
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.format.header import parse_header
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

GIB, TB = 1 << 30, 10**12
TAIL = {"first": torch.arange(1000.0), "second": torch.arange(7, dtype=torch.int64)}
# On each side of where 32 bits, with and without sign, end; the last is beyond S3's largest object.
HOLES = [2 * GIB - 300, 2 * GIB + 8, 4 * GIB - 304, 4 * GIB + 8, 5 * TB + 40]


def header_of(hole_bytes):
    entries = {"hole": {"dtype": "U8", "shape": [hole_bytes], "data_offsets": [0, hole_bytes]}}
    at = hole_bytes
    for name, tensor in TAIL.items():
        dtype = {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
        size = tensor.nbytes
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def tail_bytes():
    return b"".join(tensor.numpy().tobytes() for tensor in TAIL.values())


def write_sparse(path, hole_bytes):
    header = header_of(hole_bytes)
    try:
        with path.open("wb") as file:
            file.write(header)
            file.seek(len(header) + hole_bytes)
            file.write(tail_bytes())
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        pytest.skip(f"this file system holds no file of {hole_bytes} bytes")
    return len(header) + hole_bytes + len(tail_bytes())


def assert_tail(found):
    assert set(found) == set(TAIL)
    assert all(torch.equal(found[name], TAIL[name]) for name in TAIL)


@pytest.mark.parametrize("hole_bytes", HOLES)
def test_tensors_behind_a_hole_of_a_file(tmp_path, hole_bytes):
    write_sparse(tmp_path / "a.safetensors", hole_bytes)
    assert_tail(streamer.load(tmp_path / "a.safetensors", names=list(TAIL)))
    opened = streamer.open(tmp_path / "a.safetensors")
    assert torch.equal(opened.get_tensor("second"), TAIL["second"])
    assert torch.equal(opened.get_slice("hole")[hole_bytes - 3 :], torch.zeros(3, dtype=torch.uint8))


@pytest.mark.server
@pytest.mark.parametrize("hole_bytes", HOLES)
def test_tensors_behind_a_hole_of_a_web_server(http_server, hole_bytes):
    path = http_server.root / "sparse.safetensors"
    try:
        write_sparse(path, hole_bytes)
        assert_tail(streamer.load(f"{http_server.http_url}/open/sparse.safetensors", names=list(TAIL)))
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.server
@pytest.mark.parametrize("hole_bytes", HOLES)
def test_tensors_behind_a_hole_of_an_nfs_server(nfs_server, hole_bytes):
    path = nfs_server.put("sparse.safetensors", b"")
    try:
        write_sparse(path, hole_bytes)
        assert_tail(streamer.load(nfs_server.url("sparse.safetensors"), names=list(TAIL)))
    finally:
        path.unlink(missing_ok=True)


@each_row("size", [2**31, 2**32, 2**32 + 1, 5 * TB, 2**53 + 1, 2**62])
def test_a_range_of_an_object_of_any_size_is_asked_for_and_checked(size):
    """The server makes its bytes up from their offsets; the engine checks `Content-Range` against the size."""
    end, begin = size - 1, size - 100_001

    def made_up(request, answer):
        answer.body = bytes((request.begin + i) % 251 for i in range(request.end - request.begin))
        answer.headers["Content-Length"] = str(len(answer.body))
        answer.headers["Content-Range"] = f"bytes {request.begin}-{request.end - 1}/{size}"

    with ScriptedServer(b"", made_up) as server:
        session = ReadSession(
            [SourceObject("test://object", HttpSource(server.url), size)],
            plan_reads([Item(0, begin, end)], 0),
            resolve(streamer.Options(block_bytes=64 << 10)),
        )
        assert session.next_items() == [0]
        found = bytes(memoryview(session.take(0)))
        session.close()
    assert found == bytes((begin + i) % 251 for i in range(end - begin))
    assert {(request.begin, request.end) for request in server.requests} == set(cut(begin, end, 64 << 10))


def cut(begin, end, block):
    """Blocks end at multiples of their size."""
    borders = [begin, *range((begin // block + 1) * block, end, block), end]
    return itertools.pairwise(borders)


@each_row("hole_bytes", [*HOLES, 2**53 + 8, 2**60])
def test_a_header_of_an_object_of_any_size_gives_exact_offsets(hole_bytes):
    data = header_of(hole_bytes)
    size = len(data) + hole_bytes + len(tail_bytes())
    header = parse_header(data, size, uri="s3://bucket/large.safetensors", max_rank=64)
    assert {entry.name: (entry.begin, entry.end) for entry in header.entries} == {
        "hole": (len(data), len(data) + hole_bytes),
        "first": (len(data) + hole_bytes, len(data) + hole_bytes + 4000),
        "second": (len(data) + hole_bytes + 4000, size),
    }
    with pytest.raises(streamer.TruncatedError):
        parse_header(data, size - 1, uri="s3://bucket/large.safetensors", max_rank=64)
