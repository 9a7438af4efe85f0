"""``python -m streamer check``: whether a checkpoint would load, without its weights."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from tensorizer_files import file_of, sealed
from uploads import STORAGES, UNLISTED, uploaded, uploaded_unlisted

import streamer
from streamer._cli import main
from streamer._commands.output import exit_code_of

INDEX = "model.safetensors.index.json"
KEEPS_DIGESTS = ("gs", "az")  # of the files that these tests upload
SHARDS = ["first.safetensors", "second.safetensors"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for number, shard in enumerate(SHARDS):
        save_file({f"tensor{number}": torch.arange(1000.0)}, folder / shard)
    weight_map = {f"tensor{number}": shard for number, shard in enumerate(SHARDS)}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def checked(uri: str | Path, options: dict[str, Any] | None = None, *more: str) -> tuple[int, str]:
    """Return the exit code, and what is on standard output."""
    arguments = ["check", str(uri), "--storage-options", json.dumps(options or {}), *more]
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize("storage", STORAGES)
def test_a_whole_checkpoint_is_right(request: pytest.FixtureRequest, storage: str, model: Path) -> None:
    uri, options = uploaded(request, storage, model)
    code, reported = checked(uri, options, "--json")
    report = json.loads(reported)
    assert code == 0
    found = {name: report[name] for name in ("shards", "tensors", "bytes", "has_index", "manifest")}
    assert found == {"shards": 2, "tensors": 2, "bytes": 8000, "has_index": True, "manifest": "none"}
    assert "2 shards, 2 tensors" in checked(uri, options)[1]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_missing_or_truncated_shard_is_reported_as_by_a_load(
    request: pytest.FixtureRequest, storage: str, model: Path
) -> None:
    (model / SHARDS[1]).write_bytes((model / SHARDS[1]).read_bytes()[:-8])
    uri, options = uploaded(request, storage, model)
    code, reported = checked(uri, options, "--json")
    with pytest.raises(streamer.TruncatedError) as error:
        streamer.load(uri, storage_options=options)
    assert (code, json.loads(reported)["error"]) == (65, "TruncatedError")
    assert json.loads(reported)["message"] == str(error.value)


def test_a_missing_shard_of_the_index_is_reported(model: Path) -> None:
    (model / SHARDS[1]).unlink()
    code, reported = checked(model, None, "--json")
    assert (code, json.loads(reported)["error"]) == (65, "MissingShardError")


def test_a_manifest_is_compared_with_the_headers(model: Path) -> None:
    streamer.write_manifest(model, progress=False)
    assert json.loads(checked(model, None, "--json")[1])["manifest"] == "fits"
    save_file({"tensor1": torch.arange(1001.0)}, model / SHARDS[1])
    code, reported = checked(model, None, "--json")
    assert (code, json.loads(reported)["error"]) == (65, "ManifestError")


@pytest.mark.parametrize("storage", UNLISTED)
def test_a_checkpoint_that_may_not_be_listed_is_checked(
    request: pytest.FixtureRequest, storage: str, model: Path
) -> None:
    uri, options = uploaded_unlisted(request, storage, model)
    code, reported = checked(uri, options, "--json")
    assert code == 0, reported
    assert json.loads(reported)["manifest"] in ("none", "unreadable")


def test_a_single_shard_is_one_shard_regression(model: Path) -> None:
    assert ": 1 shard, 1 tensor, 4.00 kB; " in checked(model / SHARDS[0])[1]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_ctrl_c_ends_a_check_with_one_line_regression(
    model: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """It printed "Aborted!", and ended with 1."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamer._check.check", interrupted)
    result = CliRunner().invoke(main, ["check", str(model), *more])
    assert (result.exit_code, result.stderr.strip()) == (130, "Error: interrupted")
    assert json.loads(result.stdout or "{}").get("exit_code", 130) == 130
    assert bool(result.stdout) == bool(more)


KEY = bytes(range(32))


def key_file(tmp_path: Path, key: bytes = KEY) -> str:
    path = tmp_path / f"{key[:2].hex()}.key"
    path.write_text(key.hex())
    return str(path)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def encrypted(tmp_path: Path) -> Path:
    """Save a checkpoint in two files; the second one holds the last byte of data."""
    tensors = {f"w{number}": torch.arange(200_000.0) for number in range(4)}
    streamer.save(tensors, tmp_path / "secret", key=KEY, max_shard_bytes="2MB")
    return tmp_path / "secret"


@pytest.mark.parametrize("storage", STORAGES)
def test_a_full_check_authenticates_every_byte(request: pytest.FixtureRequest, storage: str, tmp_path: Path) -> None:
    folder = encrypted(tmp_path)
    uri, options = uploaded(request, storage, folder)
    code, reported = checked(uri, options, "--json", "--full", "--key-file", key_file(tmp_path))
    assert (code, json.loads(reported)["read"]) == (0, "key"), reported
    assert "every byte was authenticated" in checked(uri, options, "--full", "--key-file", key_file(tmp_path))[1]


def test_a_full_check_reports_one_wrong_bit_of_an_encrypted_tensor(tmp_path: Path) -> None:
    folder = encrypted(tmp_path)
    flip(folder / "model-00002-of-00002.safetensors", 1 << 20)
    key = key_file(tmp_path)
    assert checked(folder, None, "--json", "--key-file", key)[0] == 0  # no tensor is read
    code, reported = checked(folder, None, "--json", "--full", "--key-file", key)
    assert (code, json.loads(reported)["error"]) == (65, "TamperedError")


def test_an_empty_name_of_a_key_file_is_no_check_without_a_key_regression(model: Path) -> None:
    """``--key-file "$UNSET"`` was as none, so a plain checkpoint in place of an encrypted one passed."""
    assert checked(model)[0] == 0
    code, reported = checked(model, None, "--json", "--key-file", "")
    assert (code, json.loads(reported)["error"]) == (65, "TamperedError")


@pytest.mark.parametrize("name", ["a.safetensors", "z.safetensors"])
def test_a_plain_file_beside_an_encrypted_one_is_reported_as_plain_regression(tmp_path: Path, name: str) -> None:
    """The error said that no key was given, and the exit code was that of a wrong command."""
    streamer.save({"w": torch.ones(9)}, tmp_path / "model", key=KEY)
    save_file({"added": torch.ones(3)}, tmp_path / "model" / name)
    with pytest.raises(streamer.TamperedError, match="is not encrypted, and others beside it are"):
        streamer.load(tmp_path / "model", key=KEY)
    code, reported = checked(tmp_path / "model", None, "--json", "--key-file", key_file(tmp_path))
    assert (code, json.loads(reported)["error"]) == (65, "TamperedError")


def test_in_full_an_encrypted_file_of_tensorizer_is_authenticated(tmp_path: Path) -> None:
    path, tensor = tmp_path / "x.tensors", sealed("w", np.arange(9999, dtype="f4"))
    path.write_bytes(file_of([tensor, sealed("small", np.ones(2, "f4"))]))
    key = key_file(tmp_path)
    assert json.loads(checked(path, None, "--json", "--full", "--key-file", key)[1])["read"] == "key"
    flip(path, path.stat().st_size - 1000)
    code, reported = checked(path, None, "--json", "--full", "--key-file", key)
    assert (code, json.loads(reported)["error"]) == (65, "TamperedError")


def test_in_full_tensors_are_compared_with_the_manifest(model: Path) -> None:
    streamer.write_manifest(model, progress=False)
    assert json.loads(checked(model, None, "--json", "--full")[1])["read"] == "manifest"
    flip(model / SHARDS[1], -3)
    assert checked(model)[0] == 0
    code, reported = checked(model, None, "--json", "--full")
    assert (code, json.loads(reported)["error"]) == (65, "ChecksumError")


@pytest.mark.parametrize("storage", STORAGES)
def test_a_full_check_without_a_manifest_uses_digests_of_the_storage(
    request: pytest.FixtureRequest, storage: str, model: Path
) -> None:
    uri, options = uploaded(request, storage, model)
    reported = json.loads(checked(uri, options, "--json", "--full")[1])
    assert reported["read"] in ("storage", "nothing")
    assert (reported["read"] == "nothing") is (storage not in KEEPS_DIGESTS)
    assert any("no digests" in each for each in reported["remarks"]) is (reported["read"] == "nothing")


def test_a_quick_check_reads_no_tensor(model: Path) -> None:
    assert json.loads(checked(model, None, "--json")[1])["read"] is None


def test_tensors_that_the_index_lacks_are_reported_regression(model: Path) -> None:
    save_file({"tensor1": torch.arange(1000.0), "more": torch.ones(2)}, model / SHARDS[1])
    code, reported = checked(model)
    assert code == 0
    assert "note: the index does not name more, which its shards hold" in reported
    other = model.parent / "other.safetensors"
    save_file({"alone": torch.ones(2)}, other)
    with streamer.stream([other, model]) as stream:  # the file has no index
        assert {name for name, _ in stream} == {"alone", "more", "tensor0", "tensor1"}
    assert "the index does not name more, which its shards hold" in stream.report.remarks


def test_an_index_of_another_format_lists_missing_shards_too_regression(tmp_path: Path) -> None:
    for number in (1, 2):
        tensors = {f"t{number}": torch.ones(2).expand(3, 2), f"more{number}": torch.ones(2)}
        torch.save({**tensors, "epoch": number}, tmp_path / f"model-{number}.bin")
    weight_map = {"t1": "model-1.bin", "t2": "model-2.bin", "more1": "model-1.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    code, reported = checked(tmp_path)
    assert code == 0
    assert "note: the shards differ in their metadata 'epoch': the last shard's count" in reported
    assert "note: the index does not name more2, which its shards hold" in reported


# --- exit codes of ``python -m streamer pull`` for errors of the machine --------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EMFILE, 75), (errno.ENFILE, 75), (errno.ENOMEM, 75), (errno.ENOSPC, 73), (None, 73)]
)
def test_what_the_machine_lacks_at_this_moment_is_tried_again(number: int | None, code: int) -> None:
    assert exit_code_of(OSError(number, "") if number else OSError("")) == code
