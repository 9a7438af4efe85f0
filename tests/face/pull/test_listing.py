"""How a pull lists a storage: every sub-folder, an end to all of them, and a warning where a storage names none."""

from __future__ import annotations

import json
import logging
import secrets
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from comparison import tensors_of
from each_row import each_row
from faults.flips import flips_always, flips_once
from faults.server import FaultServer
from hypothesis import given
from hypothesis import strategies as st
from make_checkpoint import make_checkpoint
from pulls import pull, visible
from servers.hub import LARGE_BYTES, HubServer
from servers.seaweedfs import SeaweedServer

from streamer._cli import main
from streamer._commands import output
from streamer._pull.listing import DEEPEST, files_below
from streamer._pull.transfer import FIRST_BYTES, LARGEST_BYTES, SMALLEST_BYTES, Ahead, cut
from streamer.core.errors import ObjectNotFoundError, StorageError, UsageError
from streamer.core.options.limits import Limits
from streamer.core.options.settings import resolve
from streamer.core.store.sources import ObjectInfo
from streamer.plugins.answers import BrokenContractError, names_in

SETTINGS = resolve(None)


class FlatStore:
    """One file in each folder, and no names of folders."""

    root = "bucket/model"

    def info(self, path: str) -> ObjectInfo:
        return ObjectInfo(path, f"x://{path}", 1)

    def find(self, prefix: str) -> list[ObjectInfo]:
        return [self.info(f"{prefix}/a.bin")]


class DeepStore(FlatStore):
    """With sub-folders down to a depth."""

    def __init__(self, deepest: int, width: int = 1) -> None:
        self.deepest, self.width = deepest, width

    def folders(self, prefix: str) -> list[str]:
        depth = prefix.count("/") - self.root.count("/")
        return [f"f{number}" for number in range(self.width)] if depth < self.deepest else []


def test_all_sub_folders_are_listed() -> None:
    found = files_below(DeepStore(2, width=2), "x://bucket/model", SETTINGS).files  # type: ignore[arg-type]
    folders = {"", "f0/", "f1/", *(f"f{first}/f{second}/" for first in range(2) for second in range(2))}
    assert found.keys() == {f"{folder}a.bin" for folder in folders}
    assert found["f1/f0/a.bin"].path == "bucket/model/f1/f0/a.bin"


@pytest.mark.parametrize("store", [DeepStore(DEEPEST + 1), DeepStore(3, width=100)])
def test_sub_folders_without_an_end_are_refused(store: DeepStore) -> None:
    with pytest.raises(UsageError, match=r"sub-folders.*Name the sub-folder to pull") as raised:
        files_below(store, "x://bucket/model", SETTINGS)  # type: ignore[arg-type]
    assert raised.value.uri == "x://bucket/model"


def test_a_storage_that_names_no_sub_folders_is_remarked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamer"):
        assert files_below(FlatStore(), "x://bucket/model", SETTINGS).files.keys() == {"a.bin"}  # type: ignore[arg-type]
    assert "this storage lists no sub-folders" in caplog.text


def test_what_a_plugin_names_as_folders_is_checked() -> None:
    assert names_in(("b", "a", "b"), Limits(), "x://bucket") == ["a", "b"]
    for answer in ("ab", 3, ["a", 3]):
        with pytest.raises(BrokenContractError):
            names_in(answer, Limits(), "x://bucket")
    with pytest.raises(StorageError, match="more than 2 entries"):
        names_in(["a", "b", "c"], Limits(listing_entries=2), "x://bucket")


class EmptyStore(FlatStore):
    """Nothing there."""

    def info(self, path: str) -> ObjectInfo:
        raise ObjectNotFoundError("there is none", uri=f"x://{path}", hint="Check the name")

    def find(self, prefix: str) -> list[ObjectInfo]:
        return []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("*.bin", r"pass x://bucket/model and --include '\*\.bin'"),
        ("my *.bin?sig=S3CR3T", r"pass x://bucket/model and --include 'my \*\.bin"),
        ("a.bin", "Check the name"),
    ],
)
def test_the_error_for_a_pattern_in_a_url_says_where_it_belongs(name: str, hint: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=hint) as raised:
        files_below(EmptyStore(), f"x://bucket/model/{name}", SETTINGS)  # type: ignore[arg-type]
    assert "S3CR3T" not in str(raised.value)


# --- what is pulled is compared with the digests of its storage, and the same content is not pulled twice -----------


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
        reported = pull(server.url("model"), tmp_path / "copy", options=server.storage_options())
    assert reported["exit_code"] == 0, reported
    expected, found = tensors_of(model), tensors_of(tmp_path / "copy")
    assert all(found[name].equal(expected[name]) for name in expected)
    assert all(each["verified_by"] for each in record(tmp_path / "copy").values())


def test_a_byte_that_is_wrong_in_the_storage_is_an_error(model: Path, tmp_path: Path) -> None:
    with FaultServer(model.parent, flips_always) as server:
        reported = pull(server.url("model"), tmp_path / "copy", options=server.storage_options())
        assert (reported["exit_code"], reported["error"]) == (65, "ChecksumError"), reported
        assert visible(tmp_path / "copy") == set()
        reported = pull(server.url("model"), tmp_path / "copy", "--no-verify", options=server.storage_options())
        assert reported["exit_code"] == 0, reported
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
    reported = pull(f"hf://{name}", tmp_path / "copy")
    assert (reported["exit_code"], reported["read_bytes"], reported["kept_files"]) == (0, 3, 1), reported
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
    reported = pull(uri, tmp_path / "copy", options=options)
    assert (reported["exit_code"], reported["read_bytes"], reported["verified_files"]) == (0, 0, 2), reported


def test_lines_show_the_progress_without_a_terminal(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SHOWN_EVERY_S", 0.0)
    shown = CliRunner().invoke(main, ["pull", str(model), str(tmp_path / "copy")]).stderr
    assert " MB of 6.3" in shown or " of 6.2" in shown, shown


# --- how a pull cuts files into pieces, and how far it reads ahead: little on a slow line, much on a fast one -------

MIB = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 40 * MIB), st.integers(0, 40 * MIB)), max_size=8))
def test_pieces_hold_every_missing_byte_once_and_in_order(missing: list[tuple[int, int]]) -> None:
    pieces = cut(missing)
    for number, (begin, end) in enumerate(missing):
        own = [each for each in pieces if each.source == number]
        assert sum(each.end - each.begin for each in own) == max(end - begin, 0)
        assert all(one.end == other.begin for one, other in pairwise(own))
        assert not own or (own[0].begin, own[-1].end) == (begin, end)
    assert [each.source for each in pieces] == sorted(each.source for each in pieces)


def test_a_piece_is_an_eighth_of_what_is_before_it_at_most() -> None:
    before = 0
    for each in cut([(123_456, 100 * MIB), (0, 100 * MIB)]):
        assert each.end - each.begin <= max(SMALLEST_BYTES, before // 8)
        before += each.end - each.begin


def test_pieces_grow_to_the_largest_block_and_end_where_blocks_do() -> None:
    pieces = cut([(0, 1 << 30)])
    assert pieces[0].end == SMALLEST_BYTES
    assert max(each.end - each.begin for each in pieces) == LARGEST_BYTES
    assert len(pieces) < (1 << 30) / LARGEST_BYTES + 100
    assert all(each.end % LARGEST_BYTES == 0 for each in pieces if each.end > 128 * MIB)


def run(bytes_per_s: float, wait_s: float, answers: int) -> list[int]:
    """Return how much was under way, if all of it arrives before more is asked for."""
    now, ahead, seen = 0.0, Ahead(256 * MIB, 0.0), []
    for _ in range(answers):
        seen.append(ahead.bytes)
        now += wait_s + ahead.bytes / bytes_per_s
        ahead.count(ahead.bytes, now)
    return seen


@each_row("wait_s", [0.0, 0.03])
@each_row("bytes_per_s", [2e4, 1e6, 2e7])
def test_on_a_slow_line_about_a_second_is_under_way(bytes_per_s: float, wait_s: float) -> None:
    assert run(bytes_per_s, wait_s, 30)[-1] == pytest.approx(max(bytes_per_s, FIRST_BYTES), rel=0.05)
    assert max(run(bytes_per_s, wait_s, 30)) <= max(bytes_per_s, FIRST_BYTES)


def test_on_a_fast_line_all_may_be_under_way_after_a_few_answers() -> None:
    assert run(2e9, 0.0002, 5)[-1] == 256 * MIB
    assert run(2e9, 0.03, 6)[-1] == 256 * MIB


def test_a_line_that_becomes_slow_has_less_under_way() -> None:
    ahead = Ahead(256 * MIB, 0.0)
    now = 0.0
    while ahead.bytes < 256 * MIB:
        now += 0.01
        ahead.count(ahead.bytes, now)
    assert ahead.count(256 * MIB, now + 256)
    assert ahead.bytes == MIB


def test_bytes_are_counted_until_all_that_was_under_way_is_there() -> None:
    ahead = Ahead(256 * MIB, 0.0)
    assert not ahead.count(FIRST_BYTES - 1, 0.1)
    assert ahead.count(1, 0.1)


def test_no_more_is_under_way_than_the_memory_limit() -> None:
    ahead = Ahead(1000, 0.0)
    assert ahead.bytes == 1000
    assert not ahead.count(1000, 1e-9)
    assert ahead.bytes == 1000
