"""Saves to web servers by ``PUT``, over a real nginx: equal, created only where nothing is, and refusals that help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from servers.forwarding import Fault, ForwardingProxy
from servers.nginx import NginxServer

import streamer

TENSORS = {name: torch.full((1 << 19,), float(at)) for at, name in enumerate("abc")}  # of 2 MiB each


def is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def folder(http_server: NginxServer, tmp_path: Path) -> Path:
    return http_server.root / "saved" / tmp_path.name


def url_of(folder: Path, server: NginxServer, location: str = "dav", port: int | None = None) -> str:
    return f"http://127.0.0.1:{port or server.http_port}/{location}/{folder.relative_to(server.root)}"


@pytest.mark.parametrize("most", ["5GB", "2MiB", 400])
def test_a_checkpoint_is_saved_loaded_and_replaced(most: int | str, folder: Path, http_server: NginxServer) -> None:
    url = url_of(folder, http_server)
    for value in (1.0, 2.0):
        tensors = {name: tensor + value for name, tensor in TENSORS.items()}
        report = streamer.save(tensors, url, max_shard_bytes=most, overwrite=value > 1)
        assert is_equal(streamer.load(url, verify="manifest"), tensors)
        assert sorted(each.name for each in folder.iterdir()) == sorted(report.files)
    with pytest.raises(streamer.UsageError, match="already"):
        streamer.save(TENSORS, url)


@pytest.mark.parametrize("most", ["5GB", "2MiB"])
def test_a_manifest_is_written_and_replaced_regression(most: str, folder: Path, http_server: NginxServer) -> None:
    url = url_of(folder, http_server)
    streamer.save(TENSORS, url, max_shard_bytes=most, digests=False)
    with pytest.raises(streamer.ObjectNotFoundError, match="no manifest"):
        streamer.load(url, verify="manifest")
    for _ in range(2):
        assert streamer.write_manifest(url).uri == f"{url}/model.safetensors.manifest.json"
    assert is_equal(streamer.load(url, verify="manifest"), TENSORS)


def test_a_manifest_that_a_server_does_not_take_is_an_error_that_says_what_to_do(
    folder: Path, http_server: NginxServer
) -> None:
    streamer.save(TENSORS, url_of(folder, http_server), digests=False)
    with pytest.raises(streamer.UsageError, match=r"does not allow PUT.*dav_methods PUT DELETE"):
        streamer.write_manifest(url_of(folder, http_server, "open"))
    assert [each.name for each in folder.iterdir()] == ["model.safetensors"]


def test_a_second_writer_is_told(folder: Path, http_server: NginxServer) -> None:
    def meanwhile(done: int, total: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"first")

    with pytest.raises(streamer.ChangedError, match="not saved: another program has written it meanwhile"):
        streamer.save({"a": torch.ones(10)}, url_of(folder, http_server), progress=meanwhile)
    assert [each.name for each in folder.iterdir()] == ["model.safetensors"]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("fault", ["refuse", "lose", "stall"])
def test_a_fault_that_passes_does_no_harm(fault: Fault, folder: Path, http_server: NginxServer) -> None:
    left = {"model.safetensors": 1, "manifest.json": 1}

    def decide(method: str, path: str) -> Fault:
        name = path.rpartition("/")[2].removeprefix("model.safetensors.") or "model.safetensors"
        if method != "PUT" or not left.get(name):
            return None
        left[name] -= 1
        return fault

    with ForwardingProxy(http_server.http_port, decide) as proxy:
        url = url_of(folder, http_server, port=proxy.port)
        streamer.save(TENSORS, url, options=streamer.Options(first_byte_timeout_s=2.0))
    assert not any(left.values())
    assert is_equal(streamer.load(folder, verify="manifest"), TENSORS)


def test_a_server_that_honours_the_condition_is_believed(folder: Path, http_server: NginxServer) -> None:
    """nginx ignores ``If-None-Match`` of a PUT, so the proxy answers as Apache does."""

    def decide(method: str, path: str) -> Fault:
        if method != "PUT":
            return None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"first")
        return 412, b""

    with ForwardingProxy(http_server.http_port, decide) as proxy, pytest.raises(streamer.ChangedError):
        streamer.save(TENSORS, url_of(folder, http_server, port=proxy.port))
    assert (folder / "model.safetensors").read_bytes() == b"first"


@pytest.mark.parametrize(
    ("location", "error", "message"),
    [
        ("open", streamer.UsageError, r"The server does not allow PUT for this URL.*dav_methods PUT DELETE"),
        ("small", streamer.StorageError, r"larger than the server accepts.*client_max_body_size"),
        ("forbidden", streamer.AccessDeniedError, "refuses access"),
    ],
)
def test_a_server_that_takes_none_is_an_error_that_says_what_to_do(
    location: str, error: type[Exception], message: str, folder: Path, http_server: NginxServer
) -> None:
    folder.mkdir(parents=True)
    with pytest.raises(error, match=message):
        streamer.save({"a": torch.ones(200_000 if location == "small" else 2)}, url_of(folder, http_server, location))
    assert [*folder.iterdir()] == []


def test_a_file_that_is_too_large_for_one_request_is_refused(folder: Path, http_server: NginxServer) -> None:
    with pytest.raises(streamer.UsageError, match=r"256 MiB at most.*max_shard_bytes"):
        streamer.save({"a": torch.zeros(65 << 20)}, url_of(folder, http_server))
    assert not folder.exists()
