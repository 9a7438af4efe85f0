"""Which objects are cached, and under which name."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from each_row import each_row
from pulls import wait_for
from safetensors.numpy import save
from servers.one_file import is_block, one_file, place_of

import streamer
from streamer import _native
from streamer.core.cache.folder import identity_of, why_not_cached
from streamer.core.engine.session import SourceObject
from streamer.core.store.sources import FileSource, HttpSource, NfsSource, PythonSource

HTTP = HttpSource("https://s3.example.com/b/k?sig=CANARY", version='"v1"')
OBJECT = SourceObject("s3://b/k", HTTP, 10, server="https://s3.example.com", stored_version='"v1"', identity="a")
SALT = b"1"


@each_row(
    "source_object",
    [
        OBJECT,
        replace(OBJECT, source=NfsSource("nfs://server/a"), stored_version="10-17-18"),
        replace(OBJECT, source=replace(HTTP, version=None, version_header="x-goog-generation"), stored_version="17"),
        replace(OBJECT, source=replace(HTTP, version=None, version_header=None), stored_version="0a1b"),
        replace(OBJECT, source=replace(HTTP, version_header="Last-Modified")),
        replace(OBJECT, stored_version="Fri, 27 Nov 2026 12:00:00 GMT"),
    ],
)
def test_an_object_whose_version_names_its_bytes_is_cached(source_object):
    assert why_not_cached(source_object) is None


@each_row(
    ("source_object", "reason"),
    [
        (replace(OBJECT, source=FileSource("/a")), ""),
        (replace(OBJECT, size_bytes=0), ""),
        (replace(OBJECT, source=PythonSource(lambda *_: 0)), "Python"),
        (replace(OBJECT, stored_version=None), "no version"),
        (replace(OBJECT, identity=""), "another process"),
        (replace(OBJECT, source=replace(HTTP, version=None)), "no version with its address"),
        (replace(OBJECT, is_settled=False), "weak ETag"),
    ],
)
def test_any_other_object_is_not_shared_and_the_reason_is_reported(source_object, reason):
    reported = why_not_cached(source_object)
    assert reported is not None
    assert reason in reported
    assert bool(reported) == bool(reason)


def test_server_object_version_and_size_make_the_name():
    identity = identity_of(OBJECT, SALT)
    others = [
        replace(identity, server="https://other.example.com"),
        identity_of(replace(OBJECT, identity="b"), SALT),
        identity_of(OBJECT, b"2"),
        replace(identity, version='"v2"'),
        replace(identity, size_bytes=11),
    ]
    assert len({each.key for each in [identity, *others]}) == 6
    assert identity.key == identity_of(OBJECT, SALT).key


def test_without_a_name_of_its_store_the_server_is_that_of_the_url_and_no_secret_is_in_it():
    identity = identity_of(replace(OBJECT, server="", identity="DIGEST"), SALT)
    assert identity.server == "s3.example.com"
    assert not any(secret in repr(identity) for secret in ("CANARY", "DIGEST"))


# --- A cache that is full, read-only, somebody else's, slow, or whose writer was killed never fails a load ----------

TENSORS = {f"layer.{number}": np.full((300, 512), number, dtype=np.float32) for number in range(40)}  # 24 MB
DATA = save(TENSORS)
TINY_BYTES = 4 << 20


def options_of(folder: Path, **how) -> streamer.Options:
    return streamer.Options(cache_dir=folder, **how)


def load(server, options):
    uri, storage_options = place_of("s3", server)
    with streamer.stream(uri, framework="np", storage_options=storage_options, options=options) as stream:
        tensors = dict(stream)
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    assert _native.finish_cache_writes(30)
    return stream.report


@pytest.fixture
def server():
    with one_file(data=DATA) as server:
        yield server


@pytest.fixture
def mounted(tmp_path: Path):
    """Mounts a tmpfs with the given options, if the tests may."""
    libc, folders = ctypes.CDLL(None, use_errno=True), []

    def mount(options: str, flags: int = 0, folder: Path | None = None) -> Path:
        folder = folder or tmp_path / f"disk{len(folders)}"
        folder.mkdir(exist_ok=True)
        if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options.encode()) != 0:
            pytest.skip(f"no right to mount a disk: {os.strerror(ctypes.get_errno())}")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH


MS_RDONLY, MS_REMOUNT = 1, 32


def fill(path):
    """Write a file until the disk has no room left."""
    with open(path, "wb", buffering=0) as other:
        while True:
            other.write(b"x" * (1 << 16))


def test_a_disk_that_runs_full_ends_the_writing_with_a_remark(server, mounted):
    disk = mounted(f"size={len(DATA) + (1 << 20)}")
    load(server, options_of(disk / "cache", cache_bytes=len(DATA) * 2))
    (data,) = disk.glob("cache/v1/*/data")
    size = data.stat().st_blocks * 512
    assert size > len(DATA) // 2
    # The next one finds the disk full of other things while it writes.
    for path in disk.glob("cache/v1/*/*"):
        path.unlink()
    wait_for(lambda: os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > len(DATA))  # its last writer closes it
    uri, storage_options = place_of("s3", server)
    how = {"framework": "np", "storage_options": storage_options}
    with streamer.open(uri, options=options_of(disk / "cache", cache_bytes=len(DATA) * 2), **how) as checkpoint:
        with pytest.raises(OSError, match="No space left"):
            fill(disk / "other")
        for name, tensor in TENSORS.items():
            np.testing.assert_array_equal(checkpoint.get_tensor(name), tensor)
        assert _native.finish_cache_writes(30)
        assert any("No space left" in remark for remark in checkpoint._checkpoint.cache.remarks())
    (disk / "other").unlink(missing_ok=True)
    assert load(server, options_of(disk / "cache", cache_bytes=len(DATA) * 2)).is_complete


def test_a_checkpoint_that_does_not_fit_is_not_cached_and_a_remark_says_so(server, mounted):
    disk = mounted(f"size={TINY_BYTES}")
    for options in (options_of(disk / "cache"), options_of(disk / "cache", cache_bytes="1GB")):
        report = load(server, options)
        assert any("no room" in remark for remark in report.remarks)
    assert not list(disk.glob("cache/v1/*/data"))


def test_a_cache_that_is_read_only_is_read(server, mounted):
    disk = mounted("size=64m")
    load(server, options_of(disk / "cache"))
    mounted("size=64m", MS_REMOUNT | MS_RDONLY, disk)
    before = sum(map(is_block, server.requests))
    report = load(server, options_of(disk / "cache"))
    assert report.cached_bytes == report.bytes
    assert report.remarks == ()
    assert sum(map(is_block, server.requests)) == before
    assert load(server, options_of(disk / "elsewhere")).remarks[0].endswith("Read-only file system")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(server, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    report = load(server, options_of(folder))
    assert report.remarks == ("nothing is cached: the folder of the cache belongs to another user",)
    assert not list(folder.iterdir())


def test_a_folder_that_others_may_write_is_refused(server, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    report = load(server, options_of(folder))
    assert report.remarks == ("nothing is cached: other users may write the folder of the cache",)
    assert not list(folder.iterdir())


def test_a_file_in_the_place_of_the_folder_is_no_error(server, tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        (remark,) = load(server, options_of(folder)).remarks
        assert "Not a directory" in remark or "not a folder" in remark


def test_folders_and_files_are_for_this_user_alone(server, tmp_path):
    before = os.umask(0)
    try:
        load(server, options_of(tmp_path / "cache"))
    finally:
        os.umask(before)
    paths = [*tmp_path.glob("cache"), *tmp_path.glob("cache/v1"), *tmp_path.glob("cache/v1/*")]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700] * 3
    files = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.glob("cache/v1/*/*")}
    assert files["data"] == files["journal"] == 0


LOAD = """
import json, sys
import streamer
uri, storage_options, folder = json.loads(sys.argv[1])
print("begun", flush=True)
while True:
    streamer.load(uri, framework="np", storage_options=storage_options, options=streamer.Options(cache_dir=folder))
    if len(sys.argv) > 2: break
"""


def started(server, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    arguments = json.dumps([*place_of("s3", server), str(folder)])
    command = [sys.executable, "-c", LOAD, arguments, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.parametrize("seed", range(6))
def test_a_process_that_is_killed_while_it_writes_leaves_no_wrong_byte(server, tmp_path, seed):
    drawn = random.Random(seed)
    with started(server, tmp_path / "cache") as process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("cache/v1/*/journal")) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(drawn.random() * 0.15)
        process.send_signal(signal.SIGKILL)
    for data in tmp_path.glob("cache/v1/*/data"):
        assert _native.CacheEntry(os.fsencode(data.parent), len(DATA)).check() == 0
    load(server, options_of(tmp_path / "cache"))
    load(server, options_of(tmp_path / "cache"))
    report = load(server, options_of(tmp_path / "cache"))
    assert report.cached_bytes == report.bytes


def test_a_program_that_loads_once_and_ends_leaves_everything_in_the_cache(server, tmp_path):
    with started(server, tmp_path / "cache", "once") as process:
        assert process.wait(60) == 0
    report = load(server, options_of(tmp_path / "cache"))
    assert report.cached_bytes == report.bytes


def test_a_child_after_fork_writes_with_a_thread_of_its_own(server, tmp_path):
    options = options_of(tmp_path / "cache")
    uri, storage_options = place_of("s3", server)
    with streamer.open(uri, framework="np", storage_options=storage_options, options=options) as checkpoint:
        checkpoint.get_tensor("layer.3")  # its writer may be at work
        child = os.fork()
        if child == 0:
            os._exit(_status_of(lambda: load(server, options)))
        assert os.waitpid(child, 0)[1] == 0
    assert load(server, options).cached_bytes > 0
    (data,) = tmp_path.glob("cache/v1/*/data")
    assert _native.CacheEntry(os.fsencode(data.parent), len(DATA)).check() == 0


def _status_of(work) -> int:
    try:
        work()
    except BaseException:
        return 1
    return 0


def test_processes_that_begin_together_write_one_cache(server, tmp_path):
    processes = [started(server, tmp_path / "cache", "once") for _ in range(3)]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    (data,) = tmp_path.glob("cache/v1/*/data")
    assert _native.CacheEntry(os.fsencode(data.parent), len(DATA)).check() == 0
    assert load(server, options_of(tmp_path / "cache")).cached_bytes > 0


def test_what_is_not_used_longest_is_removed_first_and_nothing_that_is_in_use(tmp_path):
    folder, size = tmp_path / "cache", len(DATA)
    options = options_of(folder, cache_bytes=2 * size + (2 << 20))
    servers = [one_file(data=DATA) for _ in range(4)]
    for server in servers:
        server.__enter__()
    try:
        first, second, third, fourth = servers
        load(first, options)
        load(second, options)
        for path in folder.glob("v1/*/object.json"):
            os.utime(path, (0, 0))
        load(first, options)  # the second is the older one now
        load(third, options)
        assert load(first, options).cached_bytes > 0
        assert load(second, options_of(folder, cache_bytes=1 << 40)).cached_bytes == 0
        uri, storage_options = place_of("s3", third)
        how = {"framework": "np", "storage_options": storage_options, "options": options}
        for path in folder.glob("v1/*/object.json"):
            os.utime(path, (0, 0))
        with streamer.open(uri, **how) as in_use:
            for path in folder.glob("v1/*/object.json"):
                os.utime(path, (0, 0))
            load(fourth, options)
            before = sum(map(is_block, third.requests))
            in_use.get_tensor("layer.3")
            assert sum(map(is_block, third.requests)) == before
    finally:
        for server in servers:
            server.__exit__(None, None, None)
