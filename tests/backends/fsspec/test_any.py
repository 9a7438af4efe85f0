"""The backend for every other URL: what it finds, that it reads exactly what was asked for, what it refuses."""

from __future__ import annotations

import gc
import io
import traceback
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from each_row import each_row
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from streamer.backends.fsspec.store import FsspecStore, streamer_open_store
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    HttpStatusError,
    ObjectNotFoundError,
    OptionError,
    RangeResponseError,
    StorageError,
    TransferTimeoutError,
    TruncatedError,
    UnknownSchemeError,
)
from streamer.core.store.sources import PythonSource

DATA = bytes(range(256)) * 64


class ClientResponseError(Exception):
    """As aiohttp's."""

    def __init__(self, status: int) -> None:
        self.status = status


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def opened(uri: str, **storage_options: Any) -> FsspecStore:
    store = streamer_open_store(scheme=uri.partition(":")[0], uri=uri, storage_options=storage_options)
    assert isinstance(store, FsspecStore)
    return store


def source_of(store: FsspecStore, path: str | None = None) -> PythonSource:
    return store.source(store.info(store.root if path is None else path))


def read(source: PythonSource, offset: int, count: int) -> bytes:
    buffer = bytearray(count)
    assert source.read_into(memoryview(buffer), offset) == count
    return bytes(buffer)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryFileSystem:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/models/a.safetensors", DATA)
    return fs


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "models.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("models/a.safetensors", DATA)
        writer.writestr("models/b.safetensors", DATA[::-1])
    return path


class Faulty(AsyncFileSystem):  # type: ignore[misc]
    """A file system with a loop of its own that does to a read whatever a test says."""

    protocol = "faulty"
    cachable = False

    def __init__(self, answer: bytes | Exception = DATA) -> None:
        super().__init__()
        self.answer = answer

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return {"name": path, "size": len(DATA), "type": "file"}

    async def _cat_file(self, path: str, start: int, end: int, **kwargs: Any) -> bytes:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


fsspec.register_implementation("faulty", Faulty)


def test_a_file_in_memory_is_described(memory: MemoryFileSystem) -> None:
    store = opened("memory://models/a.safetensors")
    info = store.info(store.root)
    assert (info.path, info.uri, info.size_bytes) == (
        "/models/a.safetensors",
        "memory://models/a.safetensors",
        len(DATA),
    )


@pytest.mark.parametrize("uri", ["memory://models", "memory://models/", "memory:///models"])
def test_a_folder_lists_its_files_as_info_describes_them(memory: MemoryFileSystem, uri: str) -> None:
    memory.pipe_file("/models/b.safetensors", b"b")
    memory.pipe_file("/models/sub/c.safetensors", b"c")
    store = opened(uri)
    found = store.find(store.root)
    assert [info.path for info in found] == ["/models/a.safetensors", "/models/b.safetensors"]
    assert found == [store.info(info.path) for info in found]
    assert found[0].uri.replace("///", "//") == "memory://models/a.safetensors"


def test_a_file_holds_no_files(memory: MemoryFileSystem) -> None:
    store = opened("memory://models/a.safetensors")
    assert store.find(store.root) == []


@pytest.mark.parametrize(("uri", "reported"), [("memory://absent", "no such file"), ("memory://models", "a folder")])
def test_what_is_no_file_is_not_found(memory: MemoryFileSystem, uri: str, reported: str) -> None:
    store = opened(uri)
    with pytest.raises(ObjectNotFoundError, match=reported) as caught:
        store.info(store.root)
    assert caught.value.uri == uri


def test_memory_is_read_by_many_threads_at_once(memory: MemoryFileSystem) -> None:
    source = source_of(opened("memory://models/a.safetensors"))
    assert source.max_threads is None
    offsets = [(7 * step) % (len(DATA) - 100) for step in range(400)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda offset: read(source, offset, 100), offsets))
    assert got == [DATA[offset : offset + 100] for offset in offsets]


def test_an_empty_read_is_no_read(memory: MemoryFileSystem) -> None:
    assert read(source_of(opened("memory://models/a.safetensors")), 5, 0) == b""


@pytest.mark.parametrize("scheme", ["memory", "zip", "simplecache"])
def test_a_read_past_the_end_is_truncated_and_says_where(
    memory: MemoryFileSystem, archive: Path, tmp_path: Path, scheme: str
) -> None:
    uri = {
        "memory": "memory://models/a.safetensors",
        "zip": f"zip://models/a.safetensors::file://{archive}",
        "simplecache": "simplecache::memory://models/a.safetensors",
    }[scheme]
    options = {"simplecache": {"cache_storage": str(tmp_path / "cache")}} if scheme == "simplecache" else {}
    source = source_of(opened(uri, **options))
    begin = len(DATA) - 10
    with pytest.raises(TruncatedError, match="after 10 of the 30 bytes") as caught:
        source.read_into(memoryview(bytearray(30)), begin)
    assert (caught.value.byte_range, caught.value.object_size) == ((begin, begin + 30), len(DATA))
    assert caught.value.uri == uri


def test_an_archive_is_read_by_one_thread_through_one_file(archive: Path) -> None:
    store = opened(f"zip://models::file://{archive}")
    first, second = (source_of(store, info.path) for info in store.find(store.root))
    assert (first.max_threads, second.max_threads) == (1, 1)
    assert read(first, 300, 50) == DATA[300:350]
    assert read(first, 100, 50) == DATA[100:150]
    assert read(second, 0, len(DATA)) == DATA[::-1]


def test_two_files_of_one_archive_may_be_read_from_two_threads(archive: Path) -> None:
    store = opened(f"zip://models::file://{archive}")
    sources = [source_of(store, info.path) for info in store.find(store.root)]
    offsets = [(7 * step) % (len(DATA) - 100) for step in range(200)]
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda source: [read(source, offset, 100) for offset in offsets], sources))
    assert got == [[data[offset : offset + 100] for offset in offsets] for data in (DATA, DATA[::-1])]


@pytest.mark.parametrize("root", ["models", ""])
def test_the_files_of_an_archive_are_named_with_their_archive(archive: Path, root: str) -> None:
    store = opened(f"zip://{root}::file://{archive}")
    assert store.info("models/a.safetensors").uri == f"zip://models/a.safetensors::file://{archive}"


def test_a_cached_file_is_read_from_its_copy(memory: MemoryFileSystem, tmp_path: Path) -> None:
    uri, options = "simplecache::memory://models/a.safetensors", {"cache_storage": str(tmp_path)}
    source = source_of(opened(uri, simplecache=options))
    assert source.max_threads == 1
    assert read(source, 100, 50) == DATA[100:150]
    memory.rm("/models/a.safetensors")
    assert read(source, 200, 50) == DATA[200:250]


def test_a_reader_that_is_let_go_closes_its_file(memory: MemoryFileSystem, tmp_path: Path) -> None:
    options = {"cache_storage": str(tmp_path)}
    source = source_of(opened("simplecache::memory://models/a.safetensors", simplecache=options))
    read(source, 0, 10)
    file = source.read_into.__self__._file  # type: ignore[attr-defined]
    del source
    gc.collect()
    assert file.closed


@each_row(
    ("answer", "cls"),
    [
        (b"", TruncatedError),
        (b"123456789", TruncatedError),
        (b"12345678901", RangeResponseError),
        (FileNotFoundError("gone"), ObjectNotFoundError),
        (PermissionError("no"), AccessDeniedError),
        (fsspec.exceptions.FSTimeoutError(), TransferTimeoutError),
        (ConnectionResetError(104, "reset"), ConnectError),
        (OSError(111, "refused"), ConnectError),
        (OSError(5, "io"), StorageError),
        (RuntimeError("surprise"), StorageError),
        (ClientResponseError(403), AccessDeniedError),
        (ClientResponseError(503), HttpStatusError),
        (caused(FileNotFoundError("url"), ClientResponseError(404)), ObjectNotFoundError),
        (caused(FileNotFoundError("url"), ClientResponseError(403)), AccessDeniedError),
        (caused(FileNotFoundError("url"), OSError(111, "refused")), ConnectError),
        (caused(FileNotFoundError("url"), RuntimeError("whatever")), ObjectNotFoundError),
    ],
)
def test_a_wrong_answer_to_a_read_is_an_error_with_its_range(
    answer: bytes | Exception, cls: type[StorageError]
) -> None:
    source = source_of(opened("faulty://x", answer=answer))
    with pytest.raises(StorageError) as caught:
        source.read_into(memoryview(bytearray(10)), 5)
    assert type(caught.value) is cls
    assert caught.value.byte_range == (5, 15)
    assert type(caught.value.__cause__) is (type(answer) if isinstance(answer, Exception) else type(None))


def test_an_own_event_loop_takes_reads_from_many_threads() -> None:
    assert source_of(opened("faulty://x")).max_threads is None


def test_the_signature_of_a_url_is_in_no_message_repr_or_traceback() -> None:
    store = opened("faulty://x?sig=CANARY", answer=OSError("faulty://x?sig=CANARY"))
    info = store.info(store.root)
    shown = [repr(info), store.root, repr(store.source(info))]
    with pytest.raises(StorageError) as caught:
        store.source(info).read_into(memoryview(bytearray(10)), 0)
    shown += traceback.format_exception(caught.value)
    assert "CANARY" not in "\n".join(shown).replace('"faulty://x?sig=CANARY"', "")  # a line of this test


@each_row(
    ("uri", "hint"),
    [
        ("gs://bucket/key", "the extra streamer[gcs]"),
        ("abfs://container/key", "the extra streamer[azure]"),
        ("hf://owner/repo", "the extra streamer[hf]"),
        ("nfs://server/export", "the extra streamer[nfs]"),
        ("dropbox://x", "dropbox"),
        ("zzz://x", "Install a package that registers the scheme"),
    ],
)
def test_an_unknown_scheme_says_what_to_install(uri: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = uri.partition(":")[0]

    def refuse(protocol: str) -> None:
        raise ImportError(f"Please install {protocol}") if scheme != "zzz" else ValueError("Protocol not known: zzz")

    monkeypatch.setattr(fsspec.core, "get_filesystem_class", refuse)
    with pytest.raises(UnknownSchemeError, match=f"no backend for {scheme}://") as caught:
        opened(uri)
    assert hint in str(caught.value)


@each_row(
    ("scheme", "meant"),
    [("s4", "s3"), ("S33", "s3"), ("htps", "https"), ("hhtp", "http"), ("fiel", "file"), ("huggingface", "hf")],
)
@each_row("chain", ["", "simplecache::"])
def test_the_error_for_a_misspelt_scheme_suggests_the_nearest(scheme: str, meant: str, chain: str) -> None:
    with pytest.raises(UnknownSchemeError) as caught:
        opened(f"{chain}{scheme}://bucket/model")
    assert f"Did you mean {meant}://? Otherwise install a package" in str(caught.value)


@pytest.mark.parametrize("scheme", ["nosuch", "acme", "zzz", "model"])
def test_the_error_for_an_unknown_scheme_suggests_none(scheme: str) -> None:
    with pytest.raises(UnknownSchemeError) as caught:
        opened(f"{scheme}://bucket/model")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("metadata", [None, [], {}, {"type": "file", "size": "many"}, {"type": "file", "size": []}])
def test_metadata_that_are_none_are_the_file_systems_fault(monkeypatch: pytest.MonkeyPatch, metadata: Any) -> None:
    async def answer(*_: Any, **__: Any) -> Any:
        return metadata

    async def answers(*_: Any, **__: Any) -> Any:
        return metadata if metadata is None else [metadata]

    monkeypatch.setattr(Faulty, "_info", answer)
    monkeypatch.setattr(Faulty, "_ls", answers, raising=False)
    store = opened("faulty://x")
    with pytest.raises(StorageError, match="The file system failed with"):
        store.info("x")
    if not (isinstance(metadata, dict) and "type" in metadata):  # those are of no file in the folder
        with pytest.raises(StorageError, match="The file system failed with"):
            store.find("x")


def test_an_option_the_file_system_does_not_know_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="faulty file system has no storage option 'no_such_option'"):
        opened("faulty://x", no_such_option=1)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_what_is_no_archive_is_called_that(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(b"no archive" * 1000)
    with pytest.raises(StorageError, match=f"no {kind} archive, or was cut short"):
        opened(f"{kind}://m.safetensors::file://{tmp_path}/a")


def test_an_absent_archive_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        opened(f"zip://models::file://{tmp_path}/absent.zip")


def test_a_buffer_of_any_type_is_filled(memory: MemoryFileSystem) -> None:
    source = source_of(opened("memory://models/a.safetensors"))
    buffer = memoryview(bytearray(16)).cast("I")
    assert source.read_into(buffer, 4) == 16
    assert buffer.tobytes() == DATA[4:20]


def test_a_file_that_answers_in_small_pieces_is_read_to_the_end(monkeypatch: pytest.MonkeyPatch, archive: Path) -> None:
    class Trickle(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            return super().readinto(memoryview(buffer)[:3])

    source = source_of(opened(f"zip://models/a.safetensors::file://{archive}"))
    monkeypatch.setattr(source.read_into.__self__, "_file", Trickle(DATA))  # type: ignore[attr-defined]
    assert read(source, 10, 100) == DATA[10:110]
