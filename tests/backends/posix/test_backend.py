"""The store of mounted files: what a path means, what is refused, what a version notices."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
import pytest
from each_row import each_row
from nobody import as_nobody

import streamer
from streamer.backends.posix.store import PosixStore, streamer_open_store
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError, UsageError
from streamer.core.store.sources import FileSource, ObjectInfo


def write(path: Path, data: bytes = b"data") -> Path:
    path.write_bytes(data)
    return path


def test_other_schemes_are_left_to_others() -> None:
    assert streamer_open_store(scheme="s3", uri="s3://bucket/key", storage_options={}) is None


@pytest.mark.parametrize("prefix", ["", "file://", "local://", "file:", "local:"])
def test_a_path_and_its_urls_name_the_same_file(tmp_path: Path, prefix: str) -> None:
    path = write(tmp_path / "a.safetensors")
    assert PosixStore(f"{prefix}{path}").root == str(path)


def test_a_relative_path_is_taken_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert PosixStore("./folder/").root == str(tmp_path / "folder")


def test_dots_are_left_in_place_because_only_the_kernel_sees_through_links(tmp_path: Path) -> None:
    assert PosixStore(f"{tmp_path}/link/../a").root == f"{tmp_path}/link/../a"


def test_a_tilde_is_the_home_folder_as_in_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PosixStore("~/a.safetensors").root == str(tmp_path / "a.safetensors")


@pytest.mark.parametrize("name", [b"a b.safetensors", b"\xff\xfe.safetensors"])
def test_a_percent_encoded_url_finds_the_file_it_encodes(tmp_path: Path, name: bytes) -> None:
    path = write(tmp_path / os.fsdecode(name))
    assert PosixStore(path.as_uri()).root == str(path)


@pytest.mark.parametrize("prefix", ["FILE://", "File://localhost", "file://localhost", "local://localhost"])
def test_other_spellings_of_a_file_url_name_the_same_file(tmp_path: Path, prefix: str) -> None:
    path = write(tmp_path / "a b.safetensors")
    assert PosixStore(f"{prefix}{path}").root == str(path)
    assert PosixStore(f"{prefix}{quote(str(path))}").root == str(path)


def test_localhost_is_a_folder_only_where_the_file_is_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "localhost" / tmp_path.relative_to("/")
    copy.mkdir(parents=True)
    alone, path = write(copy / "alone"), write(tmp_path / "a")
    write(copy / "a")
    assert PosixStore(f"file://localhost{tmp_path}/alone").root == str(alone)
    assert PosixStore(f"file://localhost{path}").root == str(path)
    assert PosixStore("file://localhost/b").root == "/b"


@pytest.mark.parametrize("pattern", ["my%20model-*.x", "%6Dy%20model-?.x", "my%20model-%5B12%5D.x", "*%2Ex"])
def test_a_percent_encoded_pattern_finds_what_it_encodes(tmp_path: Path, pattern: str) -> None:
    write(tmp_path / "my model-1.x")
    assert PosixStore(f"file://{tmp_path}/{pattern}").root == f"{tmp_path}/{unquote(pattern)}"
    write(tmp_path / "100%20")
    assert PosixStore(f"file://{tmp_path}/1*%20").root == f"{tmp_path}/1*%20"


def test_a_file_with_a_literal_percent_wins_over_its_decoding(tmp_path: Path) -> None:
    write(tmp_path / "a b")
    literal = write(tmp_path / "a%20b")
    assert PosixStore(f"file://{literal}").root == str(literal)


def test_a_plain_path_is_never_decoded(tmp_path: Path) -> None:
    write(tmp_path / "a b")
    assert PosixStore(str(tmp_path / "a%20b")).root == str(tmp_path / "a%20b")


def test_a_question_mark_is_a_letter_of_a_file_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a?b#c@d")
    assert PosixStore(str(path)).info(str(path)).uri == str(path)


def test_a_path_with_a_nul_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="NUL"):
        PosixStore("/models/a\0b")


def test_a_login_in_a_url_of_a_file_is_refused_and_not_shown_regression(tmp_path: Path, monkeypatch) -> None:
    """It was taken for a folder, and shown."""
    monkeypatch.chdir(tmp_path)
    for uri in ("file://user:S3CR3T@host/x.safetensors", "local://user:S3CR3T@host", "file://u:S3CR3T@host/*"):
        with pytest.raises(UsageError, match="no login and no host") as caught:
            PosixStore(uri)
        assert "S3CR3T" not in str(caught.value)
    (tmp_path / "user@here").mkdir()
    assert PosixStore("file://user@here/a.safetensors").root == str(tmp_path / "user@here/a.safetensors")
    assert PosixStore("file:///models/user@here/a").root == "/models/user@here/a"


def test_info_has_the_size_and_follows_links(tmp_path: Path) -> None:
    write(tmp_path / "blob", b"12345")
    link = tmp_path / "model.safetensors"
    link.symlink_to("blob")
    info = PosixStore(str(link)).info(str(link))
    assert (info.path, info.uri, info.size_bytes) == (str(link), str(link), 5)


def test_the_source_is_the_absolute_path(tmp_path: Path) -> None:
    store = PosixStore(str(write(tmp_path / "a")))
    assert store.source(store.info(store.root)) == FileSource(str(tmp_path / "a"))


def test_the_version_changes_when_the_bytes_do_even_under_the_old_modification_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"old")
    store = PosixStore(str(path))
    before, times = store.info(store.root).version, path.stat()
    write(tmp_path / "a.new", b"new").replace(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert store.info(store.root).version != before


@pytest.mark.parametrize("name", ["absent", "file/below", "dangling", "folder"])
def test_what_is_no_file_is_not_found(tmp_path: Path, name: str) -> None:
    write(tmp_path / "file")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    path = str(tmp_path / name)
    with pytest.raises(ObjectNotFoundError, match=name.partition("/")[0]) as caught:
        PosixStore(path).info(path)
    assert caught.value.uri == path


@pytest.mark.parametrize(("name", "kind"), [("fifo", "a FIFO"), ("socket", "a socket"), ("null", "a character device")])
def test_pipes_sockets_and_devices_are_refused_without_waiting(tmp_path: Path, name: str, kind: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(StorageError, match=kind):
            PosixStore(str(tmp_path / name)).info(str(tmp_path / name))


def test_a_loop_of_links_is_a_storage_error_with_its_errno(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(StorageError) as caught:
        PosixStore(str(loop)).info(str(loop))
    assert caught.value.code == "ELOOP"


def test_a_refused_stat_is_access_denied_and_keeps_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    store = PosixStore(str(tmp_path / "a"))
    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(AccessDeniedError) as caught:
        store.info(store.root)
    assert caught.value.code == "EACCES"
    assert isinstance(caught.value.__cause__, PermissionError)


def test_find_lists_the_files_of_one_folder_in_order(tmp_path: Path) -> None:
    for name in ("b.safetensors", "a.safetensors"):
        write(tmp_path / name)
    (tmp_path / "c.safetensors").symlink_to("a.safetensors")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "below")
    found = PosixStore(str(tmp_path)).find(str(tmp_path))
    assert [Path(info.path).name[0] for info in found if info.size_bytes] == [*"abc"]
    assert [info.path for info in found if info.size_bytes is None] == [str(tmp_path / "fifo")]  # `info` refuses it


@pytest.mark.parametrize("target", ["nowhere", "link.safetensors"])
def test_a_broken_link_is_listed_so_that_no_shard_is_dropped_silently(tmp_path: Path, target: str) -> None:
    (tmp_path / "link.safetensors").symlink_to(target)
    store = PosixStore(str(tmp_path))
    (listed,) = store.find(store.root)
    assert (listed.path, listed.size_bytes) == (str(tmp_path / "link.safetensors"), None)
    with pytest.raises(StorageError):
        store.info(listed.path)


def test_what_the_file_system_does_not_describe_is_listed_so_that_it_is_not_dropped_silently_regression() -> None:
    """Whoever may list a folder and not search it, as with mode 0444, sees names alone; root always sees all."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{name}" for name in ("config.json", "model.safetensors")]
        for path in paths:
            Path(path).write_bytes(b"1")
        os.chmod(folder, 0o444)
        try:
            with as_nobody():
                found = PosixStore(folder).find(folder)
                for path in paths:
                    with pytest.raises(AccessDeniedError):
                        PosixStore(folder).info(path)
        finally:
            os.chmod(folder, 0o700)
    assert [(info.path, info.size_bytes) for info in found] == [(path, None) for path in paths]


def test_find_and_info_agree_about_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a")
    store = PosixStore(str(tmp_path))
    assert store.find(str(tmp_path)) == [store.info(str(path))]


def test_a_file_holds_no_files(tmp_path: Path) -> None:
    write(tmp_path / "file")
    assert PosixStore(str(tmp_path)).find(str(tmp_path / "file")) == []


@each_row(
    ("kind", "is_remote", "needs_cache"),
    [
        (0x6969, True, True),
        (0xFE534D42, True, True),
        (0xFF534D42, True, True),
        (0x01021997, True, True),
        (0x65735546, False, True),
        (0x0BD00BD0, False, True),
        (0xEF53, False, False),
        (None, False, False),
    ],
)
def test_a_file_system_of_another_machine_or_that_needs_the_page_cache_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int | None, is_remote: bool, needs_cache: bool
) -> None:
    """No such mount can be made in every test environment: the kernel's answer is replaced."""
    monkeypatch.setattr("streamer._native.file_system_type", lambda path: kind)
    path = write(tmp_path / "a.safetensors")
    store = PosixStore(str(path))
    source = store.source(store.info(str(path)))
    assert (source.is_remote, source.needs_cache) == (is_remote, needs_cache)


@pytest.mark.parametrize("folder", ["/dev/shm", "/proc", "/"])
def test_a_file_system_of_this_machine_is_not_remote(folder: str) -> None:
    info = ObjectInfo(f"{folder}/a", "a", size_bytes=1)
    assert PosixStore(folder).source(info) == FileSource(f"{folder}/a", is_remote=False)


def test_the_kernel_is_queried_once_per_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    monkeypatch.setattr("streamer._native.file_system_type", asked.append)
    store = PosixStore(str(tmp_path))
    for name in "abc":
        write(tmp_path / name)
    (tmp_path / "link").symlink_to("a")
    for info in store.find(str(tmp_path)):
        store.source(info)
    assert asked == [os.fsencode(tmp_path)]


def special(path: Path, kind: str) -> None:
    """Put something at a path that is no file."""
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        bound = socket.socket(socket.AF_UNIX)
        os.chdir(path.parent)  # the whole path may be longer than a socket's
        bound.bind(path.name)
        bound.close()
    else:
        path.mkdir()


@each_row("kind", ["a FIFO", "a socket", "a folder"])
@each_row("is_linked", [False, True])
def test_what_is_no_file_and_has_the_name_of_a_shard_is_an_error_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_linked: bool
) -> None:
    """It was dropped in silence, and the load went on without it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "other.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    name = folder / "model-00001-of-00001.safetensors"
    special(tmp_path / "elsewhere" if is_linked else name, kind)
    if is_linked:
        name.symlink_to(tmp_path / "elsewhere")
    for named in (folder, folder / "*.safetensors"):
        with pytest.raises(StorageError, match=f"{name.name}: This is {kind}, not a regular file"):
            streamer.load(named)
    special(folder / "model.safetensors.index.json", kind)
    with pytest.raises(StorageError, match=f"index.json: This is {kind}, not a regular file"):
        streamer.load(folder)


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a folder"])
def test_what_is_no_file_and_has_another_name_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    special(tmp_path / "model.safetensors.lock", kind)
    assert streamer.load(tmp_path) == {}


def test_a_draft_of_another_tool_stays_regression(tmp_path: Path) -> None:
    theirs, ours = tmp_path / ".m.safetensors-0123abcd", tmp_path / ".m.safetensors-streamer-0123abcd"
    for each in (theirs, ours):
        each.write_bytes(b"begun")
    streamer.save({"a": np.ones(3)}, tmp_path / "m.safetensors", resume=True)
    assert theirs.read_bytes() == b"begun"
    assert not ours.exists()


def test_a_draft_of_another_rank_that_is_not_there_or_may_not_be_seen_regression(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    shared = str(folder / ".m.safetensors-streamer-0123abcd"), False
    join = PosixStore(str(folder)).join_upload
    with pytest.raises(StorageError, match="the file that rank 0 has begun is not there"):
        join("m.safetensors", 1, shared)
    write(folder / ".m.safetensors-streamer-0123abcd")
    with as_nobody(), pytest.raises(AccessDeniedError, match="The file system refuses access"):
        join("m.safetensors", 1, shared)
