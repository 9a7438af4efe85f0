"""What is pulled is compared with the digests of its storage, and the same content is not pulled twice."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from comparison import tensors_of
from faults.flips import flips_always, flips_once
from faults.server import FaultServer
from make_checkpoint import make_checkpoint
from pulls import pull, visible
from servers.hub import LARGE_BYTES, HubServer
from servers.seaweedfs import SeaweedServer

from streamer._commands import copies


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder ``bucket`` with a small sharded checkpoint in ``model``."""
    make_checkpoint(tmp_path / "bucket" / "model", total_bytes=6 << 20, shards=2)
    return tmp_path / "bucket" / "model"


def record(folder: Path) -> dict[str, dict[str, str]]:
    files: dict[str, dict[str, str]] = json.loads((folder / ".streamer-pull" / "complete.json").read_text())["files"]
    return files


def test_a_byte_that_flips_on_the_way_is_read_again(model: Path, tmp_path: Path) -> None:
    with FaultServer(model.parent, flips_once()) as server:
        told = pull(server.url("model"), tmp_path / "copy", options=server.storage_options())
    assert told["exit_code"] == 0, told
    expected, found = tensors_of(model), tensors_of(tmp_path / "copy")
    assert all(found[name].equal(expected[name]) for name in expected)
    assert all(each["verified_by"] for each in record(tmp_path / "copy").values())


def test_a_byte_that_is_wrong_in_the_storage_is_an_error(model: Path, tmp_path: Path) -> None:
    with FaultServer(model.parent, flips_always) as server:
        told = pull(server.url("model"), tmp_path / "copy", options=server.storage_options())
        assert (told["exit_code"], told["error"]) == (65, "ChecksumError"), told
        assert visible(tmp_path / "copy") == set()
        told = pull(server.url("model"), tmp_path / "copy", "--no-verify", options=server.storage_options())
        assert told["exit_code"] == 0, told
    shards = {name: each for name, each in record(tmp_path / "copy").items() if name.endswith(".safetensors")}
    assert [each["verified_by"] for each in shards.values()] == [None, None]


def test_a_new_commit_with_the_same_weights_reads_only_what_is_new(
    hub_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    name = f"ada/pulled-{secrets.token_hex(4)}"
    repository, weights = hub_server.make(name), secrets.token_bytes(LARGE_BYTES)
    repository.commit({"model.bin": weights, "sub/config.json": b"{}"})
    assert pull(f"hf://{name}", tmp_path / "copy")["read_bytes"] == LARGE_BYTES + 2
    repository.commit({"model.bin": weights, "sub/config.json": b"[1]"})
    told = pull(f"hf://{name}", tmp_path / "copy")
    assert (told["exit_code"], told["read_bytes"], told["kept_files"]) == (0, 3, 1), told
    assert (tmp_path / "copy" / "sub" / "config.json").read_bytes() == b"[1]"
    assert pull(f"hf://{name}", tmp_path / "copy")["read_bytes"] == 0


def test_an_uncompared_part_is_compared_before_it_counts_as_verified(
    s3_server: SeaweedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        key, body = f"compared/{tmp_path.name}/{name}.bin", name.encode() * 1000
        s3_server.client().put_object(Bucket="private", Key=key, Body=body, ChecksumAlgorithm="SHA256")
    uri, options = f"s3://private/compared/{tmp_path.name}", s3_server.storage_options()
    with monkeypatch.context() as patch:
        patch.setattr("streamer._pull.pull.place", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert pull(uri, tmp_path / "copy", "--no-verify", options=options)["exit_code"] == 130
    told = pull(uri, tmp_path / "copy", options=options)
    assert (told["exit_code"], told["read_bytes"], told["verified_files"]) == (0, 0, 2), told


def test_lines_show_the_progress_without_a_terminal(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SHOWN_EVERY_S", 0.0)
    told = pull(model, tmp_path / "copy")
    assert " MB of 6.3" in told["stderr"] or " of 6.2" in told["stderr"], told["stderr"]
