"""Writes through ``streamer::``: equal, in parts at the same time, whole or not there; over each kind of storage."""

from __future__ import annotations

import io
import os
import pickle
import random
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.callbacks import Callback
from servers.azurite import AzuriteServer
from servers.forwarding import ForwardingProxy
from servers.gcs_emulator import GcsServer
from servers.seaweedfs import SeaweedServer

import streamer
from streamer.integrations.fsspec import StreamerFileSystem
from streamer.integrations.fsspec.written_file import LEAST_PART_BYTES

CONTENT = random.Random(0).randbytes(2 * LEAST_PART_BYTES + 300_001)


@pytest.fixture(params=["s3", "gs", "az", "memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[StreamerFileSystem, str]:
    options: dict[str, Any] = {}
    folder = f"private/writes-{tmp_path.name}"
    if request.param == "s3":
        s3: SeaweedServer = request.getfixturevalue("s3_server")
        options = s3.storage_options()
    elif request.param == "gs":
        know_flat_buckets(request.getfixturevalue("monkeypatch"))
        gs: GcsServer = request.getfixturevalue("gcs_server")
        options = gs.storage_options()
    elif request.param == "az":
        az: AzuriteServer = request.getfixturevalue("azure_server")
        options = az.storage_options()
    else:
        folder = f"/{folder}" if request.param == "memory" else str(tmp_path / "files")
    return StreamerFileSystem(target_protocol=request.param, target_options=options), folder


def know_flat_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give gcsfs the answer to its question for the kind of a bucket: it asks by gRPC, which the emulator lacks.

    It would ask Google for a minute.
    """
    extended = pytest.importorskip("gcsfs.extended_gcsfs")

    async def kind_of(file_system: Any, bucket: str) -> Any:
        return extended.BucketType.NON_HIERARCHICAL

    monkeypatch.setattr(extended.ExtendedGcsFileSystem, "_get_bucket_type", kind_of)


def is_there(fs: StreamerFileSystem, path: str) -> bool:
    try:
        fs.cat_file(path)
    except FileNotFoundError:
        return False
    return True


def fail_in_block(opened: Any, content: bytes) -> None:
    with opened as file:
        file.write(content)
        raise KeyError


@pytest.mark.parametrize("size", [0, 1, 100_000, LEAST_PART_BYTES, 2 * LEAST_PART_BYTES, len(CONTENT)])
def test_a_file_of_any_size_shows_up_when_it_is_closed(size: int, place: tuple[StreamerFileSystem, str]) -> None:
    fs, folder = place
    with fs.open(f"{folder}/a", "wb", block_size=LEAST_PART_BYTES) as file:
        for begin in range(0, size, 700_001):
            assert file.write(CONTENT[begin : min(begin + 700_001, size)]) == min(700_001, size - begin)
        assert file.tell() == size
    assert fs.cat_file(f"{folder}/a") == CONTENT[:size]


def test_a_file_is_replaced_and_a_failure_keeps_the_old_one(place: tuple[StreamerFileSystem, str]) -> None:
    fs, folder = place
    fs.pipe_file(f"{folder}/a", b"old")
    # fsspec's memory replaces a file as soon as it is opened
    for write in (b"new",) if fs.fs.protocol == "memory" else (b"new", CONTENT):
        with pytest.raises(KeyError):
            fail_in_block(fs.open(f"{folder}/a", "wb", block_size=LEAST_PART_BYTES), write)
        assert fs.cat_file(f"{folder}/a") == b"old"
    with fs.open(f"{folder}/a", "w") as text:
        text.write("new\n")
    assert fs.cat_file(f"{folder}/a") == b"new\n"


@pytest.mark.parametrize("size", [3, len(CONTENT)])
def test_a_failure_in_a_block_of_fsspec_open_leaves_nothing(size: int, place: tuple[StreamerFileSystem, str]) -> None:
    fs, folder = place
    with pytest.raises(KeyError):
        fail_in_block(fsspec.core.OpenFile(fs, f"{folder}/a", "wb"), CONTENT[:size])
    assert not is_there(fs, f"{folder}/a")


def test_a_file_that_is_there_is_not_created(place: tuple[StreamerFileSystem, str], tmp_path: Path) -> None:
    fs, folder = place
    (tmp_path / "local").write_bytes(b"new")
    fs.pipe({f"{folder}/a": b"old", f"{folder}/b": b""})
    for call in (
        lambda: fs.open(f"{folder}/a", "xb"),
        lambda: fs.pipe_file(f"{folder}/a", b"new", mode="create"),
        lambda: fs.put_file(tmp_path / "local", f"{folder}/a", mode="create"),
    ):
        with pytest.raises(FileExistsError):
            call()
    assert fs.cat(f"{folder}", recursive=True) == {path: {"a": b"old", "b": b""}[path[-1]] for path in fs.find(folder)}


def test_a_second_writer_is_told(place: tuple[StreamerFileSystem, str]) -> None:
    fs, folder = place
    if fs.fs.protocol == "memory":
        pytest.skip("fsspec's memory shows a file as soon as it is opened")
    for existing in (False, True):
        path = f"{folder}/{existing}"
        if existing:
            fs.pipe_file(path, b"old")
        file = fs.open(path, "wb")
        file.write(b"late")
        fs.pipe_file(path, b"first")
        with pytest.raises(streamer.ChangedError):
            file.close()
        assert fs.cat_file(path) == b"first"


def test_a_folder_is_put_and_read_back(place: tuple[StreamerFileSystem, str], tmp_path: Path) -> None:
    fs, folder = place
    (tmp_path / "put" / "below").mkdir(parents=True)
    files = {"large.bin": CONTENT, "below/small.txt": b"small", "empty": b""}
    for name, content in files.items():
        (tmp_path / "put" / name).write_bytes(content)
    callback = Callback()
    fs.put(str(tmp_path / "put"), f"{folder}/", recursive=True, callback=callback)
    fs.put(str(tmp_path / "put" / "large.bin"), f"{folder}/again")
    assert {name: fs.cat_file(f"{folder}/put/{name}") for name in files} == files
    assert fs.cat_file(f"{folder}/again") == CONTENT


def test_a_transaction_shows_all_files_or_none(place: tuple[StreamerFileSystem, str]) -> None:
    fs, folder = place
    if fs.fs.protocol == "memory":
        pytest.skip("fsspec's memory shows a file as soon as it is opened")

    def fail() -> None:
        with fs.transaction:
            fs.pipe_file(f"{folder}/b", b"b")
            with fs.open(f"{folder}/a", "wb") as file:
                file.write(b"a")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not is_there(fs, f"{folder}/a")
    assert not is_there(fs, f"{folder}/b")
    with fs.transaction:
        for name in "ab":
            with fs.open(f"{folder}/{name}", "wb") as file:
                file.write(name.encode())
        assert not is_there(fs, f"{folder}/a")
    assert [fs.cat_file(f"{folder}/{name}") for name in "ab"] == [b"a", b"b"]


def test_a_file_that_nothing_refers_to_is_given_up_and_told() -> None:
    fs = StreamerFileSystem(target_protocol="memory")
    with pytest.warns(ResourceWarning, match="was not closed, and is not written"):
        fs.open("/given-up", "wb").write(b"half")
    assert not is_there(fs, "/given-up")


def test_a_file_that_is_written_is_neither_read_nor_pickled() -> None:
    with StreamerFileSystem(target_protocol="memory").open("/written", "wb") as file:
        for call in (file.read, lambda: file.seek(0)):
            with pytest.raises(io.UnsupportedOperation):
                call()
        with pytest.raises(TypeError, match="open for writing cannot be pickled"):
            pickle.dumps(file)


def test_a_file_may_be_written_while_another_exception_is_handled() -> None:
    fs = StreamerFileSystem(target_protocol="memory")
    try:
        raise KeyError
    except KeyError:
        with fs.open("/report", "wb") as file:
            file.write(b"what went wrong")
    assert fs.cat_file("/report") == b"what went wrong"


def test_parts_go_out_at_the_same_time_and_before_the_file_is_closed(s3_server: SeaweedServer, tmp_path: Path) -> None:
    with ForwardingProxy(s3_server.port, lambda method, path: None) as proxy:
        options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        fs, path = fsspec.url_to_fs(f"streamer::s3://private/{tmp_path.name}", s3=options)
        with fs.open(path, "wb", block_size=LEAST_PART_BYTES) as file:
            file.write(CONTENT)
            assert [method for method, path in proxy.requests if "uploads" in path] == ["POST"]
        assert fs.cat_file(path) == CONTENT
    assert len([path for method, path in proxy.requests if "partNumber" in path]) == 3


def test_what_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(streamer.UsageError, match="cannot be written"):
        fsspec.filesystem("streamer", target_protocol="hf").pipe_file("someone/model/a", b"1")
    fs = StreamerFileSystem(target_protocol="file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        fs.pipe_file(str(tmp_path / "folder"), b"1")
    with pytest.raises(FileNotFoundError):
        fs.put_file(str(tmp_path / "absent"), str(tmp_path / "a"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(streamer.UsageError, match="no regular file"):
        fs.put_file(str(tmp_path / "pipe"), str(tmp_path / "a"))
    with pytest.raises(streamer.OptionError, match=r"fsspec\.open"):
        fs.open(str(tmp_path / "a"), "wb", compression="gzip")
    short = fs.open(str(tmp_path / "a"), "wb", size=4)
    short.write(b"123")
    with pytest.raises(streamer.UsageError, match="3 bytes were written, and 4 expected"):
        short.close()
    with pytest.raises(streamer.OptionError, match="'overwrite' or 'create', not 'append'"):
        fs.pipe_file(str(tmp_path / "a"), b"1", mode="append")
    with pytest.raises(streamer.OptionError, match="block_size"):
        fs.open(str(tmp_path / "a"), "wb", block_size=100)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "pipe"]
    with fsspec.open(f"streamer::file://{tmp_path}/a.gz", "wt", compression="gzip") as file:
        file.write("packed")
    with fsspec.open(f"streamer::file://{tmp_path}/a.gz", "rt", compression="gzip") as file:
        assert file.read() == "packed"
