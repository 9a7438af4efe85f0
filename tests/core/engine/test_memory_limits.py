"""A load that no memory of the machine or the container can hold is refused, instead of being killed by the kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.control_groups import group_with

import streamer
from streamer import _load
from streamer.core.checkpoint import destinations
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.targets import Targets
from streamer.core.format.header import TensorEntry
from streamer.core.tensors.frameworks import framework_of
from streamer.core.tensors.target_states import ResizeLock

MIB = 1 << 20
LIMIT_BYTES = 400 * MIB  # Python, numpy and fsspec take 80


def sparse(path: Path, sizes: dict[str, int], dtype: str = "U8", item_bytes: int = 1) -> Path:
    """Write a checkpoint of zeros that takes no room on the disk."""
    entries: dict[str, Any] = {}
    end = 0
    for name, size in sizes.items():
        entries[name] = {"dtype": dtype, "shape": [size // item_bytes], "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return sparse(tmp_path / "a.safetensors", {f"t{number}": MIB for number in range(8)})


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process could get 6 MiB more."""
    monkeypatch.setattr(destinations, "free_bytes", lambda: 6 * MIB)


WAYS: dict[str, Any] = {
    "load": streamer.load,
    "load_file": streamer.load_file,
    "numpy": lambda path: streamer.load(path, framework="np"),
    "get_tensors": lambda path: streamer.open(path).get_tensors(),
    "meta module": lambda path: streamer.load_into(path, on_meta()),
}


def on_meta() -> torch.nn.Module:
    module = torch.nn.Module()
    for number in range(8):
        module.register_buffer(f"t{number}", torch.empty(MIB, dtype=torch.uint8, device="meta"))
    return module


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("little_memory")
def test_what_does_not_fit_is_refused_with_both_figures(way: str, file: Path) -> None:
    with pytest.raises(streamer.OutOfMemoryError, match=r"need 8\.39 MB of memory.* can get 6\.29 MB") as caught:
        WAYS[way](file)
    assert caught.value.requested_bytes == 8 * MIB
    assert "check_memory=False" in (caught.value.hint or "")


@pytest.mark.usefixtures("little_memory")
def test_what_needs_no_memory_of_ours_or_less_is_loaded(file: Path) -> None:
    assert len(dict(streamer.stream(file))) == 8
    assert len(streamer.load(file, names="t[0-5]")) == 6
    assert len(streamer.load(file, options=streamer.Options(check_memory=False))) == 8
    streamer.load_into(file, {f"t{number}": torch.empty(MIB, dtype=torch.uint8) for number in range(8)})


@pytest.mark.usefixtures("little_memory")
def test_only_the_kept_part_of_a_sharded_tensor_counts() -> None:
    whole = ShardTensor(0, TensorEntry("columns", "U8", (8, MIB), 0, 8 * MIB))
    part = torch.empty(8, MIB // 8, dtype=torch.uint8, device="meta")
    targets = Targets(ResizeLock(()), fresh={"columns": part})
    with pytest.raises(streamer.OutOfMemoryError):
        destinations.KeptMemory([whole], framework_of("pt"), targets).check_fit("a")
    columns = streamer.Slice(1, 0, 8).of(whole)
    destinations.KeptMemory([columns], framework_of("pt"), targets).check_fit("a")


@pytest.mark.usefixtures("little_memory")
def test_what_a_cast_makes_of_it_counts(tmp_path: Path) -> None:
    path = sparse(tmp_path / "b.safetensors", {"a": 4 * MIB, "b": 4 * MIB}, "F32", 4)
    assert len(streamer.load(path, dtype="float16")) == 2
    with pytest.raises(streamer.OutOfMemoryError, match="need 16"):
        streamer.load(path, dtype="float64")


def kept(count: int) -> destinations.KeptMemory:
    wanted = [ShardTensor(0, TensorEntry("a", "U8", (count * MIB,), 0, count * MIB))]
    return destinations.KeptMemory(wanted, framework_of("pt"), None)


@pytest.mark.usefixtures("little_memory")
def test_what_running_loads_have_yet_to_take_is_not_free() -> None:
    first, second = kept(4), kept(4)
    first.check_fit("a")
    with pytest.raises(streamer.OutOfMemoryError, match=r"can get 6\.29 MB.*running loads need 4\.19 MB"):
        second.check_fit("b")
    first.unread_share = lambda: 0.5  # what it has read is no longer free either
    second.check_fit("b")
    with pytest.raises(streamer.OutOfMemoryError):
        kept(1).check_fit("c")
    first.end()
    second.end()
    kept(6).check_fit("c")


@pytest.mark.parametrize("read", [lambda opened: opened.get_tensor("a"), lambda opened: opened["a"][:]])
def test_a_large_tensor_of_an_open_checkpoint_is_refused_too(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sparse(tmp_path / "one.safetensors", {"a": 24 * MIB})
    monkeypatch.setattr(destinations, "free_bytes", lambda: 20 * MIB)
    with streamer.open(path) as opened, pytest.raises(streamer.OutOfMemoryError, match=r"need 25\.2 MB"):
        read(opened)
    monkeypatch.setattr(destinations, "free_bytes", lambda: 30 * MIB)
    for _ in range(2):  # what was read is the caller's now
        with streamer.open(path) as opened:
            assert read(opened).nbytes == 24 * MIB


@pytest.mark.usefixtures("little_memory")
def test_a_load_that_ended_or_failed_is_no_longer_counted(file: Path) -> None:
    assert len(streamer.load(file, names="t[0-5]")) == 6
    streamer.write_manifest(file)
    with file.open("r+b") as written:
        written.seek(-8 * MIB, 2)
        written.write(b"\x01")
    with pytest.raises(streamer.ChecksumError) as caught:
        streamer.load(file, names="t[0-5]", verify="manifest")
    assert len(streamer.load(file, names="t[0-5]")) == 6
    assert caught.tb is not None  # which refers to the load that failed


@pytest.mark.usefixtures("little_memory")
def test_a_load_that_could_not_begin_is_no_longer_counted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no thread")

    with monkeypatch.context() as patch:
        patch.setattr(_load, "Stream", refuse)
        with pytest.raises(OSError, match="no thread") as caught:
            streamer.load(file, names="t[0-5]")
    assert len(streamer.load(file, names="t[0-5]")) == 6
    assert caught.tb is not None


@pytest.fixture
def container() -> Iterator[Path]:
    with group_with("memory", "memory.max", "memory.limit_in_bytes", str(LIMIT_BYTES)) as group:
        yield group


CONTAINED = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
import streamer
loaded = []
for _ in range(int(sys.argv[3])):
    try:
        loaded = streamer.load(sys.argv[2], framework="np", progress=False)
        print(len(loaded))
        del loaded
    except streamer.OutOfMemoryError as error:
        print(error)
"""


TWO_THREADS = """
import os, pathlib, sys, threading
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
import streamer
loaded, both = [], threading.Barrier(2)
def load():
    both.wait()
    try:
        loaded.append(streamer.load(sys.argv[2], framework="np", progress=False))
        print(len(loaded[-1]))
    except streamer.OutOfMemoryError as error:
        print(error)
threads = [threading.Thread(target=load) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def in_container(container: Path, path: Path, times: int = 1, code: str = CONTAINED) -> str:
    run = [sys.executable, "-c", code, container, path, str(times)]
    return subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_container_that_cannot_hold_it_says_so_instead_of_being_killed_regression(
    container: Path, tmp_path: Path
) -> None:
    """The kernel ended the process without a word."""
    path = sparse(tmp_path / "large.safetensors", {f"t{number}": 64 * MIB for number in range(8)})
    assert "need 537 MB of memory, and this process can get" in in_container(container, path)


def test_two_loads_at_once_that_a_container_cannot_hold_do_not_kill_it_regression(
    container: Path, tmp_path: Path
) -> None:
    """Each looked at what was free before the other had taken its part."""
    path = sparse(tmp_path / "half.safetensors", {f"t{number}": 50 * MIB for number in range(4)})
    reported = in_container(container, path, code=TWO_THREADS).splitlines()
    assert len(reported) == 2
    assert "4" in reported
    assert "need 210 MB of memory, and this process can get" in "".join(reported)


def test_the_pages_of_files_that_a_container_caches_count_as_free(container: Path, tmp_path: Path) -> None:
    path = tmp_path / "cached.safetensors"
    sparse(path, {f"t{number}": 64 * MIB for number in range(4)})
    with path.open("r+b") as file:  # pages of a hole are cached too, but let them be of a real file
        file.seek(4096)
        file.write(bytes(255 * MIB))
    assert in_container(container, path, times=3).split() == ["4"] * 3
