"""A plug-in that writes: its listing may lack sizes, it cannot change the tensors, and its writes are looked at."""

from __future__ import annotations

import copy
import errno
import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from plugin_distributions import install_plugin

import streamer
from streamer._cli import main
from streamer.plugins import NoDigest, ObjectDigest, ObjectInfo, PartDigest, PythonSource

HOOK = """
from streamer.plugins import hookimpl
OPEN = None
@hookimpl
def streamer_open_store(uri, storage_options):
    return OPEN(uri)
"""
OLD = {f"w{number}": np.full(1000, number, np.float32) for number in range(4)}
NEW = {name: value + 1 for name, value in OLD.items()}
SHARDS = "5KB"  # for each tensor a shard


class Depot:
    """Objects in memory, each with a count as its version; tests replace methods."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.root = ""
        self.versions = itertools.count()

    def opened(self, uri: str) -> Any:
        store = copy.copy(self)
        store.root = uri.removeprefix("acme://").rstrip("/")
        return store

    def info(self, path: str) -> ObjectInfo:
        if path not in self.objects:
            raise streamer.ObjectNotFoundError("no such object", uri=f"acme://{path}")
        data, version = self.objects[path]
        return ObjectInfo(path, f"acme://{path}", len(data), version)

    def find(self, prefix: str) -> list[ObjectInfo]:
        return [self.info(path) for path in self.objects if path.rpartition("/")[0] == prefix.rstrip("/")]

    def folders(self, prefix: str) -> list[str]:
        below = (path.removeprefix(f"{prefix}/") for path in self.objects if path.startswith(f"{prefix}/"))
        return sorted({path.partition("/")[0] for path in below if "/" in path})

    def source(self, info: ObjectInfo) -> PythonSource:
        def read_into(buffer: memoryview, offset: int) -> int:
            data = self.objects[info.path][0][offset : offset + len(buffer)]
            buffer[: len(data)] = data
            return len(data)

        return PythonSource(read_into)

    def write(self, path: str, data: bytes) -> None:
        self.objects[path] = bytes(data), str(next(self.versions))

    def close(self) -> None: ...


class UploadingDepot(Depot):
    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Any:
        del part_bytes, replaced
        return Upload(self, path, size_bytes)

    def remove(self, path: str) -> None:
        self.objects.pop(path, None)


class SizelessDepot(UploadingDepot):
    """A store whose listing has no sizes, which docs/write-a-plugin.md allows."""

    def find(self, prefix: str) -> list[ObjectInfo]:
        return [replace(info, size_bytes=None) for info in super().find(prefix)]


class Upload:
    parallel_parts = 2
    needs_equal_parts = False

    def __init__(self, depot: Depot, path: str, size_bytes: int | None) -> None:
        self.depot, self.path, self.data = depot, path, bytearray(size_bytes or 0)

    def send(self, offset_bytes: int, part: memoryview) -> None:
        self.data.extend(bytes(max(0, offset_bytes - len(self.data))))
        self.data[offset_bytes : offset_bytes + len(part)] = part

    def finish(self) -> None:
        self.depot.write(self.path, bytes(self.data))

    def abort(self) -> None: ...


@pytest.fixture
def opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Let URLs of acme:// be served by one depot."""
    install_plugin(tmp_path, monkeypatch, "acme-store", HOOK, "acme")
    __import__("acme_store_module")

    def opens(depot: Any) -> Any:
        monkeypatch.setattr(sys.modules["acme_store_module"], "OPEN", depot.opened)
        return depot

    return opens


def save(tensors: Any, uri: Any, **named: Any) -> Any:
    return streamer.save(tensors, uri, progress=False, **named)


def has(uri: str, tensors: dict[str, Any]) -> bool:
    found = streamer.load(uri, framework="np", progress=False, verify="manifest")
    return found.keys() == tensors.keys() and all((found[name] == tensors[name]).all() for name in tensors)


def command(*arguments: str) -> Any:
    return CliRunner().invoke(main, [*arguments, "--quiet"])


# --- a listing without sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(SHARDS, SHARDS), (SHARDS, None), (None, SHARDS), (None, None)])
def test_a_checkpoint_is_replaced_where_the_listing_has_no_sizes_regression(
    opens: Callable[[Any], Any], sizes: tuple[str | None, str | None]
) -> None:
    opens(SizelessDepot())
    for tensors, size in zip((OLD, NEW), sizes, strict=True):
        save(tensors, "acme://m", overwrite=True, **({"max_shard_bytes": size} if size else {}))
    assert has("acme://m", NEW)


@pytest.mark.parametrize("kind", [UploadingDepot, SizelessDepot])
@pytest.mark.parametrize("lost", [[], ["manifest.json"], ["manifest.json", "model-00004-of-00004.safetensors"]])
def test_a_save_goes_on_wherever_it_was_killed_regression(
    opens: Callable[[Any], Any], kind: type[Depot], lost: list[str]
) -> None:
    """It may have ended between any two files, also between the manifest and the index."""
    depot = opens(kind())
    save(OLD, "acme://m", max_shard_bytes=SHARDS)
    for path in [path for path in depot.objects if path.endswith(("index.json", *lost))]:
        del depot.objects[path]
    report = save(OLD, "acme://m", max_shard_bytes=SHARDS, resume=True)
    assert report.kept_bytes >= 3 * OLD["w0"].nbytes
    assert has("acme://m", OLD)


@pytest.mark.parametrize("kind", [UploadingDepot, SizelessDepot])
@pytest.mark.parametrize("uri", ["acme://m", "acme://m/model.safetensors", "acme://m/lora.safetensors"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_manifest_alone_is_no_checkpoint_regression(
    opens: Callable[[Any], Any], kind: type[Depot], uri: str, *, resume: bool
) -> None:
    """A save of one file that is killed before its last step leaves only the manifest."""
    depot = opens(kind())
    save(OLD, uri)
    for path in [path for path in depot.objects if not path.endswith("manifest.json")]:
        del depot.objects[path]
    save(NEW, uri, resume=resume)
    assert has(uri, NEW)


@pytest.mark.parametrize("kind", [UploadingDepot, SizelessDepot])
def test_other_tensors_do_not_go_on_with_a_save_regression(opens: Callable[[Any], Any], kind: type[Depot]) -> None:
    depot = opens(kind())
    save(OLD, "acme://m", max_shard_bytes=SHARDS)
    del depot.objects["m/model.safetensors.index.json"]
    with pytest.raises(streamer.UsageError, match="there is a checkpoint already"):
        save(NEW, "acme://m", max_shard_bytes=SHARDS, resume=True)


def test_a_push_knows_its_own_files_where_the_listing_has_no_sizes_regression(
    opens: Callable[[Any], Any], tmp_path: Path
) -> None:
    opens(SizelessDepot())
    source = str(tmp_path / "model")
    save(OLD, source, max_shard_bytes=SHARDS)
    assert command("push", source, "acme://m", "--include", "*00002*").exit_code == 0
    done = command("push", source, "acme://m", "--exclude", "*00002*", "--replace")
    assert (done.exit_code, done.output) == (0, "")
    assert has("acme://m", OLD)


def test_a_push_replaces_a_checkpoint_where_the_listing_has_no_sizes_regression(
    opens: Callable[[Any], Any], tmp_path: Path
) -> None:
    opens(SizelessDepot())
    save(OLD, "acme://m", max_shard_bytes=SHARDS)
    save(NEW, tmp_path / "model")
    assert command("push", str(tmp_path / "model"), "acme://m", "--replace").exit_code == 0
    assert has("acme://m", NEW)


# --- what a plug-in may do to what it writes --------------------------------------------------------------------------


def test_a_plugin_cannot_change_the_tensors_that_it_sends_regression(
    opens: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: Upload, offset_bytes: int, part: memoryview) -> None:
        part[:1] = b"!"

    monkeypatch.setattr(Upload, "send", send)
    opens(UploadingDepot())
    tensors = {name: value.copy() for name, value in OLD.items()}
    with pytest.raises(streamer.PluginError, match=r"acme-store 1\.5 raised TypeError in send: .*read-only"):
        save(tensors, "acme://m")
    assert all((tensors[name] == OLD[name]).all() for name in OLD)


@pytest.mark.parametrize(("number", "told"), [(0, "gave 0"), (None, "gave None"), ("4", "gave str"), (-1, "gave -1")])
def test_a_wrong_number_of_parallel_parts_is_named_regression(
    opens: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, number: Any, told: str
) -> None:
    monkeypatch.setattr(Upload, "parallel_parts", number)
    opens(UploadingDepot())
    with pytest.raises(streamer.PluginError, match=f"{told} as parallel_parts"):
        save(OLD, "acme://m")


def test_a_send_that_returns_something_is_not_taken_for_success_regression(
    opens: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Upload, "send", lambda *_: False)
    opens(UploadingDepot())
    with pytest.raises(streamer.PluginError, match=r"acme-store 1\.5 broke its contract: send returned bool, not None"):
        streamer.save(OLD, "acme://folder", progress=False)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("method", ["send", "finish"])
def test_a_full_storage_is_not_blamed_on_the_plugin_regression(
    opens: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, method: str, number: int
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, "no room")

    monkeypatch.setattr(Upload, method, fail)
    opens(UploadingDepot())
    with pytest.raises(streamer.StorageError, match=f"is full, or cannot be written: OSError in {method}") as caught:
        save(OLD, "acme://m")
    assert not isinstance(caught.value, streamer.PluginError)


# --- manifests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", [False, True])
def test_half_a_manifest_is_no_success_regression(opens: Callable[[Any], Any], *, older: bool) -> None:
    depot = opens(UploadingDepot())
    save(OLD, "acme://m", digests=older)
    written = Depot()
    written.objects, write = depot.objects, written.write
    opens(written)
    assert streamer.write_manifest("acme://m", progress=False).tensors == len(OLD)
    written.write = lambda path, data: write(path, data[: len(data) // 2])  # type: ignore[method-assign]
    with pytest.raises(streamer.StorageError, match="bytes that were sent"):
        streamer.write_manifest("acme://m", progress=False)


# --- fsspec -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [UploadingDepot, SizelessDepot])
def test_fsspec_lists_through_a_plugin_regression(opens: Callable[[Any], Any], kind: type[Depot]) -> None:
    depot = opens(kind())
    depot.write("m/a/b/c.bin", b"first")
    depot.write("m/d.bin", b"second")
    url, fs = "streamer://acme://m", fsspec.url_to_fs("streamer://acme://m")[0]
    assert fs.cat(f"{url}/**/*.bin") == {"m/a/b/c.bin": b"first", "m/d.bin": b"second"}
    assert fs.du(url) == len(b"firstsecond")
    assert fs.ls(f"{url}/a", detail=False) == ["m/a/b"]
    with pytest.raises(OSError, match="only reads"):
        fs.makedirs(f"{url}/new")


# --- other answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "digest",
    [
        ObjectDigest("blake3", (PartDigest(1, "00"),)),
        ObjectDigest("sha256", ()),
        ObjectDigest("sha256", (PartDigest(1, "00" * 32),)),
        ObjectDigest("crc32", (PartDigest(5, "00"),)),
    ],
    ids=lambda digest: f"{digest.algorithm}-{len(digest.parts)}",
)
def test_a_digest_that_is_not_sound_names_the_plugin_regression(
    opens: Callable[[Any], Any], digest: ObjectDigest | NoDigest
) -> None:
    depot = opens(UploadingDepot())
    save(OLD, "acme://m")
    depot.digest = lambda info: digest
    with pytest.raises(streamer.PluginError, match=r"acme-store 1\.5 broke its contract: digest gave"):
        streamer.load("acme://m", framework="np", progress=False, verify="auto")


@pytest.mark.parametrize("name", ["sub/", "acme://m/sub", "/m/sub"])
def test_a_folder_that_is_no_name_names_the_plugin_regression(
    opens: Callable[[Any], Any], tmp_path: Path, name: str
) -> None:
    depot = opens(UploadingDepot())
    save(OLD, "acme://m")
    depot.folders = lambda prefix: [name]
    done = command("pull", "acme://m", str(tmp_path / "pulled"))
    assert done.exit_code == 70
    assert "acme-store 1.5 broke its contract: folders listed" in done.output
