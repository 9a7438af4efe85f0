"""Peers that give wrong bytes with a matching checksum: who believes them, and what refuses them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save
from servers.scripted_peer import giving, peer_that
from servers.writable import writable

import streamer
from streamer import _native
from streamer.core.peers import joining

TENSORS = {f"layer{number}": np.arange(number, number + 500_000, dtype=np.float32) for number in range(4)}
DATA = save(TENSORS)
MANIFEST = "model.safetensors.manifest.json"


def lie(data: bytes) -> bytes:
    """Change each tensor, and so its CRC32C."""
    lied = bytearray(data)
    for tensor in range(len(TENSORS)):
        lied[len(data) - 2_000_000 * tensor - 1_000_000] ^= 64
    return bytes(lied)


def forge(data: bytes) -> bytes:
    """Change each tensor, and not its CRC32C: by a multiple of the polynomial."""
    forged = bytearray(data)
    pattern = (0x82F63B78 << 1 | 1).to_bytes(5, "little")
    for tensor in range(len(TENSORS)):
        begin = len(data) - 2_000_000 * tensor - 1_000_000
        forged[begin : begin + 5] = bytes(one ^ other for one, other in zip(forged[begin:], pattern, strict=False))
    return bytes(forged)


LIED, FORGED = lie(DATA), forge(DATA)


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", "a-token-of-the-tests")
    yield
    joining.leave_peers()


@pytest.fixture
def storage():
    with writable("s3") as storage:
        storage.objects["bkt/model.safetensors"] = DATA, {"ETag": '"1"'}
        yield storage


def stream(storage, cache_dir, peers=(), share=None, **how):
    """Load; return the tensors that are wrong, and the report."""
    options = streamer.Options(cache_dir=cache_dir, peers=peers or None, share=share)
    how = {"framework": "np", "storage_options": storage.options(), "options": options} | how
    with streamer.stream(storage.uri("model.safetensors"), **how) as stream:
        tensors = dict(stream)
    assert _native.finish_cache_writes(30)
    wrong = {name for name, tensor in TENSORS.items() if not np.array_equal(tensors[name], tensor)}
    return wrong, stream.report


def test_a_forged_tensor_has_the_checksum_of_the_right_one():
    begin = len(DATA) - 2_000_000
    assert FORGED[begin:] != DATA[begin:]
    assert _native.crc("crc32c", FORGED[begin:]) == _native.crc("crc32c", DATA[begin:])
    assert _native.crc("crc32c", LIED[begin:]) != _native.crc("crc32c", DATA[begin:])


def test_without_a_manifest_a_peer_with_the_token_is_believed(storage, tmp_path):
    with peer_that(giving, LIED) as peer:
        wrong, report = stream(storage, tmp_path, [peer.address])
    assert wrong == set(TENSORS)
    assert report.peer_bytes == {peer.address: report.bytes}


@pytest.mark.parametrize("digest", ["crc32c", "sha256"])
@pytest.mark.parametrize("data", [LIED, FORGED])
def test_bytes_of_a_peer_that_differ_from_the_manifest_are_read_from_the_storage(storage, tmp_path, digest, data):
    streamer.write_manifest(storage.uri("model.safetensors"), storage_options=storage.options(), digest=digest)
    is_forgery_believed = digest == "crc32c" and data is FORGED
    with peer_that(giving, data) as peer:
        wrong, report = stream(storage, tmp_path, [peer.address], verify="manifest")
        assert peer.given > 0
    assert wrong == (set(TENSORS) if is_forgery_believed else set())
    assert report.is_verified
    assert [each.verified_by for each in report.verified] == [f"manifest ({digest})"]
    assert report.peer_bytes == ({peer.address: report.bytes} if is_forgery_believed else {})
    if not is_forgery_believed:
        wrong, report = stream(storage, tmp_path)  # the cache holds all bytes, and they are right
        assert (wrong, report.cached_bytes) == (set(), report.bytes)


@pytest.mark.parametrize("digest", ["crc32c", "sha256"])
def test_processes_that_share_and_verify_believe_no_peer(storage, tmp_path, digest):
    streamer.write_manifest(storage.uri("model.safetensors"), storage_options=storage.options(), digest=digest)
    with peer_that(giving, FORGED) as peer:
        wrong, report = stream(storage, tmp_path, [peer.address], share="node", verify="manifest")
    assert (wrong, report.peer_bytes, peer.given) == (set(), {}, 0)


def test_a_lie_in_the_cache_is_forgotten_by_a_shared_load(storage, tmp_path):
    uri, storage_options = storage.uri("model.safetensors"), storage.options()
    streamer.write_manifest(uri, storage_options=storage_options, digest="sha256")
    with peer_that(giving, FORGED) as peer:
        options = streamer.Options(cache_dir=tmp_path, peers=[peer.address])
        how = {"framework": "np", "storage_options": storage_options, "options": options, "names": ["layer1"]}
        with streamer.stream(uri, **how) as tensors:
            ((_, lied),) = tensors
    assert not np.array_equal(lied, TENSORS["layer1"])  # without verify=, the peer is believed
    assert _native.finish_cache_writes(30)
    with pytest.raises(streamer.ChecksumError):
        stream(storage, tmp_path, share="node", verify="manifest")
    assert stream(storage, tmp_path, share="node", verify="manifest")[0] == set()


def test_a_peer_that_is_right_gives_what_a_hash_confirms(storage, tmp_path):
    streamer.write_manifest(storage.uri("model.safetensors"), storage_options=storage.options(), digest="sha256")
    with peer_that(giving, DATA) as peer:
        wrong, report = stream(storage, tmp_path, [peer.address], verify="manifest")
    assert wrong == set()
    assert report.peer_bytes == {peer.address: report.bytes}


def test_a_wrong_manifest_is_an_error_although_peer_and_storage_agree(storage, tmp_path):
    streamer.write_manifest(storage.uri("model.safetensors"), storage_options=storage.options(), digest="sha256")
    written, about = storage.objects["bkt/" + MANIFEST]
    document = json.loads(written)
    document["shards"]["model.safetensors"]["tensors"]["layer2"]["sha256_of_pieces"] = "0" * 64
    storage.objects["bkt/" + MANIFEST] = json.dumps(document).encode(), {**about, "ETag": '"2"'}
    storage.log.clear()
    with peer_that(giving, DATA) as peer, pytest.raises(streamer.ChecksumError, match="sha256 of tensor") as caught:
        stream(storage, tmp_path, [peer.address], verify="manifest")
    assert (caught.value.tensor, caught.value.algorithm, caught.value.expected) == ("layer2", "sha256", "0" * 64)
    ranges = [each.headers.get("range", "bytes=0-0")[6:].split("-") for each in storage.log if each.step == "read"]
    assert (
        sum(int(last) + 1 - int(first) for first, last in ranges) < 3 * 2_000_000
    )  # of the tensor: two reads, no more


def test_the_digest_of_a_whole_file_on_the_hub_refuses_a_peer(hub_server, tmp_path):
    hub_server.make("org/lied").commit({"model.safetensors": DATA})
    options = {"endpoint": hub_server.url, "token": False}

    def load(cache_dir, peers, **how):
        own = streamer.Options(cache_dir=cache_dir, peers=peers)
        return streamer.load("hf://org/lied", framework="np", storage_options=options, options=own, **how)

    with peer_that(giving, LIED) as peer:
        assert not np.array_equal(load(tmp_path / "1", [peer.address])["layer1"], TENSORS["layer1"])
        tensors = load(tmp_path / "2", [peer.address], verify="auto")
        assert peer.given > 0
    assert _native.finish_cache_writes(30)
    for found in (tensors, load(tmp_path / "2", None, verify="auto"), load(tmp_path / "2", None)):
        assert all(np.array_equal(found[name], tensor) for name, tensor in TENSORS.items())
