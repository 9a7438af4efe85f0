"""Files of ``streamer::``: they behave as files of a disk do, give one version of an object, and cost few requests."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import pickle
import random
import secrets
import tarfile
import zipfile

import fsspec
import numpy as np
import pytest
import safetensors.torch
import torch
from servers.scripted_http import ScriptedServer

import streamer
from streamer.core.engine import byte_reads
from streamer.integrations.fsspec import StreamerFileSystem, remote_file

CONTENT = random.Random(0).randbytes(3_000_000)


class Place:
    """A file that can be replaced, and the file system that reads it."""

    def __init__(self, fs, path, put):
        self.fs, self.path, self.put = fs, path, put


@pytest.fixture(params=["s3", "file", "memory", "http"])
def place(request, tmp_path):
    if request.param == "s3":
        server, key = request.getfixturevalue("s3_server"), secrets.token_hex(4)
        fs = StreamerFileSystem(target_protocol="s3", target_options=server.storage_options())
        found = Place(fs, f"private/{key}", lambda content: server.put("private", key, content))
    elif request.param == "file":
        path = tmp_path / "a"
        found = Place(StreamerFileSystem(target_protocol="file"), str(path), path.write_bytes)
    elif request.param == "http":
        server = request.getfixturevalue("http_server")
        path = server.root / secrets.token_hex(4)
        url = f"{server.http_url}/open/{path.name}"
        seconds = itertools.count(1_700_000_000)

        def put(content):
            draft = path.with_suffix(".draft")  # written in place, nginx would send both versions under one ETag
            draft.write_bytes(content)
            os.utime(draft, (next(seconds),) * 2)  # the ETag of nginx is made of size and second
            draft.replace(path)

        found = Place(StreamerFileSystem(target_protocol="http"), url, put)
    else:
        path = f"/{secrets.token_hex(4)}"
        write = fsspec.filesystem("memory").pipe_file
        found = Place(StreamerFileSystem(target_protocol="memory"), path, lambda content: write(path, content))
    found.put(CONTENT)
    return found


@pytest.fixture
def streams_soon(monkeypatch):
    monkeypatch.setattr(remote_file, "STREAM_AFTER_BYTES", 300_000)
    monkeypatch.setattr(remote_file, "SKIPPED_BYTES", 50_000)
    monkeypatch.setattr(remote_file, "DIRECT_BYTES", 700_000)
    monkeypatch.setattr(byte_reads, "PIECE_BYTES", 100_000)


def step(file, numbers):
    """Do anything that a file can do, and say what came of it."""
    size = numbers.choice([0, 1, 100, 10_000, 250_000, 900_000])
    action = numbers.choice(
        ["read", "read", "read", "readinto", "seek", "skip", "end", "back", "line", "read1", "peek"]
    )
    if action == "readinto":
        target = bytearray(size)
        return file.readinto(target), bytes(target)
    if action == "seek":
        return file.seek(numbers.randrange(3_100_000))
    if action == "skip":
        return file.seek(numbers.randrange(60_000), io.SEEK_CUR)
    if action == "end":
        return file.seek(-numbers.randrange(100_000), io.SEEK_END)
    if action == "back":
        return file.seek(max(0, file.tell() - size))
    if action == "line":
        return file.readline()
    if action == "peek":
        return file.tell(), file.peek(1)[:1]
    if action == "read1":
        return file.tell(), len(file.read1(1)), file.tell()
    return file.tell(), file.read(size)


@pytest.mark.server
@pytest.mark.usefixtures("streams_soon")
@pytest.mark.parametrize("seed", range(3))
def test_any_use_gives_what_a_file_of_a_disk_gives(place, seed):
    ours, theirs = random.Random(seed), random.Random(seed)
    disk = io.BufferedReader(io.BytesIO(CONTENT))
    with place.fs.open(place.path, block_size=50_000) as file:
        for _ in range(80):
            assert step(file, ours) == step(disk, theirs)
        assert file.read() == disk.read()


@pytest.mark.server
def test_it_has_the_attributes_of_fsspecs_files(place):
    with place.fs.open(place.path) as file:
        assert (file.size, file.mode, file.path, file.fs) == (len(CONTENT), "rb", file.details["name"], place.fs)
        assert (file.info()["size"], file.info()["type"]) == (len(CONTENT), "file")
        assert file.full_name.startswith("streamer::")
        assert file.readable()
        assert file.seekable()
        assert not file.writable()
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"")
        with pytest.raises(ValueError, match="before the start"):
            file.seek(-1)
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read()
    assert pickle.loads(pickle.dumps(file)).closed


@pytest.mark.server
@pytest.mark.usefixtures("streams_soon")
@pytest.mark.parametrize("before", [0, 10, 200_000, 500_000])
def test_an_object_that_is_replaced_while_it_is_open_is_never_mixed(place, before):
    replaced = bytes(reversed(CONTENT))
    with place.fs.open(place.path, block_size=50_000) as file:
        taken = file.read(before // 2) + file.read(before - before // 2)
        place.put(replaced)
        try:
            while len(taken) < len(CONTENT):
                taken += file.read(100_000)
        except streamer.ChangedError:
            assert CONTENT.startswith(taken)
        else:
            assert taken == CONTENT  # it was read ahead
    assert place.fs.cat_file(place.path) == replaced


@pytest.mark.server
def test_an_object_that_is_replaced_before_the_first_byte_is_a_changed_error(place):
    with place.fs.open(place.path) as file:
        place.put(CONTENT[::-1])
        with pytest.raises(streamer.ChangedError):
            file.read(10)


@pytest.mark.server
def test_a_pickle_of_a_file_gives_the_same_version_or_an_error(place):
    for cache_type in (None, "bytes"):
        place.put(CONTENT)
        with place.fs.open(place.path, **({"cache_type": cache_type} if cache_type else {})) as file:
            file.seek(1000)
            pickled = pickle.dumps(file)
        with pickle.loads(pickled) as again:
            assert (again.tell(), again.read(100)) == (1000, CONTENT[1000:1100])
        place.put(CONTENT[::-1])
        with pytest.raises(streamer.ChangedError):
            pickle.loads(pickled)


@pytest.mark.server
@pytest.mark.parametrize("cache_type", ["none", "bytes", "readahead", "blockcache", "all", "first", "background"])
def test_fsspecs_own_caches_can_be_asked_for(place, cache_type):
    with place.fs.open(place.path, cache_type=cache_type, block_size=100_000) as file:
        assert file.read(10) == CONTENT[:10]
        file.seek(-10, io.SEEK_END)
        assert file.read(100) == CONTENT[-10:]
        file.seek(1_234_567)
        assert file.read(200_000) == CONTENT[1_234_567:1_434_567]


@pytest.fixture
def served():
    with ScriptedServer(CONTENT) as server:
        server.answers_head = True
        yield server


def ranges_of(server):
    return [(each.begin, each.end) for each in server.requests if "range" in each.headers]


def test_a_jump_fetches_what_is_asked_for_and_what_a_request_is_worth(served):
    with StreamerFileSystem(target_protocol="http").open(served.url) as file:
        del served.requests[:]
        file.seek(-8, io.SEEK_END)
        file.read(8)
        assert ranges_of(served) == [(len(CONTENT) - 8, len(CONTENT))]
        del served.requests[:]
        file.seek(100)
        file.read(10)
        (only,) = ranges_of(served)
        assert only[0] == 100
        assert only[1] - only[0] <= 512 << 10
        file.seek(200_000)
        assert file.read(10) == CONTENT[200_000:200_010]
        assert len(served.requests) == 1


def test_a_jump_after_much_was_read_in_order_fetches_little(served):
    with StreamerFileSystem(target_protocol="http").open(served.url) as file:
        file.read(600_000)
        file.read(600_000)
        del served.requests[:]
        file.seek(50)
        assert file.read(10) == CONTENT[50:60]
        assert sum(end - begin for begin, end in ranges_of(served)) <= 512 << 10


def test_small_reads_in_order_are_few_requests(served):
    with StreamerFileSystem(target_protocol="http").open(served.url) as file:
        del served.requests[:]
        while file.read(1000):
            pass
    assert len(served.requests) <= 12
    assert sum(end - begin for begin, end in ranges_of(served)) == len(CONTENT)


def test_a_read_of_all_reads_nothing_twice_and_a_read_of_nothing_reads_nothing(served):
    fs = StreamerFileSystem(target_protocol="http")
    with fs.open(served.url) as file:
        del served.requests[:]
        assert file.read(0) == b""
        assert file.readinto(bytearray()) == 0
        file.seek(10_000_000)
        assert file.read(5) == b""
        assert served.requests == []
        file.seek(0)
        assert file.read() == CONTENT
        assert file.read() == b""
    assert sum(end - begin for begin, end in ranges_of(served)) == len(CONTENT)


def test_a_file_of_torch_is_loaded(place):
    tensors = {"a": torch.arange(300_000), "b": torch.ones(3, 5)}
    target = io.BytesIO()
    torch.save(tensors, target)
    place.put(target.getvalue())
    with place.fs.open(place.path) as file:
        loaded = torch.load(file)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_files_of_numpy_and_safetensors_are_loaded(place):
    array = np.arange(200_000).reshape(-1, 4)
    target = io.BytesIO()
    np.save(target, array)
    place.put(target.getvalue())
    with place.fs.open(place.path) as file:
        assert np.array_equal(np.load(file), array)
    place.put(safetensors.torch.save({"w": torch.arange(9)}))
    assert torch.equal(safetensors.torch.load(place.fs.cat_file(place.path))["w"], torch.arange(9))


def test_archives_and_compressed_files_are_read(place):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a", CONTENT)
        archive.writestr("b", b"b")
    place.put(target.getvalue())
    with place.fs.open(place.path) as file, zipfile.ZipFile(file) as archive:
        assert (archive.read("b"), archive.read("a")) == (b"b", CONTENT)
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name in ("a", "b"):
            member = tarfile.TarInfo(name)
            member.size = len(CONTENT)
            tar.addfile(member, io.BytesIO(CONTENT))
    place.put(target.getvalue())
    with place.fs.open(place.path) as file, tarfile.open(fileobj=file) as tar:
        assert tar.getnames() == ["a", "b"]
        assert tar.extractfile("b").read() == CONTENT
    place.put(gzip.compress(CONTENT))
    with place.fs.open(place.path, compression="gzip") as file:
        assert file.read() == CONTENT


def test_text_is_read_line_by_line(place):
    lines = [json.dumps({"number": number}) for number in range(20_000)]
    place.put("\n".join(lines).encode())
    with place.fs.open(place.path, "r") as file:
        assert [line.rstrip("\n") for line in file] == lines
    place.put(json.dumps({"a": [1, 2]}).encode())
    with place.fs.open(place.path) as file:
        assert json.load(file) == {"a": [1, 2]}
