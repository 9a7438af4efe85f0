"""``python -m streamer pull --key-file``: no encrypted file appears before every byte of it was authenticated."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pulls import pull, visible
from safetensors.torch import save_file
from servers.seaweedfs import SeaweedServer
from tensorizer_files import KEY, file_of, sealed

import streamer
from streamer._cli import main

SECOND = "model-00002-of-00002.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = {f"w{number}": torch.arange(200_000.0) + number for number in range(4)}
    streamer.save(tensors, tmp_path / "model", key=KEY, max_shard_bytes="2MB")
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.fixture
def key(tmp_path: Path) -> str:
    (tmp_path / "weights.key").write_bytes(KEY)
    return str(tmp_path / "weights.key")


def flip(path: Path, at: int) -> None:
    data, status = bytearray(path.read_bytes()), path.stat()
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # else a pull reads it, and pulls it again


@pytest.mark.parametrize("storage", ["disk", "s3"])
def test_encrypted_files_are_authenticated_and_stay_encrypted(
    request: pytest.FixtureRequest, storage: str, model: Path, key: str, tmp_path: Path
) -> None:
    uri, options = str(model), None
    if storage == "s3":
        server: SeaweedServer = request.getfixturevalue("s3_server")
        uri = server.upload_folder(model, "private", f"authenticated/{tmp_path.name}")
        options = server.storage_options()
    for _ in range(2):  # the second pull reads nothing from the storage, and authenticates again
        reported = pull(uri, tmp_path / "here", "--key-file", key, options=options)
        assert (reported["exit_code"], reported.get("authenticated_files")) == (0, 2), reported
    assert visible(tmp_path / "here") == visible(model)
    assert all((tmp_path / "here" / name).read_bytes() == (model / name).read_bytes() for name in visible(model))
    assert torch.equal(streamer.load(tmp_path / "here", key=KEY)["w3"], torch.arange(200_000.0) + 3)


def test_one_wrong_bit_keeps_all_files_from_appearing(model: Path, key: str, tmp_path: Path) -> None:
    flip(model / SECOND, 1 << 20)
    reported = pull(model, tmp_path / "here", "--key-file", key)
    assert (reported["exit_code"], reported["error"]) == (65, "TamperedError")
    assert f"model/{SECOND}" in reported["message"]
    assert "/proc/" not in reported["message"]
    assert not visible(tmp_path / "here")
    assert pull(model, tmp_path / "there")["exit_code"] == 0  # without the key, files are copied as they are


def test_what_was_pulled_before_is_authenticated_too(model: Path, key: str, tmp_path: Path) -> None:
    assert pull(model, tmp_path / "here")["exit_code"] == 0
    flip(tmp_path / "here" / SECOND, 1 << 20)
    assert pull(model, tmp_path / "here", "--key-file", key)["error"] == "TamperedError"


def test_another_key_is_reported(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", bytes(range(1, 33)).hex())
    reported = pull(model, tmp_path / "here", "--key-file", "env:OTHER_KEY")
    assert (reported["exit_code"], reported["error"]) == (2, "EncryptionKeyError")
    assert not visible(tmp_path / "here")


def test_an_unencrypted_file_is_refused_with_a_key(model: Path, key: str, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, model / "adapter.safetensors")
    reported = pull(model, tmp_path / "here", "--key-file", key)
    assert (reported["exit_code"], reported["error"]) == (65, "TamperedError")
    assert "adapter.safetensors: a key is given, and the file is not encrypted" in reported["message"]
    assert pull(model, tmp_path / "here", "--key-file", key, "--exclude", "adapter*")["exit_code"] == 0


def test_a_missing_file_is_reported_unless_it_was_excluded(model: Path, key: str, tmp_path: Path) -> None:
    left_out = pull(model, tmp_path / "part", "--key-file", key, "--exclude", SECOND)
    assert (left_out["exit_code"], left_out["authenticated_files"]) == (0, 1)
    for path in (model / SECOND, model / "model.safetensors.index.json"):
        path.unlink()
    (model / "model-00001-of-00002.safetensors").rename(model / "renamed.safetensors")
    reported = pull(model, tmp_path / "here", "--key-file", key)
    assert (reported["exit_code"], reported["error"]) == (65, "TamperedError")
    assert "1 of the 2 files of the encrypted checkpoint are there" in reported["message"]


def test_encrypted_files_of_tensorizer_are_authenticated(key: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "x.tensors").write_bytes(file_of([sealed("w", np.arange(9999, dtype="f4"))]))
    assert pull(folder, tmp_path / "here", "--key-file", key)["authenticated_files"] == 1
    flip(folder / "x.tensors", (folder / "x.tensors").stat().st_size - 7)
    assert pull(folder, tmp_path / "there", "--key-file", key)["error"] == "TamperedError"


_RUNS = b"cos\nsystem\n(S'true'\ntR"
_LEGACY = b"L119547037146038801333356L\n.I1001\n.(d."  # what a file of PyTorch before 1.6 begins with


@pytest.mark.parametrize(
    "content",
    [
        _RUNS + b".",
        _RUNS,  # pickle.load runs it before it looks for the end
        _RUNS + "0S'\u00e9'\n.".encode(),
        b"I1\n." + _RUNS + b".",
        _LEGACY + _RUNS + b".",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"cos\nsystem\n(db.",
    ],
)
def test_a_text_that_is_a_pickle_is_refused_whatever_its_end_is_regression(
    content: bytes, model: Path, key: str, tmp_path: Path
) -> None:
    (model / "training_notes.txt").write_bytes(content)
    reported = pull(model, tmp_path / "here", "--key-file", key)
    assert (reported["exit_code"], reported["error"]) == (65, "TamperedError"), reported


@pytest.mark.parametrize(
    "content",
    ["", ".", "README\n", "class A:\n  pass\nRest\n", "cat\ncar\n)x\n", "N.N.", "{}", "1.0\n", "(I1\nt.", "I1\n."],
)
def test_a_text_that_only_begins_as_a_pickle_is_copied(content: str, model: Path, key: str, tmp_path: Path) -> None:
    (model / "vocab.txt").write_text(content)
    reported = pull(model, tmp_path / "here", "--key-file", key)
    assert reported["exit_code"] == 0, reported


@pytest.mark.parametrize("verb", ["pull", "push"])
def test_a_context_without_a_key_is_refused_regression(model: Path, tmp_path: Path, verb: str) -> None:
    """It was ignored: the files were copied without a comparison, and the exit code was 0."""
    arguments = [verb, str(model), str(tmp_path / "here"), "--json", "--key-context", "prod"]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, json.loads(result.stdout)["error"]) == (2, "UsageError"), result.output
    assert not (tmp_path / "here").exists()
