"""A source that changes behind the reader's back: no copy is made of two checkpoints."""

from __future__ import annotations

import itertools
import os
from email.utils import formatdate

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pulls import parts, pull, visible
from safetensors.numpy import save
from servers.one_file import is_block
from servers.scripted_http import ScriptedServer

import streamer
from streamer import _native
from streamer._pull.record import PullArguments
from streamer._pull.resumed_file import PartFile
from streamer._push.push import Target, push
from streamer._save.writing import Writing
from streamer.backends.fsspec import info as fsspec_info
from streamer.core.engine.session import SourceObject
from streamer.core.node.should_share import is_shareable
from streamer.core.shards import shards
from streamer.core.store import versions
from streamer.core.store.sources import HttpSource

NAMES = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def source(tmp_path):
    streamer.save({name: np.full(1000, 1, "f4") for name in "abc"}, tmp_path / "source", max_shard_bytes=4000)
    return tmp_path / "source"


def replace(folder, name):
    """Replace a shard by other bytes of equal size."""
    content = (folder / name).read_bytes()
    (folder / "new").write_bytes(content[:-4] + b"\0\0\0\0")
    os.replace(folder / "new", folder / name)


def at(monkeypatch, kind, method, number, change):
    """Call `change` after the call of this number."""
    calls, inner = [], getattr(kind, method)

    def called(*arguments):
        result = inner(*arguments)
        calls.append(arguments)
        if len(calls) == number:
            change()
        return result

    monkeypatch.setattr(kind, method, called)


@pytest.mark.parametrize("target", ["file", "memory"])
@pytest.mark.parametrize("shown", [1, 3, 5], ids=["after the first", "after the last", "with the index"])
@pytest.mark.parametrize("changed", [0, 2])
def test_a_push_of_files_that_change_leaves_no_index_regression(tmp_path, source, monkeypatch, target, shown, changed):
    (source / "model.safetensors.manifest.json").unlink(missing_ok=True)
    at(monkeypatch, Writing, "show", min(shown, len(visible(source))), lambda: replace(source, NAMES[changed]))
    uri = str(tmp_path / "to") if target == "file" else f"memory://changed-{tmp_path.name}"
    with pytest.raises(streamer.ChangedError, match="changed while it was read") as caught:
        push(str(source), Target(uri), PullArguments(), progress=False)
    assert NAMES[changed] in caught.value.uri
    with pytest.raises(streamer.StreamerError):
        streamer.load(f"{uri}/{INDEX}", framework="np", progress=False)


@pytest.mark.parametrize("finished", [1, 2, 3, 4])
@pytest.mark.parametrize("changed", [0, 2])
def test_a_pull_of_files_that_change_ends_with_an_error_regression(tmp_path, source, monkeypatch, finished, changed):
    at(monkeypatch, PartFile, "finish", finished, lambda: replace(source, NAMES[changed]))
    assert pull(source, tmp_path / "to")["exit_code"] == 75
    assert visible(tmp_path / "to") <= {".streamer-pull-incomplete"}


def test_a_source_that_stays_is_copied(tmp_path, source):
    assert push(str(source), Target(str(tmp_path / "to")), PullArguments(), progress=False).files == len(
        visible(source)
    )
    assert pull(source, tmp_path / "pulled")["exit_code"] == 0


# --- two versions within a second: whoever keeps or continues bytes never gives the older ones, and never a mi ---

ROWS = 500_000  # 2 MB: several blocks, so that a load has several answers
OLD, NEW = ({"a": np.full(ROWS, value, dtype=np.float32)} for value in (1, 2))


class Clock:
    """In place of the module `time`."""

    def __init__(self):
        self.now_s = 1_800_000_000.0

    def time(self):
        return self.now_s

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (versions, shards, fsspec_info):
        monkeypatch.setattr(module, "time", clock)
    return clock


class Seconds(ScriptedServer):
    """A web server whose versions are times in whole seconds."""

    def __init__(self, kind, clock):
        super().__init__(save(OLD), self.change)
        self.kind, self.clock = kind, clock
        self.before_block, self.most_blocks = lambda number: None, 1000
        self.blocks = itertools.count()
        self.put(OLD)

    def put(self, tensors, age_s=0):
        self.data, self.changed_s = save(tensors), int(self.clock.now_s) - age_s

    def change(self, request, answer):
        if is_block(request):
            self.before_block(number := next(self.blocks))
            answer.body = self.data[request.begin : request.end]
        headers = self.kind(self.changed_s, len(self.data))
        answer.headers |= {**headers, "Date": formatdate(self.clock.now_s, usegmt=True)}
        answer.headers = {name: value for name, value in answer.headers.items() if value}
        wanted = request.headers.get("if-match")
        if wanted and wanted != headers["ETag"]:
            answer.become(412)
        if is_block(request) and number >= self.most_blocks:
            answer.become(404)

    @property
    def uri(self):
        return f"{self.url.removesuffix('/object')}/k/m.safetensors"


def _changed(when):
    return {"Last-Modified": formatdate(when, usegmt=True)}


KINDS = {
    "nginx": lambda when, size: {**_changed(when), "ETag": f'"{when:x}-{size:x}"'},
    "a hash of the time": lambda when, size: {**_changed(when), "ETag": f'"{hash((when, size)):x}"'},
    "only a date": lambda when, _: {**_changed(when), "ETag": ""},
    "a weak ETag": lambda when, size: {**_changed(when), "ETag": f'W/"{size:x}"'},
    "no date": lambda when, size: {"ETag": f'"{when:x}-{size:x}"'},
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def loaded(server, tmp_path):
    options = streamer.Options(cache_dir=tmp_path / "cache")
    tensors = streamer.load(server.uri, framework="np", options=options, progress=False)
    assert _native.finish_cache_writes(10)
    return tensors


def pulled(server, tmp_path):
    result = pull(server.uri, tmp_path / "pulled")
    assert result["exit_code"] == 0, result
    return streamer.load(str(tmp_path / "pulled"), framework="np", progress=False)


def are(tensors, expected):
    return np.array_equal(tensors["a"], expected["a"])


@kinds
@pytest.mark.parametrize("read", [loaded, pulled])
@pytest.mark.parametrize("pause_s", [0, 0.9, 5])
def test_cached_bytes_of_an_older_version_are_never_delivered(kind, read, pause_s, clock, tmp_path):
    with Seconds(kind, clock) as server:
        assert are(read(server, tmp_path), OLD)
        clock.sleep(pause_s)
        server.put(NEW)
        assert are(read(server, tmp_path), NEW)


@kinds
@pytest.mark.parametrize("read", [loaded, pulled])
def test_an_old_file_is_read_once_and_without_a_pause(kind, read, clock, tmp_path):
    with Seconds(kind, clock) as server:
        server.put(OLD, age_s=3600)
        assert are(read(server, tmp_path), OLD)
        first, _ = next(server.blocks), server.requests.clear()
        assert are(read(server, tmp_path), OLD)
        assert first > 0
        assert not any(each.end - each.begin > 100_000 for each in server.requests)
        assert clock.now_s == 1_800_000_000


@kinds
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_that_is_replaced_during_a_load_is_never_mixed(kind, number, clock):
    def replaced(block):
        if block == number:
            server.put(NEW)

    with Seconds(kind, clock) as server:
        server.before_block = replaced
        options = streamer.Options(block_bytes=1 << 18, http_in_flight=1, http_reactors=1)
        try:
            tensors = streamer.load(server.uri, framework="np", options=options, progress=False)
        except streamer.StorageError:
            return
        assert are(tensors, OLD) or are(tensors, NEW)


@kinds
def test_a_pull_that_was_cut_off_continues_no_other_version(kind, clock, tmp_path):
    with Seconds(kind, clock) as server:
        server.most_blocks = 2
        assert pull(server.uri, tmp_path / "pulled")["exit_code"] != 0
        assert parts(tmp_path / "pulled")
        server.most_blocks = 1000
        server.put(NEW)
        assert are(pulled(server, tmp_path), NEW)


class SecondsFileSystem(MemoryFileSystem):
    """A file system whose times are whole seconds; two files of one size in one second have one version."""

    protocol, store, pseudo_dirs = "seconds", {}, [""]
    cachable = False
    clock = None
    before_read = staticmethod(lambda: None)

    def info(self, path, **how):
        about = super().info(path, **how)
        return {name: about[name] for name in ("name", "size", "type")} | {"mtime": self.store_times.get(path)}

    def cat_file(self, path, **how):
        self.before_read()
        return super().cat_file(path, **how)


@pytest.mark.parametrize("number", [0, 1, 2, None])
def test_a_file_system_with_coarse_times_gives_no_mixture(number, clock, monkeypatch):
    fs, reads = SecondsFileSystem(), itertools.count()
    path = "/k/m.safetensors"

    def put(tensors):
        fs.pipe_file(path, save(tensors))
        SecondsFileSystem.store_times = {path: float(int(clock.now_s))}

    def replaced():
        if next(reads) == number:
            put(NEW)

    put(OLD)
    monkeypatch.setattr(SecondsFileSystem, "before_read", staticmethod(replaced))
    try:
        tensors = streamer.load(path, fs=fs, framework="np", progress=False)
    except streamer.ChangedError:
        assert number is not None
    else:
        assert are(tensors, OLD) or are(tensors, NEW)


def test_a_version_that_other_bytes_may_have_is_not_shared():
    shared = SourceObject("http://a/b", HttpSource("http://a/b", version='W/"1"'), 9, identity="a")
    assert is_shareable(shared)
    assert not is_shareable(SourceObject("http://a/b", shared.source, 9, identity="a", is_settled=False))
