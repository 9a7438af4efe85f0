"""One checkpoint, on every storage: each load is equal to the local one, bit for bit.

The example plug-in's two schemes are loaded in ``tests/packaging/test_example_plugin.py``, from an environment of their
own.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.hub import HubServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer

import streamer

Place = tuple[str, dict[str, Any]]


@pytest.fixture
def places(request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path) -> Callable[[str], Place]:
    """Return URL and options of the checkpoint on a storage; only that storage's server is started."""

    def s3() -> tuple[SeaweedServer, str]:
        return request.getfixturevalue("s3_server"), request.getfixturevalue("s3_checkpoint")

    def of_s3() -> Place:
        server, url = s3()
        return url, server.storage_options()

    def of_cache() -> Place:
        server, url = s3()
        return f"simplecache::{url}", {"s3": server.storage_options(), "simplecache": {"cache_storage": str(tmp_path)}}

    def of_zip() -> Place:
        server, _ = s3()
        with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
            for path in checkpoint.iterdir():
                archive.write(path, f"model/{path.name}")
        server.put("private", "conformance/model.zip", (tmp_path / "model.zip").read_bytes())
        return "zip://model::s3://private/conformance/model.zip", {"s3": server.storage_options()}

    def of_gs() -> Place:
        server: GcsServer = request.getfixturevalue("gcs_server")
        return request.getfixturevalue("gcs_checkpoint"), server.storage_options()

    def of_az() -> Place:
        server: AzuriteServer = request.getfixturevalue("azure_server")
        return request.getfixturevalue("azure_checkpoint"), server.storage_options()

    def of_abfs() -> Place:
        url, options = of_az()
        return url.replace("az://", "abfs://"), options

    def of_http() -> Place:
        server: NginxServer = request.getfixturevalue("http_server")
        return f"{server.http_url}/open/model", {}

    def of_https() -> Place:
        server: NginxServer = request.getfixturevalue("https_server")
        return f"{server.https_url}/open/model", {"verify": server.ca_file}

    def of_hf() -> Place:
        server: HubServer = request.getfixturevalue("hub_server")
        server.upload_folder(checkpoint, "conformance/model")
        return "hf://conformance/model", {"endpoint": server.url, "token": False}

    def of_nfs() -> Place:
        return request.getfixturevalue("nfs_checkpoint"), {}

    def of_memory() -> Place:
        MemoryFileSystem().put(str(checkpoint), "/conformance/", recursive=True)
        return f"memory://conformance/{checkpoint.name}", {}

    known: dict[str, Callable[[], Place]] = {
        "path": lambda: (str(checkpoint), {}),
        "file://": lambda: (checkpoint.as_uri(), {}),
        "s3://": of_s3,
        "gs://": of_gs,
        "az://": of_az,
        "abfs://": of_abfs,
        "http://": of_http,
        "https://": of_https,
        "hf://": of_hf,
        "nfs://": of_nfs,
        "memory://": of_memory,
        "simplecache::s3://": of_cache,
        "zip://…::s3://": of_zip,
    }
    return lambda name: known[name]()


@pytest.mark.parametrize(
    ("storage", "reader"),
    [
        ("path", "file"),
        ("file://", "file"),
        ("s3://", "http"),
        ("gs://", "http"),
        ("az://", "http"),
        ("abfs://", "http"),
        ("http://", "http"),
        ("https://", "http"),
        ("hf://", "http"),
        ("nfs://", "nfs"),
        ("memory://", "python"),
        ("simplecache::s3://", "python"),
        ("zip://…::s3://", "python"),
    ],
)
def test_a_checkpoint_is_bit_equal_from(
    storage: str, reader: str, places: Callable[[str], Place], checkpoint: Path
) -> None:
    uri, options = places(storage)
    with streamer.stream(uri, storage_options=options, order="file") as stream:
        loaded = dict(stream)
    expected = streamer.load(checkpoint)
    assert list(loaded) == list(expected)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    assert set(stream.report.readers) == {reader}
