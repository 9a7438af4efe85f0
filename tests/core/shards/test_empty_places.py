"""An empty bucket or folder: the error says that it is there, that it holds nothing, and what was looked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.hub import HubServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._check import check

pytestmark = pytest.mark.server

NOTHING = "nothing lies below it: neither *.safetensors nor model.safetensors.index.json"


def pull(uri: str, options: dict[str, Any], folder: Path) -> str:
    command = [sys.executable, "-m", "streamer", "pull", uri, str(folder), "--storage-options", json.dumps(options)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 66
    return done.stderr


def refusals(uri: str, options: dict[str, Any], folder: Path) -> list[str]:
    """Load, check and pull what is not there, and give what each says."""
    said = []
    for call in (streamer.load, check):
        with pytest.raises(streamer.ObjectNotFoundError) as caught:
            call(uri, storage_options=options)
        said.append(str(caught.value))
    return [*said, pull(uri, options, folder)]


@pytest.mark.parametrize(
    ("scheme", "server", "make", "place", "thing"),
    [
        ("s3", "s3_server", "make_bucket", "bucket", "an object"),
        ("gs", "gcs_server", "make_bucket", "bucket", "an object"),
        ("az", "azure_server", "make_container", "container", "a blob"),
    ],
    ids=["s3", "gs", "az"],
)
def test_an_object_store(
    request: pytest.FixtureRequest, tmp_path: Path, scheme: str, server: str, make: str, place: str, thing: str
) -> None:
    store = request.getfixturevalue(server)
    getattr(store, make)("emptied")
    options = store.storage_options()
    for said in refusals(f"{scheme}://emptied", options, tmp_path / "a"):
        assert f"This is a {place}, not {thing}, and {NOTHING}. Check its name" in said
    for said in refusals(f"{scheme}://emptied/none", options, tmp_path / "b"):
        assert f"There is no {thing.split()[1]} of this name in the {place}, and {NOTHING}" in said


def test_the_hub(tmp_path: Path) -> None:
    with HubServer() as hub:
        hub.make("o/emptied").commit({}, "main")
        options = {"endpoint": hub.url, "token": False}
        for said in refusals("hf://o/emptied", options, tmp_path / "a"):
            assert f"This is a repository, not a file, and {NOTHING}. Check its name" in said
        for said in refusals("hf://o/emptied/none", options, tmp_path / "b"):
            assert "no such file or folder in this revision" in said


def test_http(http_server: NginxServer, tmp_path: Path) -> None:
    (http_server.root / "emptied").mkdir()
    for said in refusals(f"{http_server.http_url}/open/emptied", {}, tmp_path / "a"):
        assert f"This is a folder or a web page, not a file, and {NOTHING}" in said
        assert "Near" not in said  # itself


def test_a_missing_bucket_is_reported_as_missing(s3_server: SeaweedServer, tmp_path: Path) -> None:
    for said in refusals("s3://never-made/none", s3_server.storage_options(), tmp_path / "a"):
        assert "no bucket" in said
        assert "nothing lies" not in said


def test_a_url_of_a_file_is_not_reported_as_an_empty_folder(s3_server: SeaweedServer) -> None:
    with pytest.raises(streamer.ObjectNotFoundError) as caught:
        streamer.load("s3://private/none.safetensors", storage_options=s3_server.storage_options())
    assert "nothing lies" not in str(caught.value)
