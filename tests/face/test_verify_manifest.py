"""``write_manifest`` and ``verify="manifest"`` over local files: what is right loads, what is not is named."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import stat
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from make_checkpoint import make_checkpoint
from safetensors.torch import save, save_file

import streamer

NAME = "model.safetensors.manifest.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharded checkpoint with a manifest; not to be changed."""
    folder = tmp_path_factory.mktemp("manifest") / "model"
    make_checkpoint(folder, total_bytes=4 << 20, shards=3)
    streamer.write_manifest(folder)
    return folder


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "model"))


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def flip(path: Path, at: int = -1000, bit: int = 1) -> None:
    """Flip a bit at rest."""
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def test_a_checkpoint_that_is_right_loads_equal_and_is_verified(model: Path) -> None:
    expected = streamer.load(model)
    with streamer.stream(model, verify="manifest") as stream:
        loaded = dict(stream)
    assert set(loaded) == set(expected)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    assert [each.verified_by for each in stream.report.verified] == ["manifest (crc32c)"] * 3
    assert stream.report.is_verified
    assert stream.report.rereads == 0
    assert stream.report.to_dict()["verified"][0]["remark"] is None


def test_every_bit_counts_and_the_tensor_is_named(model: Path) -> None:
    name = "model.embed_tokens.weight"
    with streamer.open(model) as checkpoint:
        tensor = checkpoint._shard_tensors[name]
    flip(shards_of(model)[tensor.shard], at=tensor.entry.begin + 12_345, bit=128)
    with pytest.raises(streamer.ChecksumError) as caught:
        streamer.load(model, verify="manifest")
    assert caught.value.tensor == name
    assert caught.value.algorithm == "crc32c"
    assert caught.value.expected != caught.value.found
    assert caught.value.byte_range == (tensor.entry.begin, tensor.entry.end)
    streamer.load(model)  # nobody looked


def test_a_wrong_tensor_is_never_yielded(model: Path) -> None:
    flip(shards_of(model)[1])
    yielded = []
    with streamer.stream(model, verify="manifest") as stream, pytest.raises(streamer.ChecksumError) as caught:
        yielded.extend(name for name, _ in stream)
    assert caught.value.tensor not in yielded
    assert not stream.report.is_verified
    assert not stream.report.is_complete


def test_targets_in_place_are_verified_too(model: Path) -> None:
    expected = streamer.load(model)
    target = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    report = streamer.load_into(model, target, verify="manifest")
    assert report.is_verified
    assert all(torch.equal(target[name], expected[name]) for name in expected)
    flip(shards_of(model)[2])
    with pytest.raises(streamer.ChecksumError):
        streamer.load_into(model, target, verify="manifest")


def test_some_tensors_are_verified_alone(model: Path) -> None:
    wanted = ["model.embed_tokens.weight"]
    with streamer.stream(model, names=wanted, verify="manifest") as stream:
        assert [name for name, _ in stream] == wanted
    reported = [each.verified_by for each in stream.report.verified]
    assert reported.count("manifest (crc32c)") == 1
    assert {each.remark for each in stream.report.verified} == {None, "none of its tensors was read"}
    assert not stream.report.is_verified


def test_random_access_verifies_whole_tensors_and_reads_rows(model: Path) -> None:
    name = "model.embed_tokens.weight"
    with streamer.open(model, verify="manifest") as checkpoint:
        tensor = checkpoint._shard_tensors[name]
        whole = checkpoint.get_tensor(name)
        assert torch.equal(checkpoint.get_slice(name)[:3], whole[:3])
    flip(shards_of(model)[tensor.shard], at=tensor.entry.end - 1)
    with streamer.open(model, verify="manifest") as checkpoint:
        assert torch.equal(checkpoint.get_slice(name)[:3], whole[:3])  # rows have no digest
        with pytest.raises(streamer.ChecksumError):
            checkpoint.get_tensor(name)


def test_one_shard_is_verified_under_the_manifest_of_all(model: Path) -> None:
    with streamer.stream(shards_of(model)[1], verify="manifest") as stream:
        dict(stream)
    assert stream.report.is_verified


def test_blocks_of_many_sizes_give_the_same_digests(model: Path) -> None:
    for block_bytes in (64 << 10, 1 << 20, 1 << 30):
        options = streamer.Options(block_bytes=block_bytes)
        assert streamer.load(model, verify="manifest", options=options, framework="pt")
        streamer.write_manifest(model, options=options)
        assert streamer.load(model, verify="manifest")


def test_a_sha256_is_that_of_the_pieces_of_a_tensor_for_blocks_of_all_sizes(model: Path) -> None:
    for block_bytes in (64 << 10, 100_000, 1 << 30):
        options = streamer.Options(block_bytes=block_bytes)
        streamer.write_manifest(model, options=options, digest="sha256")
        with streamer.stream(model, verify="manifest", options=options) as stream:
            dict(stream)
        assert {each.verified_by for each in stream.report.verified} == {"manifest (sha256)"}
    for shard, of_shard in json.loads((model / NAME).read_text())["shards"].items():
        data = (model / shard).read_bytes()
        for tensor in of_shard["tensors"].values():
            begin, end = tensor["begin"], tensor["begin"] + tensor["bytes"]
            cuts = [begin, *range((begin // 65536 + 1) * 65536, end, 65536), end]
            pieces = b"".join(hashlib.sha256(data[one:other]).digest() for one, other in pairwise(cuts))
            assert tensor["sha256_of_pieces"] == hashlib.sha256(pieces).hexdigest()


def test_a_sha256_finds_a_bit_and_names_the_tensor(model: Path) -> None:
    streamer.write_manifest(model, digest="sha256")
    flip(shards_of(model)[1])
    with pytest.raises(streamer.ChecksumError, match="sha256 of tensor") as caught:
        streamer.load(model, verify="manifest")
    assert caught.value.tensor
    assert caught.value.algorithm == "sha256"
    assert len(caught.value.found) == 64


@pytest.mark.parametrize("digest", ["md5", "", None, 5])
def test_another_digest_is_refused_before_anything_is_read(tmp_path: Path, digest: object) -> None:
    with pytest.raises(streamer.OptionError, match='digest is "crc32c" or "sha256"'):
        streamer.write_manifest(tmp_path / "none", digest=digest)  # type: ignore[arg-type]


def test_a_sha256_needs_the_place_of_its_tensor(model: Path) -> None:
    streamer.write_manifest(model, digest="sha256")
    document = json.loads((model / NAME).read_text())
    tensor = next(iter(next(iter(document["shards"].values()))["tensors"].values()))
    tensor["begin"] += 8
    (model / NAME).write_text(json.dumps(document))
    with pytest.raises(streamer.ManifestError, match="first byte"):
        streamer.load(model, verify="manifest")
    tensor["begin"] = -1
    (model / NAME).write_text(json.dumps(document))
    with pytest.raises(streamer.ManifestError, match="malformed"):
        streamer.load(model, verify="manifest")


def test_empty_tensors_scalars_and_tied_bytes(tmp_path: Path) -> None:
    tensors = {"empty": torch.empty(0, 7), "scalar": torch.tensor(2.5), "w": torch.arange(100_000.0)}
    save_file(tensors, tmp_path / "a.safetensors")
    report = streamer.write_manifest(tmp_path / "a.safetensors", digest="sha256")
    assert report.uri == str(tmp_path / "a.safetensors.manifest.json")
    assert (report.shards, report.tensors, report.bytes) == (1, 3, 400_004)
    loaded = streamer.load(tmp_path, verify="manifest", framework="np")  # a folder with one shard: the same manifest
    assert np.array_equal(loaded["w"], tensors["w"].numpy())


def test_without_a_manifest_the_error_names_the_command(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"python -m streamer manifest .*a\.safetensors"):
        streamer.load(tmp_path, verify="manifest")


def test_the_command_in_the_message_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "my model; v2.safetensors"
    save_file({"w": torch.zeros(3)}, path)
    with pytest.raises(streamer.ObjectNotFoundError) as caught:
        streamer.load(path, verify="manifest")
    assert shlex.split(str(caught.value.hint))[-1] == str(path)


def without_numbers(model: Path) -> list[Path]:
    """Return the shards names that do not count them, and no index but a manifest."""
    for path in model.glob("*.json"):
        path.unlink()
    paths = [path.rename(model / f"part-{number}.safetensors") for number, path in enumerate(shards_of(model))]
    streamer.write_manifest(model)
    return paths


def test_a_missing_shard_is_an_error_without_an_index_too(model: Path) -> None:
    without_numbers(model)[1].unlink()
    streamer.load(model)  # nobody knows
    with pytest.raises(streamer.ManifestError, match=r"has shard 'part-1\.safetensors', which is not"):
        streamer.load(model, verify="manifest")


def test_the_last_shard_that_is_left_is_not_taken_for_all(model: Path) -> None:
    first, *others = without_numbers(model)
    for path in others:
        path.unlink()
    with pytest.raises(streamer.ManifestError, match="which is not loaded"):
        streamer.load(model, verify="manifest")
    assert streamer.load(first, verify="manifest")  # asked for alone


def test_a_glob_is_verified_shard_by_shard(model: Path) -> None:
    with streamer.stream(model / "model-0000[12]*.safetensors", verify="manifest") as stream:
        dict(stream)
    assert len(stream.report.verified) == 2
    assert stream.report.is_verified


def test_a_manifest_of_other_tensors_is_refused_before_they_are_read(model: Path) -> None:
    document = json.loads((model / NAME).read_text())
    next(iter(document["shards"].values()))["tensors"].popitem()
    (model / NAME).write_text(json.dumps(document))
    with pytest.raises(streamer.ManifestError, match="is not in it"):
        streamer.open(model, verify="manifest")


def test_the_environment_turns_it_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(shards_of(model)[0])
    monkeypatch.setenv("STREAMER_VERIFY", "manifest")
    with pytest.raises(streamer.ChecksumError):
        streamer.load_file(shards_of(model)[0])
    streamer.load(model, verify="off")


def test_the_default_computes_nothing_and_claims_nothing(model: Path) -> None:
    with streamer.stream(model) as stream:
        dict(stream)
        assert stream._session.digest_pieces(0) == []
    assert stream.report.verified == ()
    assert not stream.report.is_verified


def test_the_manifest_is_written_whole_or_not_at_all(model: Path) -> None:
    before = (model / NAME).read_bytes()
    os.umask(umask := os.umask(0o022))
    streamer.write_manifest(model)
    assert (model / NAME).read_bytes() == before
    assert stat.S_IMODE((model / NAME).stat().st_mode) == 0o666 & ~umask
    assert [path for path in os.listdir(model) if path.startswith(".")] == []


def test_what_cannot_be_written_is_refused_before_it_is_read(made: Path) -> None:
    with pytest.raises(streamer.UsageError, match="cannot be written"):
        streamer.write_manifest("nfs://127.0.0.1:9/export/model.safetensors")
    with pytest.raises(streamer.UsageError, match="glob"):
        streamer.write_manifest(made / "*.safetensors")
    with pytest.raises(streamer.UsageError, match="one checkpoint"):
        streamer.write_manifest([made])  # type: ignore[arg-type]


def test_a_folder_that_may_not_be_written_is_an_error(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(3)}, tmp_path / "a.safetensors")
    with open(tmp_path / "a.safetensors", "rb") as file, pytest.raises(streamer.StorageError):
        streamer.write_manifest(f"/proc/self/fd/{file.fileno()}")  # even root cannot make a file there


def test_each_of_several_uris_has_a_manifest_of_its_own(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    save_file({"other": torch.arange(9000.0)}, tmp_path / "other/o.safetensors")
    with pytest.raises(streamer.ObjectNotFoundError, match="no manifest"):
        streamer.load([model, tmp_path / "other"], verify="manifest")
    streamer.write_manifest(tmp_path / "other")
    with streamer.stream([model, tmp_path / "other"], verify="manifest") as stream:
        dict(stream)
    assert stream.report.is_verified
    flip(tmp_path / "other/o.safetensors")
    with pytest.raises(streamer.ChecksumError, match="'other'"):
        streamer.load([model, tmp_path / "other"], verify="manifest")


def test_a_name_that_no_reader_of_a_manifest_would_accept_is_refused(tmp_path: Path) -> None:
    path = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"m\xff.safetensors"))
    (tmp_path / "plain").write_bytes(save({"w": torch.zeros(3)}))
    os.rename(tmp_path / "plain", path)
    assert streamer.load(path)["w"].tolist() == [0, 0, 0]
    with pytest.raises(streamer.UsageError, match="not valid UTF-8"):
        streamer.write_manifest(path)
    assert len(os.listdir(tmp_path)) == 1


def test_what_was_not_verified_is_logged(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="streamer"):
        streamer.load(model, verify="auto")
    reported = [record.getMessage() for record in caplog.records]
    assert sum("not verified, its storage keeps no digest of it" in each for each in reported) == 3


def test_a_verification_that_compares_nothing_is_a_warning_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="streamer"):
        for _ in range(2):
            streamer.load(model, verify="auto")
    (reported,) = [record.getMessage() for record in caplog.records]
    assert "verify compared nothing: its storage keeps no digest of it" in reported
    assert 'verify="manifest"' in reported


def test_a_verification_that_compares_something_is_no_warning(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    streamer.write_manifest(model)
    with caplog.at_level("WARNING", logger="streamer"):
        streamer.load(model, verify="manifest")
    assert not caplog.records
