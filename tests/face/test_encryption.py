"""``save(key=)`` and every way to load with ``key=``: equal tensors, in the format of docs/encryption.md."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from each_row import each_row
from encryption_reference import decrypted, divided, encrypted, key_id
from faults.catalogue import Fault
from faults.flips import flips_always, flips_once
from faults.server import Asked, FaultServer
from safetensors import safe_open
from servers.seaweedfs import SeaweedServer

import streamer
from streamer import _native
from streamer._cli import main
from streamer._save.sealed_shards import SealedShard
from streamer.core.format.dtypes import TORCH_DTYPES

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
PIECE = 256 << 10


DTYPES = [getattr(torch, name) for name in TORCH_DTYPES.values() if hasattr(torch, name)]


def some_tensors() -> dict[str, torch.Tensor]:
    """Small tensors of every dtype and odd shapes."""
    torch.manual_seed(1)
    tensors = {str(dtype): torch.randint(0, 2, (3, 16), dtype=torch.uint8).view(dtype) for dtype in DTYPES}
    return {**tensors, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 7), "é\n": torch.arange(5)}


def large_tensors() -> dict[str, torch.Tensor]:
    """Tensors that end inside of pieces, at their ends, and that have many."""
    torch.manual_seed(2)
    return {
        "rows": torch.randn(3000, 257),
        "half": torch.randn(1100, 1024).to(torch.bfloat16),
        "bytes": torch.randint(0, 256, (PIECE + 1,), dtype=torch.uint8),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }


def are_equal(loaded: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> bool:
    assert sorted(loaded) == sorted(tensors)
    return all(
        loaded[name].dtype == each.dtype
        and loaded[name].shape == each.shape
        and torch.equal(loaded[name].reshape(-1).view(torch.uint8), each.contiguous().reshape(-1).view(torch.uint8))
        for name, each in tensors.items()
    )


@each_row("hide_names", [False, True])
@each_row("max_shard_bytes", ["5GB", "1MB"])
@each_row("tensors", [some_tensors, large_tensors])
def test_what_was_encrypted_is_loaded_again(
    tmp_path: Path, tensors: Callable[[], dict[str, torch.Tensor]], max_shard_bytes: str, hide_names: bool
) -> None:
    saved = tensors()
    streamer.save(saved, tmp_path, key=KEY, max_shard_bytes=max_shard_bytes, hide_names=hide_names)
    assert are_equal(streamer.load(tmp_path, key=KEY), saved)


@pytest.mark.parametrize("hide_names", [False, True])
def test_another_implementation_reads_the_files(tmp_path: Path, hide_names: bool) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY, hide_names=hide_names)
    found = decrypted((tmp_path / "model.safetensors").read_bytes(), KEY)
    assert {name: data for name, (_, _, data) in found.items()} == {
        name: each.reshape(-1).view(torch.uint8).numpy().tobytes() for name, each in tensors.items()
    }


def test_files_of_another_implementation_are_read(tmp_path: Path) -> None:
    ids = {"key_id": key_id(KEY), "checkpoint": "0f" * 16, "salt": "a5" * 32, "shard": 1, "shards": 1}
    rest = {"version": 1, "cipher": "AES-256-GCM", "piece_bytes": 4096, "hides_names": False}
    tensors = {"a": np.arange(5000, dtype="<i4"), "b": np.arange(3, dtype="<i4")}
    content = {name: ("I32", [*each.shape], each.tobytes()) for name, each in tensors.items()}
    (tmp_path / "model.safetensors").write_bytes(encrypted(content, KEY, {**ids, **rest}))
    loaded = streamer.load(tmp_path, key=KEY, framework="np")
    assert all(np.array_equal(loaded[name], each) for name, each in tensors.items())


def test_the_file_is_a_safetensors_file_with_readable_names_and_unreadable_values(tmp_path: Path) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY, metadata={"author": "me"})
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert {*file.keys()} == {*tensors, "streamer.tags-00001-of-00001"}
        assert file.metadata()["author"] == "me"
        assert file.get_slice("rows").get_shape() == [3000, 257]
        assert not torch.equal(file.get_tensor("rows"), tensors["rows"])
    with streamer.open(tmp_path, key=KEY) as opened:
        assert opened.metadata() == {"format": "pt", "author": "me"}


def test_hidden_names_are_nowhere_in_the_files(tmp_path: Path) -> None:
    streamer.save(large_tensors(), tmp_path, key=KEY, hide_names=True, metadata={"author": "me"}, max_shard_bytes="1MB")
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(secret in content for secret in (b"rows", b"half", b"author", b"BF16", b"3000"))
    with streamer.open(tmp_path, key=KEY) as opened:
        assert opened.metadata() == {"format": "pt", "author": "me"}


def test_two_saves_have_no_piece_in_common(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3 * PIECE, dtype=torch.uint8)}
    found = set()
    for name in ("one", "two"):
        streamer.save(tensors, tmp_path / name, key=KEY)
        data = (tmp_path / name / "model.safetensors").read_bytes()
        (_, begin, end), _ = divided(data).tensors
        found |= {data[position : position + 16] for position in range(begin, end, 16)}
    assert len(found) == 2 * 3 * PIECE // 16


def test_rows_are_read_by_whole_pieces(tmp_path: Path) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY)
    with streamer.open(tmp_path, key=KEY) as opened:
        rows = opened["rows"]
        for index in (
            slice(1000, 1010),
            7,
            (slice(5, 9), slice(3, 100)),
            slice(2990, None),
            slice(0, 0),
            slice(None, None, 700),
        ):
            assert torch.equal(rows[index], tensors["rows"][index])
        assert torch.equal(opened["bytes"][PIECE - 3 :], tensors["bytes"][PIECE - 3 :])
        assert torch.equal(opened["scalar"][...], tensors["scalar"])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_slices_are_cut_out_of_whole_pieces(tmp_path: Path, dim: int, framework: str) -> None:
    tensors = {"rows": torch.randn(3000, 257)}
    streamer.save(tensors, tmp_path, key=KEY)
    parts = [
        streamer.load(tmp_path, key=KEY, framework=framework, slices={"*": streamer.Slice(dim, index, 3)})["rows"]
        for index in range(3)
    ]
    assert np.array_equal(np.concatenate([np.asarray(part) for part in parts], dim), tensors["rows"].numpy())


def test_a_part_of_a_tensor_reads_a_part_of_the_file(tmp_path: Path) -> None:
    streamer.save({"rows": torch.randn(40_000, 256)}, tmp_path, key=KEY)
    how: Any = {"key": KEY, "slices": {"*": streamer.Slice(0, 50, 100)}}
    with streamer.stream(tmp_path, **how) as tensors:
        assert [tuple(each.shape) for _, each in tensors] == [(400, 256)]
    assert tensors.report.bytes_read <= 400 * 1024 + 2 * PIECE


@pytest.mark.parametrize("index", range(3))
def test_load_into_fills_targets_with_parts(tmp_path: Path, index: int) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY)
    part = tensors["rows"].chunk(3)[index]
    target = {"rows": torch.empty_like(part)}
    streamer.load_into(tmp_path, target, key=KEY, names="rows", slices={"*": streamer.Slice(0, index, 3)})
    assert torch.equal(target["rows"], part)


def test_load_into_stream_and_asyncio(tmp_path: Path) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY)
    targets = {name: torch.empty_like(each) for name, each in tensors.items()}
    streamer.load_into(tmp_path, targets, key=KEY)
    assert are_equal(targets, tensors)
    with streamer.stream(tmp_path, key=KEY, order="file") as stream:
        assert are_equal(dict(stream), tensors)
    assert are_equal(asyncio.run(streamer.aload(tmp_path, key=KEY)), tensors)


def test_names_casts_and_pickles(tmp_path: Path) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY)
    loaded = streamer.load(tmp_path, key=KEY, names="ro*", dtype=torch.float16)
    assert torch.equal(loaded["rows"], tensors["rows"].half())
    with streamer.open(tmp_path, key=KEY) as opened:
        again = pickle.loads(pickle.dumps(opened))
        assert torch.equal(again["half"][5], tensors["half"][5])


@pytest.mark.parametrize("direct", ["always", "never"])
def test_reads_past_the_page_cache(tmp_path: Path, direct: str) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY)
    assert are_equal(streamer.load(tmp_path, key=KEY, options=streamer.Options(direct_io=direct == "always")), tensors)


def test_small_blocks_and_little_memory(tmp_path: Path) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY)
    options = streamer.Options(block_bytes=100_000, memory_limit_bytes=4 << 20)
    assert are_equal(streamer.load(tmp_path, key=KEY, options=options), tensors)


def test_from_s3_and_through_a_cache(tmp_path: Path, s3_server: SeaweedServer) -> None:
    tensors = large_tensors()
    uri, storage_options = f"s3://private/{tmp_path.name}/sealed", s3_server.storage_options()
    streamer.save(tensors, uri, key=KEY, storage_options=storage_options, max_shard_bytes="1MB")
    options = streamer.Options(cache_dir=tmp_path / "cache")
    for _ in range(2):
        with streamer.stream(uri, key=KEY, storage_options=storage_options, options=options) as stream:
            assert are_equal(dict(stream), tensors)
        assert _native.finish_cache_writes(30)
    assert stream.report.cached_bytes == stream.report.bytes
    plain = tensors["rows"].numpy().tobytes()[:64]
    assert not any(plain in path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_shared_by_the_processes_of_a_node(tmp_path: Path) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path, key=KEY)
    assert are_equal(streamer.load(tmp_path, key=KEY, options=streamer.Options(share="node")), tensors)


def test_a_checkpoint_is_copied_lazily_and_encrypted_again(tmp_path: Path) -> None:
    tensors = large_tensors()
    streamer.save(tensors, tmp_path / "one", key=KEY)
    with streamer.open(tmp_path / "one", key=KEY) as opened:
        streamer.save(opened, tmp_path / "two", key=OTHER_KEY, hide_names=True)
    assert are_equal(streamer.load(tmp_path / "two", key=OTHER_KEY), tensors)


def test_rows_of_a_huge_lazy_tensor_are_joined_to_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer._save.saved_tensors.MOST_READ_BYTES", 100_000)
    tensors = large_tensors()
    streamer.save(tensors, tmp_path / "one")
    with streamer.open(tmp_path / "one") as opened:
        streamer.save(opened, tmp_path / "two", key=KEY)
    assert are_equal(streamer.load(tmp_path / "two", key=KEY), tensors)


def test_two_encrypted_checkpoints_at_once_are_named_regression(tmp_path: Path) -> None:
    """The error named a tensor that belongs to the format, and that no user has saved."""
    for name in ("base", "adapter"):
        streamer.save({name: torch.ones(3)}, tmp_path / name, key=KEY, progress=False)
    with pytest.raises(streamer.FormatError, match=r"are of two encrypted checkpoints\. Load each"):
        streamer.load([tmp_path / "base", tmp_path / "adapter"], key=KEY)


def test_digests_are_of_the_encrypted_bytes(tmp_path: Path) -> None:
    streamer.save(large_tensors(), tmp_path, key=KEY, max_shard_bytes="1MB")
    manifest = tmp_path / "model.safetensors.index.manifest.json"
    (found,) = tmp_path.glob("*.manifest.json")
    written = json.loads(found.read_text())
    found.unlink()
    streamer.write_manifest(tmp_path)
    assert json.loads(found.read_text()) == written, manifest


def test_verify_is_left_to_the_tags_and_the_report_says_so(tmp_path: Path) -> None:
    streamer.save(large_tensors(), tmp_path, key=KEY)
    with streamer.stream(tmp_path, key=KEY, verify="manifest") as stream:
        dict(stream)
    assert any("authenticated" in remark for remark in stream.report.remarks)


def test_pull_copies_the_encrypted_files_without_a_key(tmp_path: Path) -> None:
    streamer.save({"a": torch.arange(9)}, tmp_path / "one", key=KEY)
    words = [sys.executable, "-m", "streamer", "pull", str(tmp_path / "one"), str(tmp_path / "two"), "--quiet"]
    subprocess.run(words, check=True, timeout=120)
    assert torch.equal(streamer.load(tmp_path / "two", key=KEY)["a"], torch.arange(9))


def test_a_shard_is_encrypted_once_alone(tmp_path: Path) -> None:
    shards: list[SealedShard] = []
    begun = SealedShard.__init__

    def recorded(self: SealedShard, *args: Any, **named: Any) -> None:
        begun(self, *args, **named)
        shards.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedShard, "__init__", recorded)
        streamer.save({"a": torch.arange(9)}, tmp_path, key=KEY)
    with pytest.raises(streamer.EngineError, match="encrypted twice"):
        list(shards[0].pieces())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"key": KEY, "resume": True}, "cannot be resumed"),
        ({"hide_names": True}, "needs key="),
        ({"key": KEY, "hide_names": 1}, "hide_names is True or False"),
        ({"key": b"short"}, "has 5 bytes, not 32"),
        ({"key": KEY, "metadata": {"streamer.encryption": "x"}}, "belongs to the format"),
    ],
)
def test_what_cannot_be_encrypted_is_refused_before_a_byte_is_written(
    tmp_path: Path, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(streamer.UsageError, match=message):
        streamer.save({"a": torch.arange(9)}, tmp_path / "model", **how)
    assert not (tmp_path / "model").exists()


def test_reserved_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(streamer.UsageError, match=r"streamer\.tags"):
        streamer.save({"streamer.tags-00001-of-00001": torch.arange(9)}, tmp_path, key=KEY)


def test_a_group_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(streamer.UsageError, match="group= does not read"):
            streamer.load(tmp_path / "nothing", key=KEY, group=torch.distributed.group.WORLD)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("how", ["file", "environment"])
def test_the_command_check_authenticates_the_headers(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, words = tmp_path / "model", ["check", str(tmp_path / "model")]
    streamer.save({"a": torch.arange(9)}, model, key=KEY)
    without = CliRunner().invoke(main, words)
    assert (without.exit_code, key_id(KEY) in without.output) == (2, True)
    if how == "file":
        (tmp_path / "key").write_text(KEY.hex())
        words += ["--key-file", str(tmp_path / "key")]
    else:
        monkeypatch.setenv("STREAMER_KEY", KEY.hex())
    found = CliRunner().invoke(main, words)
    assert (found.exit_code, "1 tensor" in found.output) == (0, True)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"I64"', b'"U64"', 1))
    (model / "model.safetensors.manifest.json").unlink()
    changed = CliRunner().invoke(main, words)
    assert (changed.exit_code, "as they were saved" in changed.output) == (65, True)


def test_the_command_check_speaks_of_its_own_options_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamer.save({"a": torch.arange(9)}, tmp_path / "sealed", key=KEY)
    streamer.save({"a": torch.arange(9)}, tmp_path / "plain")
    np.savez(tmp_path / "plain.npz", a=np.arange(9))
    (tmp_path / "key").write_text(KEY.hex())
    without = CliRunner().invoke(main, ["check", str(tmp_path / "sealed")])
    assert "Pass --key-file" in without.output
    by_option = CliRunner().invoke(main, ["check", str(tmp_path / "plain"), "--key-file", str(tmp_path / "key")])
    assert (by_option.exit_code, "Leave --key-file out" in by_option.output) == (65, True)
    monkeypatch.setenv("STREAMER_KEY", KEY.hex())
    for name in ("plain", "plain.npz"):
        by_variable = CliRunner().invoke(main, ["check", str(tmp_path / name)])
        assert (by_variable.exit_code, "that of STREAMER_KEY: unset it" in by_variable.output) == (65, True)
        assert "key=" not in by_variable.output
    assert "key=" not in without.output + by_option.output


def test_dcp_refuses_what_is_encrypted(tmp_path: Path) -> None:
    streamer.save({"a": torch.arange(9)}, tmp_path, key=KEY)
    with pytest.raises(streamer.EncryptionKeyError, match=key_id(KEY)):
        streamer.dcp.HuggingFaceStorageReader(str(tmp_path)).read_metadata()


@pytest.mark.parametrize("hits_tags", [False, True])
def test_a_bit_that_flips_on_the_way_is_read_again(tmp_path: Path, hits_tags: bool) -> None:
    tensors = large_tensors()
    folder = tmp_path / "bucket/model"
    streamer.save(tensors, folder, key=KEY)
    flips = flips_once()

    def flips_one(asked: Asked) -> Fault | None:
        return flips(asked) if (asked.end - asked.begin < 10_000) is hits_tags else None

    with FaultServer(folder.parent, flips_one) as server:
        how: Any = {"key": KEY, "storage_options": server.storage_options(), "progress": False}
        with streamer.stream(server.url("model"), **how) as stream:
            assert are_equal(dict(stream), tensors)
        assert server.faults["flipped_byte"] == 1
    assert stream.report.rereads == (0 if hits_tags else 1)


def test_bits_that_flip_each_time_are_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "bucket/model"
    streamer.save(large_tensors(), folder, key=KEY)
    with FaultServer(folder.parent, flips_always) as server, pytest.raises(streamer.TamperedError):
        streamer.load(server.url("model"), key=KEY, storage_options=server.storage_options(), progress=False)
