"""The cache of a machine: what one load read, the next one reads from the disk, and never a wrong byte."""

from __future__ import annotations

import os
import struct
import threading
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import assert_same
from safetensors.numpy import save
from servers.one_file import DATA, FILES, TENSORS, is_block, one_file, place_of
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from streamer import _native

WRITTEN_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def options(folder: Path) -> streamer.Options:
    return streamer.Options(cache_dir=folder)


def written() -> None:
    """Wait until the cache has what was read."""
    assert _native.finish_cache_writes(WRITTEN_S)


def data_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("v1/*/data"))


def blocks_of(server) -> int:
    return sum(is_block(request) for request in server.requests)


def load(server, options, storage="s3", **how):
    uri, storage_options = place_of(storage, server)
    how = {"framework": "np", "storage_options": storage_options, "options": options, **how}
    with streamer.stream(uri, **how) as stream:
        tensors = dict(stream)
    written()
    return tensors, stream.report


def assert_right(tensors, expected=TENSORS):
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(np.asarray(tensors[name]), tensor)


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


FIRST_READ_BYTES = 16384  # a shard's header and what lies beside it: one piece, which wrong bytes would make unsound
RECORD = struct.Struct("<IIQQIII")  # magic, kind, begin, bytes, CRC32C, spare, CRC32C of all this


def poison(data: Path, *, is_header: bool = False) -> None:
    """Change a byte of each piece, and record it with the checksum that it now has: as if the server had sent it so."""
    content, journal = bytearray(data.read_bytes()), data.with_name("journal")
    records = [
        (magic, kind, begin, size, spare)
        for magic, kind, begin, size, _, spare, _ in RECORD.iter_unpack(journal.read_bytes())
        if (begin == 0 if is_header else begin + size // 2 >= FIRST_READ_BYTES)
    ]
    for place in {begin + size // 2 if begin else 8 for _, _, begin, size, _ in records}:  # once, of repeated records
        content[place] ^= 1
    data.write_bytes(content)
    for magic, kind, begin, size, spare in records:
        crc = _native.crc("crc32c", bytes(content[begin : begin + size]))
        fields = RECORD.pack(magic, kind, begin, size, crc, spare, 0)[:-4]
        with open(journal, "ab") as file:
            file.write(fields + struct.pack("<I", _native.crc("crc32c", fields)))


@pytest.mark.parametrize("storage", FILES)
def test_the_second_load_asks_for_the_version_and_for_no_byte(options, storage):
    with one_file() as server:
        tensors, report = load(server, options, storage)
        assert_right(tensors)
        assert report.cached_bytes < 100  # what lies beside the header, which was read a moment ago
        asked, blocks = len(server.requests), blocks_of(server)
        tensors, report = load(server, options, storage)
        assert_right(tensors)
        assert blocks_of(server) == blocks > 0
        assert len(server.requests) > asked
        assert report.cached_bytes == report.bytes == sum(tensor.nbytes for tensor in TENSORS.values())
        assert report.bytes_read == 0
        assert report.remarks == ()
        assert "from the cache" in str(report)


def test_a_replaced_object_is_read_again(options):
    with one_file() as server:
        load(server, options)
        other = {"weight": TENSORS["weight"] + 1, "bias": TENSORS["bias"]}
        server.data, server.etag = save(other), '"v2"'
        for cached in (False, True):
            tensors, report = load(server, options)
            assert_right(tensors, other)
            assert (report.cached_bytes == report.bytes) == cached


def test_two_servers_with_one_bucket_name_share_nothing(options):
    other = {"weight": TENSORS["weight"] * 2, "bias": TENSORS["bias"]}
    with one_file() as server, one_file(data=save(other)) as stranger:
        load(server, options)
        tensors, report = load(stranger, options)
        assert_right(tensors, other)
        assert report.cached_bytes < 100


def test_a_flipped_bit_costs_one_tensor_and_is_mended(options, folder):
    with one_file() as server:
        load(server, options)
        flip(data_files(folder)[0], 200_000)
        before = blocks_of(server)
        tensors, report = load(server, options)
        assert_right(tensors)
        assert 0 < report.cached_bytes < report.bytes
        assert blocks_of(server) > before
        load(server, options)  # reads what lay beside the damage, in the piece with the header
        tensors, report = load(server, options)
        assert_right(tensors)
        assert report.cached_bytes == report.bytes


@pytest.mark.parametrize("damage", ["truncated", "emptied", "removed", "journal torn", "journal damaged"])
def test_whatever_becomes_of_its_files_the_bytes_are_right(options, folder, damage):
    with one_file() as server:
        load(server, options)
        (data,) = data_files(folder)
        journal = data.with_name("journal")
        if damage == "truncated":
            os.truncate(data, 100_000)
        elif damage == "emptied":
            os.truncate(data, 0)
        elif damage == "removed":
            data.unlink()
        elif damage == "journal torn":
            os.truncate(journal, journal.stat().st_size - 5)
        else:
            journal.write_bytes(os.urandom(journal.stat().st_size))
        for _ in range(3):  # the second may read what lay beside the damage, in the piece with the header
            tensors, report = load(server, options)
            assert_right(tensors)
        assert report.cached_bytes == report.bytes


@pytest.mark.server
def test_wrong_bytes_that_were_cached_are_found_by_a_manifest_and_forgotten(
    s3_server, checkpoint, reference, options, folder
):
    uri = s3_server.upload_folder(checkpoint, "private", "models/verified")
    how = {"storage_options": s3_server.storage_options(), "options": options}
    streamer.write_manifest(uri, storage_options=how["storage_options"])
    assert_same(streamer.load(uri, **how), reference)
    written()
    poison(data_files(folder)[0])
    assert_same(streamer.load(uri, verify="manifest", **how), reference)
    written()
    with streamer.stream(uri, **how) as stream:
        assert_same(dict(stream), reference)
    assert stream.report.cached_bytes > 0


def checksummed(_request, answer):
    """Answer as S3 does for an object that was uploaded with a checksum."""
    checksum = _native.crc("crc32c", DATA).to_bytes(4, "big")
    answer.headers |= {"x-amz-checksum-crc32c": b64encode(checksum).decode(), "x-amz-checksum-type": "FULL_OBJECT"}


def test_wrong_bytes_that_were_cached_are_found_by_the_storages_digest_and_forgotten(options, folder):
    with one_file(checksummed) as server:
        load(server, options, verify="auto")
        report = load(server, options, verify="auto")[1]
        assert report.is_verified
        assert report.cached_bytes == report.bytes
        poison(data_files(folder)[0])
        uri, storage_options = place_of("s3", server)
        how = {"framework": "np", "storage_options": storage_options, "options": options}
        assert_right(streamer.load(uri, verify="auto", **how))  # which reads the object again
        written()
        report = load(server, options, verify="auto")[1]
        assert report.cached_bytes == report.bytes
        poison(data_files(folder)[0])
        with pytest.raises(streamer.ChecksumError):  # a stream has handed out the others by then
            load(server, options, verify="auto")
        written()
        assert_right(load(server, options)[0])
        assert load(server, options, verify="auto")[1].is_verified


def test_a_wrong_header_that_was_cached_fails_no_load(options, folder):
    with one_file() as server:
        load(server, options)
        poison(data_files(folder)[0], is_header=True)
        for _ in range(2):
            tensors, report = load(server, options)
            assert_right(tensors)
        assert report.cached_bytes == report.bytes


def test_what_is_read_by_rows_and_by_names_is_cached_too(options, folder):
    with one_file() as server:
        uri, storage_options = place_of("s3", server)
        how = {"storage_options": storage_options, "options": options, "framework": "np"}
        with streamer.open(uri, **how) as checkpoint:
            np.testing.assert_array_equal(checkpoint["weight"][10_100:10_200], TENSORS["weight"][10_100:10_200])
            written()
            before = blocks_of(server)
            np.testing.assert_array_equal(checkpoint["weight"][10_100:10_200], TENSORS["weight"][10_100:10_200])
            np.testing.assert_array_equal(checkpoint["weight"][10_120:10_180], TENSORS["weight"][10_120:10_180])
            assert blocks_of(server) == before
            np.testing.assert_array_equal(checkpoint["weight"][10_050:10_150], TENSORS["weight"][10_050:10_150])
            assert blocks_of(server) > before
        load(server, options)
        before = blocks_of(server)
        with streamer.open(uri, **how) as checkpoint:
            np.testing.assert_array_equal(checkpoint["weight"][11:59_000], TENSORS["weight"][11:59_000])
            np.testing.assert_array_equal(checkpoint.get_tensor("bias"), TENSORS["bias"])
        assert blocks_of(server) == before


def test_a_module_is_filled_from_the_cache(options):
    with one_file() as server:
        uri, storage_options = place_of("s3", server)
        how = {"storage_options": storage_options, "options": options}
        for _ in range(2):
            target = {name: torch.zeros_like(torch.from_numpy(tensor)) for name, tensor in TENSORS.items()}
            report = streamer.load_into(uri, target, **how)
            written()
            assert_right(target)
        assert report.cached_bytes == report.bytes


def test_the_environment_names_the_folder_and_an_empty_option_overrules_it(folder, monkeypatch):
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(folder))
    with one_file() as server:
        load(server, streamer.Options(cache_dir=""))
        assert not folder.exists()
        load(server, None)
        assert load(server, None)[1].cached_bytes > 0
        assert load(server, streamer.Options(cache_dir=""))[1].cached_bytes == 0


def test_files_of_this_machine_are_not_cached_and_no_remark_says_so(tmp_path, options, folder):
    (tmp_path / "a.safetensors").write_bytes(save(TENSORS))
    with streamer.stream(str(tmp_path / "a.safetensors"), framework="np", options=options) as stream:
        assert_right(dict(stream))
    assert stream.report.remarks == ()
    assert data_files(folder) == []


def test_a_version_that_does_not_name_the_bytes_is_not_cached_and_a_remark_says_why(options, folder):
    def script(_request, answer):
        answer.headers.pop("Last-Modified", None)
        answer.headers["ETag"] = 'W/"v1"'

    with one_file(script) as server:
        tensors, report = load(server, options, "http")
        assert_right(tensors)
        assert any("weak ETag" in remark for remark in report.remarks)
        assert data_files(folder) == []


@pytest.mark.server
def test_whole_checkpoints_over_s3_send_no_weights_twice(s3_server, checkpoint, reference, options):
    uri = s3_server.upload_folder(checkpoint, "private", "models/cached")
    with TcpProxy(s3_server.port, http_requests) as proxy:
        how = {"storage_options": s3_server.storage_options() | {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}}
        assert_same(streamer.load(uri, options=options, **how), reference)
        written()
        first = proxy.passed_bytes
        assert_same(streamer.load(uri, options=options, **how), reference)
        second = proxy.passed_bytes - first
        model = sum(tensor.nbytes for tensor in reference.values())
        assert first > model
        assert second < 100_000  # listings and the index
        with streamer.stream(uri, options=options, **how) as stream:  # of another process of this user
            assert_same(dict(stream), reference)
        assert stream.report.cached_bytes == model


def test_several_loads_at_once_fill_one_cache(options, folder):
    with one_file() as server:
        results: list[object] = []

        def run() -> None:
            uri, storage_options = place_of("s3", server)
            tensors = streamer.load(uri, framework="np", storage_options=storage_options, options=options)
            results.append(tensors)

        threads = [threading.Thread(target=run) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for tensors in results:
            assert_right(tensors)
        assert len(results) == 6
        written()
        assert load(server, options)[1].cached_bytes > 0
        assert len(data_files(folder)) == 1


def test_the_report_counts_what_compressed_arrays_took_from_the_cache_regression(
    s3_server: SeaweedServer, options: streamer.Options, tmp_path: Path
) -> None:
    array = np.random.default_rng(1).integers(0, 16, 400_000).astype("f4")
    np.savez_compressed(tmp_path / "x.npz", a=array)
    size_bytes = (tmp_path / "x.npz").stat().st_size
    s3_server.put("private", f"{tmp_path.name}/x.npz", (tmp_path / "x.npz").read_bytes())
    reports = []
    for _ in range(2):
        uri, how = f"s3://private/{tmp_path.name}/x.npz", s3_server.storage_options()
        with streamer.stream(uri, framework="np", storage_options=how, options=options) as stream:
            np.testing.assert_array_equal(dict(stream)["a"], array)
        written()
        reports.append(stream.report)
    first, second = reports
    assert first.cached_bytes <= 1 << 20  # what the index has read of the array
    assert second.cached_bytes >= 0.9 * size_bytes
    assert second.bytes_read <= 0.1 * size_bytes
