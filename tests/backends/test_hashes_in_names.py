"""A `#` in a URL: a letter of the key in an object store, and never a reason to read another object."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from azure.core.exceptions import ResourceExistsError
from pulls import visible
from safetensors.numpy import save
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.hub import HubServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._check import check

pytestmark = pytest.mark.server

MEANT = save({"a": np.array([1.0])})
OTHER = save({"a": np.array([2.0])})
FILES = {
    "h/m/model.safetensors": OTHER,
    "h/m#2/model.safetensors": MEANT,
    "h/one.safetensors": OTHER,
    "h/one#1.safetensors": MEANT,
}
Place = tuple[str, dict[str, Any]]


def _uploaded(put: Callable[[str, str, bytes], Any], bucket: str) -> None:
    for name, data in FILES.items():
        put(bucket, name, data)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "s3":
        s3: SeaweedServer = request.getfixturevalue("s3_server")
        _uploaded(s3.put, "private")
        yield "s3://private/h", s3.storage_options()
    elif request.param == "gs":
        gcs: GcsServer = request.getfixturevalue("gcs_server")
        with suppress(HTTPError):  # another test has made it
            gcs.make_bucket("hashes")
        _uploaded(gcs.put, "hashes")
        yield "gs://hashes/h", gcs.storage_options()
    elif request.param == "az":
        azure: AzuriteServer = request.getfixturevalue("azure_server")
        with suppress(ResourceExistsError):
            azure.make_container("hashes")
        _uploaded(azure.put, "hashes")
        yield "az://hashes/h", azure.storage_options()
    else:
        with HubServer() as hub:
            hub.make("o/hashes").commit(FILES, "main")
            yield "hf://o/hashes/h", {"endpoint": hub.url, "token": False}


def value_of(uri: str, options: dict[str, Any]) -> float:
    return float(streamer.load(uri, storage_options=options, framework="np")["a"][0])


def pulled(uri: str, folder: Path, options: dict[str, Any]) -> set[str]:
    command = [sys.executable, "-m", "streamer", "pull", uri, str(folder), "--storage-options", json.dumps(options)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return visible(folder)


@pytest.mark.parametrize("place", ["s3", "gs", "az", "hf"], indirect=True)
def test_a_hash_is_a_letter_of_the_key(place: Place, tmp_path: Path) -> None:
    folder, options = place
    for name in ("m#2/", "m#2/model.safetensors", "one#1.safetensors"):
        uri = f"{folder}/{name}"
        assert value_of(uri, options) == 1.0
        assert check(uri, storage_options=options).uri == uri  # it was cut at the hash
    with pytest.raises(streamer.ObjectNotFoundError, match=r"m/model\.safetensors#x"):
        streamer.load(f"{folder}/m/model.safetensors#x", storage_options=options)


def test_what_a_folder_with_a_hash_holds_is_pulled(s3_server: SeaweedServer, tmp_path: Path) -> None:
    _uploaded(s3_server.put, "private")
    assert pulled("s3://private/h/m#2", tmp_path / "copy", s3_server.storage_options()) == {"model.safetensors"}
    assert (tmp_path / "copy/model.safetensors").read_bytes() == MEANT


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_a_generation_is_not_pinned_of_a_folder_regression(place: Place) -> None:
    """``m#2`` is the generation 2 of ``m``: that folder was loaded, without a word."""
    folder, options = place
    with pytest.raises(streamer.ObjectNotFoundError, match=r"pins the version of one object.*add a slash"):
        streamer.load(f"{folder}/m#2", storage_options=options)


def test_a_version_is_not_pinned_of_a_folder_regression(s3_server: SeaweedServer) -> None:
    _uploaded(s3_server.put, "private")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"pins the version of one object"):
        streamer.load("s3://private/h/m?versionId=7", storage_options=s3_server.storage_options())


@pytest.mark.parametrize("before", ["", "simplecache::", "streamer::"])
def test_a_fragment_of_a_web_address_is_refused_regression(http_server: NginxServer, before: str) -> None:
    """It was left out, so that another file was loaded."""
    for name, data in FILES.items():
        file = http_server.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    base = f"{http_server.http_url}/open/h"
    for name in ("m#2", "m#2/model.safetensors", "one.safetensors#1"):
        with pytest.raises(streamer.UsageError, match=r"fragment.*%23"):
            streamer.load(f"{before}{base}/{name}")
    if not before:
        assert value_of(f"{base}/m%232", {}) == value_of(f"{base}/one%231.safetensors", {}) == 1.0
        with pytest.raises(streamer.UsageError, match=r"fragment.*%23"):
            check(f"{base}/m#2")
