"""``python -m streamer pull``: what is pulled, that it is equal, and that a second run reads nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from comparison import tensors_of
from pulls import pull, visible
from safetensors.torch import save_file
from servers.nginx import NginxServer
from servers.scripted_http import Answer, Request, ScriptedServer
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._commands.copies import _summary_of_pull
from streamer._pull.record import PullReport


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model as a pipeline has it, with sub-folders, code and an empty file."""
    folder = tmp_path / "model"
    (folder / "vae" / "deep").mkdir(parents=True)
    save_file({"w": torch.arange(1000.0)}, folder / "model.safetensors")
    save_file({"v": torch.arange(10.0)}, folder / "vae" / "model.safetensors")
    (folder / "config.json").write_text("{}")
    (folder / "vae" / "deep" / "a b%20c.json").write_text("[1]")
    (folder / "modeling.py").write_text("raise SystemExit('executed')")
    (folder / "empty.txt").write_bytes(b"")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in visible(folder)}


@pytest.fixture(params=["s3", "http", "file", "memory"])
def place(request: pytest.FixtureRequest, model: Path) -> tuple[str, dict[str, object] | None]:
    """The URL of the model in a storage, and its options."""
    if request.param == "s3":
        server: SeaweedServer = request.getfixturevalue("s3_server")
        return server.upload_folder(model, "private", f"pulls/{model.parent.name}"), server.storage_options()
    if request.param == "http":
        nginx: NginxServer = request.getfixturevalue("http_server")
        target = nginx.root / model.parent.name
        fsspec.filesystem("file").put(f"{model}/", f"{target}/", recursive=True)
        return f"{nginx.http_url}/open/{target.name}", {}
    if request.param == "memory":
        fsspec.filesystem("memory").put(f"{model}/", f"/{model.parent.name}/", recursive=True)
        return f"memory://{model.parent.name}", None
    return str(model), None


def test_all_files_are_pulled_and_equal_and_nothing_is_executed(
    place: tuple[str, dict[str, object] | None], model: Path, tmp_path: Path
) -> None:
    reported = pull(place[0], tmp_path / "copy", options=place[1])
    assert reported["exit_code"] == 0, reported
    assert content(tmp_path / "copy") == content(model)
    assert reported["files"] == 6
    assert reported["read_bytes"] == reported["bytes"] == sum(map(len, content(model).values()))
    assert streamer.load(tmp_path / "copy")["w"].equal(torch.arange(1000.0))
    assert not (tmp_path / "copy" / ".streamer-pull-incomplete").exists()
    assert os.listdir(tmp_path / "copy" / ".streamer-pull" / "parts") == []


def test_a_second_run_reads_nothing(place: tuple[str, dict[str, object] | None], model: Path, tmp_path: Path) -> None:
    pull(place[0], tmp_path / "copy", options=place[1])
    reported = pull(place[0], tmp_path / "copy", options=place[1])
    assert (reported["exit_code"], reported["read_bytes"], reported["kept_files"], reported["files"]) == (0, 0, 6, 6), (
        reported
    )
    assert content(tmp_path / "copy") == content(model)


def test_an_object_without_a_version_is_read_again(tmp_path: Path) -> None:
    def script(request: Request, answer: Answer) -> None:
        if request.path.endswith("/"):
            answer.become(404, ETag="")
        del answer.headers["ETag"]

    with ScriptedServer(b"old", script) as server:
        assert pull(server.url, tmp_path / "copy")["exit_code"] == 0
        server.data = b"new"
        assert pull(server.url, tmp_path / "copy")["exit_code"] == 0
    assert (tmp_path / "copy" / "object").read_bytes() == b"new"


def test_the_tensors_are_those_of_the_storage(
    s3_checkpoint: str, s3_server: SeaweedServer, reference: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    reported = pull(s3_checkpoint, tmp_path / "copy", options=s3_server.storage_options())
    assert reported["exit_code"] == 0, reported
    loaded = streamer.load(tmp_path / "copy")
    assert loaded.keys() == reference.keys()
    assert all(loaded[name].equal(reference[name]) for name in reference)
    assert tensors_of(tmp_path / "copy").keys() == reference.keys()


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (("--include", "*.safetensors"), {"model.safetensors", "vae/model.safetensors"}),
        (("--include", "*.json", "--exclude", "vae/"), {"config.json"}),
        (("--exclude", "*.py", "--exclude", "vae/*", "--exclude", "*.txt"), {"config.json", "model.safetensors"}),
        (("--include", "vae/deep/"), {"vae/deep/a b%20c.json"}),
    ],
)
def test_patterns_choose_files(model: Path, tmp_path: Path, patterns: tuple[str, ...], names: set[str]) -> None:
    assert pull(model, tmp_path / "copy", *patterns)["exit_code"] == 0
    assert visible(tmp_path / "copy") == names


def test_patterns_of_a_second_run_add_files_regression(
    place: tuple[str, dict[str, object] | None], tmp_path: Path
) -> None:
    """From a page of links, which shows no versions, it removed those of the first run as no longer there."""
    pull(place[0], tmp_path / "copy", "--include", "*.json", options=place[1])
    reported = pull(place[0], tmp_path / "copy", "--include", "*.safetensors", options=place[1])
    assert (reported["files"], reported["removed"]) == (4, [])
    assert visible(tmp_path / "copy") == {
        "config.json",
        "vae/deep/a b%20c.json",
        "model.safetensors",
        "vae/model.safetensors",
    }


def test_a_replaced_file_that_the_patterns_leave_out_is_removed_and_named_so_regression(
    model: Path, tmp_path: Path
) -> None:
    """It was reported as no longer in the storage."""
    pull(model, tmp_path / "copy")
    (model / "config.json").write_text('{"a": 1}')
    (model / "empty.txt").unlink()
    reported = pull(model, tmp_path / "copy", "--include", "*.safetensors")
    assert (reported["removed"], reported["replaced"]) == (["config.json", "empty.txt"], ["config.json"])


def test_a_file_that_somebody_edited_stays_when_the_storage_has_it_no_longer_regression(
    model: Path, tmp_path: Path
) -> None:
    pull(model, tmp_path / "copy")
    (tmp_path / "copy" / "config.json").write_text('{"mine": 1}')
    (model / "config.json").unlink()
    reported = pull(model, tmp_path / "copy")
    assert (reported["exit_code"], reported["removed"]) == (0, [])
    assert (tmp_path / "copy" / "config.json").read_text() == '{"mine": 1}'


def test_a_deleted_file_that_is_not_selected_is_not_reported_as_present_regression(model: Path, tmp_path: Path) -> None:
    pull(model, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").unlink()
    assert pull(model, tmp_path / "copy", "--include", "*.json")["files"] == 5
    assert pull(model, tmp_path / "copy")["read_bytes"] == (model / "model.safetensors").stat().st_size


def test_one_object_is_one_file(s3_server: SeaweedServer, tmp_path: Path) -> None:
    s3_server.put("private", "pulled/one/model.bin", b"12345")
    uri = "s3://private/pulled/one/model.bin"
    assert pull(uri, tmp_path / "copy", options=s3_server.storage_options())["files"] == 1
    assert (tmp_path / "copy" / "model.bin").read_bytes() == b"12345"


def test_a_replaced_file_is_pulled_again_and_an_absent_one_removed(model: Path, tmp_path: Path) -> None:
    pull(model, tmp_path / "copy")
    (model / "config.json").write_text('{"a": 1}')
    (model / "vae" / "model.safetensors").unlink()
    reported = pull(model, tmp_path / "copy")
    assert (reported["exit_code"], reported["read_bytes"], reported["removed"]) == (0, 8, ["vae/model.safetensors"]), (
        reported
    )
    assert content(tmp_path / "copy") == content(model)


def test_files_of_others_in_the_folder_stay(model: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes.txt").write_text("mine")
    pull(model, tmp_path / "copy")
    assert (tmp_path / "copy" / "notes.txt").read_text() == "mine"


def test_a_check_finds_a_changed_file_and_pulls_it_again(model: Path, tmp_path: Path) -> None:
    pull(model, tmp_path / "copy")
    path = tmp_path / "copy" / "model.safetensors"
    flipped, status = bytearray(path.read_bytes()), path.stat()
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a flaw of the disk leaves it
    assert pull(model, tmp_path / "copy")["read_bytes"] == 0
    assert pull(model, tmp_path / "copy", "--check")["read_bytes"] == len(flipped)
    assert content(tmp_path / "copy") == content(model)


def test_a_file_of_equal_size_in_place_of_a_pulled_one_is_replaced_regression(model: Path, tmp_path: Path) -> None:
    """It was reported as there: only sizes were compared."""
    pull(model, tmp_path / "copy")
    path = tmp_path / "copy" / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert pull(model, tmp_path / "copy")["read_bytes"] == path.stat().st_size
    assert content(tmp_path / "copy") == content(model)


def test_files_that_were_only_copied_are_compared_and_not_pulled_again(model: Path, tmp_path: Path) -> None:
    pull(model, tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "copy", copy_function=shutil.copyfile)  # with times of their own
    record = tmp_path / "copy" / ".streamer-pull" / "complete.json"
    before = record.read_bytes()
    assert pull(model, tmp_path / "copy")["read_bytes"] == 0
    assert record.read_bytes() != before  # the times are noted: the next pull reads nothing
    assert content(tmp_path / "copy") == content(model)


def test_a_file_that_is_gone_is_pulled_again(model: Path, tmp_path: Path) -> None:
    pull(model, tmp_path / "copy")
    (tmp_path / "copy" / "config.json").unlink()
    assert pull(model, tmp_path / "copy")["kept_files"] == 5
    assert content(tmp_path / "copy") == content(model)


def test_digests_of_the_storage_are_compared(s3_server: SeaweedServer, tmp_path: Path) -> None:
    client = s3_server.client()
    client.put_object(Bucket="private", Key="digests/a.bin", Body=b"1" * 100, ChecksumAlgorithm="SHA256")
    reported = pull("s3://private/digests", tmp_path / "copy", options=s3_server.storage_options())
    assert reported["verified_files"] == 1, reported
    record = json.loads((tmp_path / "copy" / ".streamer-pull" / "complete.json").read_text())
    assert record["files"]["a.bin"]["verified_by"]


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA256"])
def test_an_empty_object_is_an_empty_file_regression(s3_server: SeaweedServer, tmp_path: Path, algorithm: str) -> None:
    """As ``.gitkeep`` and ``__init__.py`` are; S3 keeps a checksum of these, too."""
    for key, body in {"empty.txt": b"", "full.txt": b"1"}.items():
        name = f"empty/{algorithm}/{key}"
        s3_server.client().put_object(Bucket="private", Key=name, Body=body, ChecksumAlgorithm=algorithm)
    reported = pull(f"s3://private/empty/{algorithm}", tmp_path / "copy", options=s3_server.storage_options())
    assert (reported["exit_code"], reported["verified_files"]) == (0, 2), reported
    assert content(tmp_path / "copy") == {"empty.txt": b"", "full.txt": b"1"}


def test_the_url_of_an_index_pulls_its_shards_regression(
    place: tuple[str, dict[str, object] | None], model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = f"{place[0]}/sharded"
    if target.startswith("http"):  # this server takes no PUT
        target = str(request.getfixturevalue("http_server").root / model.parent.name / "sharded")
    streamer.save({"a": np.ones(9), "b": np.ones(9)}, target, max_shard_bytes=72, storage_options=place[1])
    index = f"{place[0]}/sharded/model.safetensors.index.json"
    reported = pull(index, tmp_path / "copy", options=place[1])
    shards = {f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    assert (reported["exit_code"], visible(tmp_path / "copy")) == (0, {"model.safetensors.index.json", *shards}), (
        reported
    )
    assert streamer.load(tmp_path / "copy", framework="np").keys() == {"a", "b"}
    again = pull(index, tmp_path / "copy", options=place[1])
    assert (again["exit_code"], again["kept_files"], again["files"]) == (0, 3, 3), again


@pytest.mark.parametrize(
    ("folder", "reason", "said"),
    [
        ("/proc/nothere", "ENOENT", "/proc/nothere cannot be made or written: No such file"),
        ("{full}", "ENOSPC", "Free some: the next run continues"),
    ],
)
def test_an_error_of_the_disk_has_its_name_regression(
    model: Path, tmp_path: Path, folder: str, reason: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 10, 10, 10, 0, 255))
    if "full" in folder:
        monkeypatch.setattr(os, "statvfs", lambda path: full)
    reported = pull(model, Path(folder.format(full=tmp_path / "full")))
    assert (reported["exit_code"], reported["code"], said in reported["message"]) == (73, reason, True), reported


def test_a_local_folder_with_a_half_pull_is_refused(model: Path, tmp_path: Path) -> None:
    (model / ".streamer-pull-incomplete").write_text("")
    reported = pull(model, tmp_path / "copy")
    assert (reported["exit_code"], reported["error"]) == (66, "ObjectNotFoundError")
    for uri in (model, model / "*.safetensors"):
        with pytest.raises(streamer.ObjectNotFoundError, match=r"half pulled.*Run python -m streamer pull again"):
            streamer.load(uri)
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model.safetensors"}}')
    for uri in (model, model / "model.safetensors.index.json"):
        with pytest.raises(streamer.ObjectNotFoundError, match="half pulled"):
            streamer.open(uri, framework="np")


@pytest.mark.parametrize("inside", ["", "copy", ".."])
def test_a_folder_is_not_pulled_into_itself(model: Path, inside: str) -> None:
    reported = pull(model, model / inside)
    assert (reported["exit_code"], "in one another" in reported["message"]) == (2, True), reported


def test_a_folder_holds_one_pull(model: Path, tmp_path: Path) -> None:
    pull(model, tmp_path / "copy")
    reported = pull(model / "vae", tmp_path / "copy")
    assert (reported["exit_code"], "holds a pull of" in reported["message"]) == (2, True), reported


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("s3://private/absent/", 66),
        ("s3://private/absent.safetensors", 66),
        ("nothing://host/model", 2),
        ("http://127.0.0.1:1/model.safetensors", 69),
    ],
)
@pytest.mark.usefixtures("short_pauses")
def test_exit_codes_tell_what_is_wrong(s3_server: SeaweedServer, tmp_path: Path, uri: str, code: int) -> None:
    options = s3_server.storage_options() if uri.startswith("s3") else None
    reported = pull(uri, tmp_path / "copy", options=options)
    assert reported["exit_code"] == code, reported
    assert visible(tmp_path / "copy") == set()
    assert reported["stderr"].startswith("Error: ")


def test_denied_access_has_its_own_exit_code(s3_server: SeaweedServer, tmp_path: Path) -> None:
    s3_server.put("private", "denied/a.bin", b"1")
    reported = pull("s3://private/denied", tmp_path / "copy", options=s3_server.storage_options(s3_server.limited))
    assert reported["exit_code"] == 77, reported


def test_no_selected_file_is_an_error(model: Path, tmp_path: Path) -> None:
    assert pull(model, tmp_path / "copy", "--include", "*.gguf")["exit_code"] == 66


def test_a_quiet_pull_prints_nothing(model: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from streamer._cli import main

    result = CliRunner().invoke(main, ["pull", str(model), str(tmp_path / "copy"), "--quiet"])
    assert (result.exit_code, result.output) == (0, "")
    result = CliRunner().invoke(main, ["pull", str(model), str(tmp_path / "copy")])
    assert "6 files" in result.output
    assert "all there, 6 of them from before; 0.00 B read" in result.output
    assert "none compared with a digest of the storage" in result.output  # a disk keeps none


@pytest.mark.parametrize(("verified", "words"), [(0, "none"), (1, "1 of them"), (2, "each")])
def test_the_sentence_says_how_many_files_were_compared(verified: int, words: str) -> None:
    report = PullReport("s3://b/m", "m", 2, 9, 9, 0, verified, (), 1.0)
    assert _summary_of_pull(report).endswith(f"9.00 B read in 1.0 s, {words} compared with a digest of the storage")


def test_arrays_are_equal_without_torch(model: Path, tmp_path: Path) -> None:
    pull(model, tmp_path / "copy", "--no-verify")
    assert np.array_equal(streamer.load(tmp_path / "copy", framework="np")["w"], np.arange(1000.0, dtype=np.float32))


def test_a_relative_source_is_another_one_from_another_folder_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull of `source` from another working directory replaced the files of the first without a word."""
    for name, value in (("one", 1.0), ("two", 2.0)):
        (tmp_path / name / "source").mkdir(parents=True)
        save_file({"w": torch.full((3,), value)}, tmp_path / name / "source" / "model.safetensors")
    monkeypatch.chdir(tmp_path / "one")
    assert pull("source", tmp_path / "to")["exit_code"] == 0
    monkeypatch.chdir(tmp_path / "two")
    reported = pull("source", tmp_path / "to")
    assert reported["exit_code"] == 2
    assert f"holds a pull of {tmp_path / 'one' / 'source'}" in reported["message"]
    assert streamer.load(tmp_path / "to")["w"][0] == 1.0
