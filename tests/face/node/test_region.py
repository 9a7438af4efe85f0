"""The shared memory of a meeting, and the messages: sealed, checked, and never a wrong byte."""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import socket
import struct
from dataclasses import replace

import pytest

from streamer.core.engine.session import SourceObject
from streamer.core.node.messages import Channel, ChannelClosedError
from streamer.core.node.region import Region
from streamer.core.node.share import key_of
from streamer.core.node.should_share import is_shareable
from streamer.core.store.sources import FileSource, HttpSource, NfsSource, PythonSource


@pytest.fixture
def region():
    made = Region.create(3, 8192)
    yield made
    made.close()


def filled(region: Region, slot: int, value: int) -> None:
    copy = os.dup(region.descriptor)
    offset = region.address(slot) - region.address(0) + 4096
    os.pwrite(copy, bytes([value]) * 8192, offset)
    os.close(copy)


def test_a_copy_is_of_the_slot_and_the_generation(region):
    region.lend(1, 5)
    filled(region, 1, 7)
    copied = []
    assert region.copy(1, 50, 5, lambda address: copied.append(ctypes.string_at(address, 100)))
    assert copied == [bytes([7]) * 100]
    region.lend(1, 6)
    assert not region.copy(1, 50, 5, lambda _: None)


def test_a_slot_that_is_lent_again_during_a_copy_is_noticed(region):
    region.lend(1, 5)
    assert not region.copy(1, 0, 5, lambda _: region.lend(1, 6))


def test_another_process_sees_the_same_memory(region):
    filled(region, 2, 9)
    other = Region(io.FileIO(os.dup(region.descriptor), "r+"), 3, 8192)
    copied = []
    assert other.copy(2, 0, 0, lambda address: copied.append(ctypes.string_at(address, 8192)))
    assert copied == [bytes([9]) * 8192]
    other.close()


def test_the_size_of_the_region_cannot_change(region):
    for size in (4096, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(region.descriptor, size)


def test_memory_without_seals_or_of_another_size_is_refused():
    plain = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.ftruncate(plain, 1 << 20)
    with pytest.raises(ValueError, match="not sealed"):
        Region(io.FileIO(os.dup(plain), "r+"), 1, 8192)
    fcntl.fcntl(plain, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    with pytest.raises(ValueError, match="too small"):
        Region(io.FileIO(os.dup(plain), "r+"), 1 << 10, 8192)
    os.close(plain)


def test_a_closed_region_copies_nothing_and_leaves_no_descriptor():
    made = Region.create(1, 4096)
    descriptor = made.descriptor
    made.close()
    made.close()
    assert not made.copy(0, 0, 0, pytest.fail)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.fixture
def pair():
    sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channels = [Channel(each) for each in sockets]
    yield channels, sockets
    for channel in channels:
        channel.close()


def test_a_message_comes_whole_however_long_it_is(pair):
    (one, other), _ = pair
    message = ["join", [[number, 0, 1] for number in range(200_000)]]
    one.send(message)
    assert one.has_unsent  # more than the socket takes
    received = []
    while not received:
        one.flush()
        received = other.receive()
    assert received == [message]
    assert other.receive() == []


def test_a_descriptor_comes_with_the_first_message(pair, region):
    (one, other), (_, waiting) = pair
    one.send(["welcome", 1, 2], [region.descriptor])
    waiting.setblocking(True)
    messages, memory = other.receive_memory()
    assert messages == [["welcome", 1, 2]]
    assert os.fstat(memory.fileno()).st_ino == os.fstat(region.descriptor).st_ino
    memory.close()


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", struct.pack("=I", 2) + b"{}", struct.pack("=I", 3) + b"no!"])
def test_what_is_no_message_is_refused(pair, data):
    (_, other), (sending, _) = pair
    sending.send(data)
    with pytest.raises(ValueError):  # noqa: PT011  of json or of ours
        other.receive()


def test_the_end_of_the_other_side_is_noticed(pair):
    (one, other), _ = pair
    one.close()
    with pytest.raises(ChannelClosedError):
        other.receive()
    with pytest.raises(ChannelClosedError):
        other.send(["alive"])


def http(identity: str = "a", **how: object) -> SourceObject:
    source = HttpSource("http://host/bucket/key?signature=1", **how)  # type: ignore[arg-type]
    return SourceObject("s3://bucket/key", source, 10, '"etag"', identity=identity)


def test_only_objects_of_a_network_with_a_known_version_and_identity_are_shared():
    assert is_shareable(http())
    assert is_shareable(http(version_header=None))  # its URL names the version
    assert is_shareable(SourceObject("nfs://a", NfsSource("nfs://a/b"), 1, "7", identity="a"))
    for source in (FileSource("/a"), PythonSource(lambda *_: 0), NfsSource("nfs://a/b")):
        version = "" if isinstance(source, NfsSource) else "7"
        assert not is_shareable(SourceObject("u", source, 1, version, identity="a"))
    assert not is_shareable(SourceObject("u", HttpSource("http://a/b"), 1, identity="a"))
    assert not is_shareable(http(""))


def test_processes_meet_over_the_same_versions_of_the_same_objects():
    key = key_of([http()])
    assert key == key_of([replace(http(), uri="s3a://bucket/key")])
    others = [[http("b")], [http(), http()], [replace(http(), version='"other"')], [replace(http(), size_bytes=11)]]
    assert len({key, *map(key_of, others)}) == 5
