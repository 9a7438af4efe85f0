"""One byte flipped at rest, on every storage: the manifest finds it, and so does what the storage itself keeps.

SeaweedFS compares its own bytes with its own checksums, and answers 500 when a byte of its disk is flipped: a wrong
object under the right checksum is served by the fault server instead.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from aiohttp import web
from azure.storage.blob import ContentSettings
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from safetensors.torch import save
from servers.azure_gate import AzureGate, Seen
from servers.azurite import AzuriteServer
from servers.ganesha import NfsServer
from servers.gcs_emulator import GcsServer
from servers.hub import HubServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer

import streamer
from streamer import _native

pytestmark = pytest.mark.server

WEIGHTS = {"w": torch.arange(300_000.0), "b": torch.zeros(5)}
SHARD = save(WEIGHTS)
FLIPPED = SHARD[:500_000] + bytes([SHARD[500_000] ^ 8]) + SHARD[500_001:]
NAME = "m.safetensors"


class Place(NamedTuple):
    """A storage: the folder's URL, its options, and a way to put files there, behind everybody's back."""

    url: str
    options: dict[str, Any]
    put: Callable[[dict[str, bytes]], object]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Place]:
    """Return a folder of its own on a storage; only that storage's server is started."""
    own = hashlib.sha256(request.node.name.encode()).hexdigest()[:20]

    def each(put: Callable[[str, bytes], object]) -> Callable[[dict[str, bytes]], object]:
        return lambda files: [put(f"{own}/{name}", data) for name, data in files.items()]

    def of_s3() -> Place:
        server: SeaweedServer = request.getfixturevalue("s3_server")

        def put(key: str, data: bytes) -> None:
            value = base64.b64encode(_native.crc("crc64nvme", data).to_bytes(8, "big")).decode()
            server.client().put_object(Bucket="private", Key=key, Body=data, ChecksumCRC64NVME=value)

        return Place(f"s3://private/{own}", server.storage_options(), each(put))

    def of_gs() -> Place:
        server: GcsServer = request.getfixturevalue("gcs_server")
        put = each(lambda key, data: server.put("private", key, data))
        return Place(f"gs://private/{own}", server.storage_options(), put)

    def of_az() -> Place:
        server: AzuriteServer = request.getfixturevalue("azure_server")
        put = each(lambda name, data: server.put("private", name, data))
        return Place(f"az://private/{own}", server.storage_options(), put)

    def of_hf() -> Place:
        server: HubServer = request.getfixturevalue("hub_server")
        repository = server.make(f"verify/{own}")
        return Place(f"hf://verify/{own}", {"endpoint": server.url, "token": False}, repository.commit)

    def of_folder(folder: Path) -> Callable[[dict[str, bytes]], object]:
        (folder / own).mkdir()
        return each(lambda name, data: (folder / name).write_bytes(data))

    def of_http() -> Place:
        server: NginxServer = request.getfixturevalue("http_server")
        return Place(f"{server.http_url}/open/{own}", {}, of_folder(Path(server.root)))

    def of_nfs() -> Place:
        server: NfsServer = request.getfixturevalue("nfs_server")
        return Place(server.url(own), {}, of_folder(Path(server.export)))

    def of_memory() -> Place:
        return Place(f"memory://{own}", {}, each(lambda name, data: MemoryFileSystem().pipe_file(f"/{name}", data)))

    def of_path() -> Place:
        return Place(f"{tmp_path}/{own}", {}, of_folder(tmp_path))

    known = {
        "path": of_path,
        "s3": of_s3,
        "gs": of_gs,
        "az": of_az,
        "hf": of_hf,
        "http": of_http,
        "nfs": of_nfs,
        "memory": of_memory,
    }
    return lambda name: known[name]()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The manifest of `SHARD`, written on a disk."""
    folder = tmp_path_factory.mktemp("made")
    (folder / NAME).write_bytes(SHARD)
    return Path(streamer.write_manifest(folder).uri).read_bytes()


def checked(place: Place, verify: Any) -> streamer.LoadReport:
    """Load, compare, and give the report."""
    with streamer.stream(place.url, storage_options=place.options, verify=verify) as stream:
        loaded = dict(stream)
    assert all(torch.equal(loaded[name], WEIGHTS[name]) for name in WEIGHTS)
    return stream.report


@pytest.mark.parametrize("storage", ["path", "s3", "gs", "az", "hf", "http", "nfs", "memory"])
def test_a_bit_flipped_at_rest_is_detected_by_the_manifest_on(
    storage: str, place: Callable[[str], Place], manifest: bytes
) -> None:
    there = place(storage)
    there.put({NAME: SHARD, f"{NAME}.manifest.json": manifest})
    assert [each.verified_by for each in checked(there, "manifest").verified] == ["manifest (crc32c)"]
    there.put({NAME: FLIPPED, f"{NAME}.manifest.json": manifest})
    with pytest.raises(streamer.ChecksumError, match="read twice") as caught:
        streamer.load(there.url, storage_options=there.options, verify="manifest")
    assert caught.value.tensor == "w"
    assert caught.value.expected == json.loads(manifest)["shards"][NAME]["tensors"]["w"]["crc32c"]


@pytest.mark.parametrize("storage", ["path", "s3", "gs", "az", "memory"])
def test_a_manifest_is_written_to(storage: str, place: Callable[[str], Place], manifest: bytes) -> None:
    there = place(storage)
    there.put({NAME: SHARD})
    report = streamer.write_manifest(there.url, storage_options=there.options)
    assert report.uri.rstrip("/").endswith(f"{NAME}.manifest.json")
    assert (report.shards, report.tensors, report.bytes) == (1, 2, 1_200_020)
    assert checked(there, "manifest").is_verified


@pytest.mark.parametrize("storage", ["http", "nfs"])
def test_a_manifest_is_not_written_to(storage: str, place: Callable[[str], Place]) -> None:
    there = place(storage)
    there.put({NAME: SHARD})
    with pytest.raises(streamer.UsageError, match=r"cannot be written|does not allow PUT"):
        streamer.write_manifest(there.url, storage_options=there.options)


@pytest.mark.parametrize(
    ("storage", "digest"),
    [
        ("path", None),
        ("s3", "crc64nvme"),
        ("gs", "crc32c"),
        ("az", "md5"),
        ("hf", "sha256"),
        ("http", None),
        ("nfs", None),
        ("memory", None),
    ],
)
def test_what_a_storage_keeps_is_compared_or_said_to_be_missing(
    storage: str, digest: str | None, place: Callable[[str], Place]
) -> None:
    there = place(storage)
    there.put({NAME: SHARD})
    (reported,) = checked(there, "auto").verified
    assert reported.verified_by == digest
    assert reported.remark == (None if digest else "its storage keeps no digest of it")


@pytest.mark.parametrize("storage", ["s3", "gs", "az", "hf"])
def test_a_part_of_an_object_is_never_said_to_be_verified(storage: str, place: Callable[[str], Place]) -> None:
    there = place(storage)
    there.put({NAME: SHARD})
    url = there.url
    with streamer.stream(url, names="b", storage_options=there.options, verify="auto") as stream:
        assert [name for name, _ in stream] == ["b"]
    (reported,) = stream.report.verified
    assert (reported.verified_by, reported.remark) == (None, "only a part of it was read")


def test_gcs_has_a_crc32c_that_finds_a_flipped_bit(place: Callable[[str], Place], gcs_server: GcsServer) -> None:
    there = place("gs")
    there.put({NAME: FLIPPED})
    right = base64.b64encode(_native.crc("crc32c", SHARD).to_bytes(4, "big")).decode()

    def with_the_digest_of_before(seen: Any) -> web.Response | None:
        wants_digest = "crc32c" in seen.query.get("fields", "")
        return web.json_response({"crc32c": right}) if wants_digest else None

    with gcs_server.interfering(with_the_digest_of_before), pytest.raises(streamer.ChecksumError) as caught:
        streamer.load(there.url, storage_options=there.options, verify="auto")
    assert (caught.value.algorithm, caught.value.tensor) == ("crc32c", None)
    assert caught.value.byte_range == (0, len(SHARD))


def test_azure_has_an_md5_that_finds_a_flipped_bit(place: Callable[[str], Place], azure_server: AzuriteServer) -> None:
    there = place("az")
    there.put({NAME: FLIPPED})
    blob = azure_server._client.get_blob_client("private", f"{there.url.rpartition('/')[2]}/{NAME}")
    blob.set_http_headers(ContentSettings(content_md5=bytearray(hashlib.md5(SHARD).digest())))
    with pytest.raises(streamer.ChecksumError, match="md5"):
        streamer.load(there.url, storage_options=there.options, verify="auto")
    blob.set_http_headers(ContentSettings())
    with streamer.stream(there.url, storage_options=there.options, verify="auto") as stream:
        dict(stream)
    assert "without a Content-MD5" in str(stream.report.verified[0].remark)


def test_the_md5_of_a_blob_that_was_appended_to_is_doubted(
    place: Callable[[str], Place], azure_server: AzuriteServer
) -> None:
    there = place("az")
    blob = azure_server._client.get_blob_client("private", f"{there.url.rpartition('/')[2]}/{NAME}")
    blob.create_append_blob(ContentSettings(content_md5=bytearray(hashlib.md5(b"").digest())))
    blob.append_block(SHARD)
    (reported,) = checked(there, "auto").verified
    assert reported.verified_by is None
    assert "appended blocks and written pages do not change it" in str(reported.remark)


@pytest.fixture
def unsigned(place: Callable[[str], Place], azure_server: AzuriteServer) -> Iterator[tuple[AzureGate, Place]]:
    """A blob without Content-MD5 behind a gate that sends checksums of ranges."""
    there = place("az")
    there.put({NAME: SHARD})
    blob = azure_server._client.get_blob_client("private", f"{there.url.rpartition('/')[2]}/{NAME}")
    blob.set_http_headers(ContentSettings())
    with AzureGate(azure_server) as gate:
        yield gate, there._replace(options=gate.storage_options())


def test_azure_sends_a_crc64_of_each_answer(unsigned: tuple[AzureGate, Place]) -> None:
    gate, there = unsigned
    assert [each.verified_by for each in checked(there, "auto").verified] == ["crc64nvme of each answer"]
    assert all(seen.asks_for_crc64 for seen in gate.seen if "range" in seen.headers)
    gate.seen.clear()
    assert checked(there, "off").verified == ()
    assert not any(seen.asks_for_crc64 for seen in gate.seen)


def test_a_part_of_a_blob_is_compared_answer_by_answer_too(unsigned: tuple[AzureGate, Place]) -> None:
    there = unsigned[1]
    with streamer.stream(there.url, names="b", storage_options=there.options, verify="auto") as stream:
        assert [name for name, _ in stream] == ["b"]
    assert stream.report.is_verified


def test_a_blob_is_verified_once_its_last_tensor_is_taken(unsigned: tuple[AzureGate, Place]) -> None:
    """Every answer so far had its checksum, but not all have come."""
    there = unsigned[1]
    with streamer.stream(there.url, storage_options=there.options, verify="auto") as tensors:
        next(tensors)
        assert [check.verified_by for check in tensors.report.verified] == [None]
        for _ in tensors:
            pass
    assert [check.verified_by for check in tensors.report.verified] == ["crc64nvme of each answer"]


def test_azure_is_asked_for_no_more_than_it_sends_a_crc64_of(
    place: Callable[[str], Place], azure_server: AzuriteServer
) -> None:
    there = place("az")
    large = {"w": torch.arange(3_000_000.0)}
    there.put({NAME: save(large)})
    options = streamer.Options(block_bytes=8 << 20, header_bytes=8 << 20)
    with AzureGate(azure_server) as gate:
        loaded = streamer.load(there.url, storage_options=gate.storage_options(), options=options, verify="auto")
    assert torch.equal(loaded["w"], large["w"])
    assert max(seen.size_bytes for seen in gate.seen if seen.asks_for_crc64) == 4 << 20


def test_a_bit_flipped_on_the_way_from_azure_is_read_again(unsigned: tuple[AzureGate, Place]) -> None:
    gate, there = unsigned
    spoilt: list[str] = []

    def spoil_once(seen: Seen, body: bytes) -> bytes:
        if len(body) < 1000 or spoilt:
            return body
        spoilt.append(seen.path)
        return body[:900] + bytes([body[900] ^ 1]) + body[901:]

    gate.spoil = spoil_once
    report = checked(there, "auto")
    assert spoilt
    assert report.is_verified
    gate.spoil = lambda seen, body: body[:-1] + bytes([body[-1] ^ 1])
    with pytest.raises(streamer.ChecksumError, match="the crc64nvme of the range mismatches the server's, read twice"):
        checked(there, "auto")


def test_the_hub_has_a_sha256_that_finds_a_flipped_bit(place: Callable[[str], Place], hub_server: HubServer) -> None:
    there = place("hf")
    before = save({"only": torch.arange(300_001.0)})  # nobody else has it: the second host finds files by their hash
    after = before[:500_000] + bytes([before[500_000] ^ 8]) + before[500_001:]
    there.put({NAME: after})
    hub_server._digests[id(after)] = hashlib.sha256(before).hexdigest()  # as when it was uploaded
    try:
        with pytest.raises(streamer.ChecksumError, match="sha256"):
            streamer.load(there.url, storage_options=there.options, verify="auto")
    finally:
        del hub_server._digests[id(after)]


def test_a_target_in_place_goes_through_a_hash_too(place: Callable[[str], Place], hub_server: HubServer) -> None:
    there = place("hf")
    there.put({NAME: SHARD})
    target = {name: torch.zeros_like(tensor) for name, tensor in WEIGHTS.items()}
    report = streamer.load_into(f"{there.url}/{NAME}", target, storage_options=there.options, verify="auto")
    assert [each.verified_by for each in report.verified] == ["sha256"]
    assert all(torch.equal(target[name], WEIGHTS[name]) for name in WEIGHTS)


@pytest.mark.parametrize("storage", ["gs", "s3"])
def test_a_manifest_that_may_not_be_written_is_an_error(
    storage: str, place: Callable[[str], Place], s3_server: SeaweedServer, gcs_server: GcsServer
) -> None:
    there = place(storage)
    if storage == "gs":
        options = gcs_server.storage_options("reader")
        there.put({NAME: SHARD})
        url = f"{there.url}/{NAME}"
    else:
        options = s3_server.storage_options(s3_server.limited)
        s3_server.put("shared", f"verify/{NAME}", SHARD)
        url = f"s3://shared/verify/{NAME}"
    with pytest.raises(streamer.AccessDeniedError):
        streamer.write_manifest(url, storage_options=options)


def test_an_archive_and_a_file_system_without_writing_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("model/m.safetensors", SHARD)
    with pytest.raises(streamer.UsageError, match="cannot be written"):
        streamer.write_manifest(f"zip://model::file://{tmp_path}/m.zip")

    class ReadOnly(MemoryFileSystem):
        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            if mode != "rb":
                raise NotImplementedError
            return super()._open(path, mode, **options)

    ReadOnly().store[f"/{tmp_path.name}.safetensors"] = MemoryFile(ReadOnly(), f"/{tmp_path.name}.safetensors", SHARD)
    with pytest.raises(streamer.UsageError, match="cannot be written"):
        streamer.write_manifest(f"/{tmp_path.name}.safetensors", fs=ReadOnly())
