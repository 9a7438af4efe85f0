"""Files that are not in the page cache are read past it, whole and into any kind of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cold_files import drop_from_page_cache
from comparison import assert_same
from safetensors.torch import save_file

import streamer
from streamer import Options
from streamer.core.engine.tuning import cached_fraction

LARGE = 40 << 20  # more blocks than threads that read a warm file, so that it is looked at


@pytest.fixture(scope="module")
def tensors():
    generator = torch.Generator().manual_seed(3)

    def random(size):
        return torch.randint(0, 255, (size,), dtype=torch.uint8, generator=generator)

    small = {f"small.{i}": random(1 + 977 * i) for i in range(50)}
    return small | {"large": random(LARGE), "odd": random((5 << 20) + 1), "last": random(7)}


@pytest.fixture
def path(tensors, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    drop_from_page_cache(path)
    return path


@pytest.fixture
def reads_direct(path):
    """Whether this file system reads past the page cache, and tells what is in it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    os.close(descriptor)
    if cached_fraction(str(path), path.stat().st_size) > 0:
        pytest.skip("this file system is in memory")


@pytest.mark.parametrize("io_uring", [True, False])
@pytest.mark.parametrize("direct_io", [True, False, None])
def test_every_byte_is_right(path, tensors, direct_io, io_uring):
    assert_same(streamer.load(path, options=Options(direct_io=direct_io, io_uring=io_uring)), tensors)


@pytest.mark.parametrize("block_bytes", [64 << 10, (1 << 20) + 3])
def test_blocks_of_any_size_are_read(path, tensors, block_bytes):
    options = Options(direct_io=True, block_bytes=block_bytes)
    assert_same(streamer.load(path, options=options), tensors)


def test_a_part_is_read_with_its_gaps(path, tensors):
    wanted = ["small.1", "small.3", "small.49", "odd", "last"]
    loaded = streamer.load(path, names=wanted, options=Options(direct_io=True))
    assert_same(loaded, {name: tensors[name] for name in wanted})


def test_memory_of_the_callers_own_is_filled(path, tensors):
    targets = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    streamer.load_into(path, targets, options=Options(direct_io=True))
    assert_same(targets, tensors)


@pytest.mark.usefixtures("reads_direct")
@pytest.mark.parametrize(("direct_io", "stays_cold"), [(True, True), (None, True), (False, False)])
def test_a_cold_file_stays_out_of_the_page_cache_by_default(path, direct_io, stays_cold):
    streamer.load(path, options=Options(direct_io=direct_io))
    assert (cached_fraction(str(path), path.stat().st_size) < 1 / 2) is stays_cold


@pytest.mark.usefixtures("reads_direct")
def test_a_file_that_is_in_the_page_cache_is_read_from_there(path):
    path.read_bytes()
    streamer.load(path)
    assert cached_fraction(str(path), path.stat().st_size) == 1


@pytest.mark.usefixtures("reads_direct")
def test_the_uncached_half_of_a_file_is_read_from_the_disk(path, tensors):
    size_bytes = path.stat().st_size
    half_bytes = size_bytes // 2
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        file.read(half_bytes)
    before = disk_bytes()
    loaded = streamer.load(path)
    from_disk = disk_bytes() - before
    assert_same(loaded, tensors)
    a_block_bytes = 8 << 20  # the one in the middle is read as a whole
    assert 0 < from_disk <= size_bytes - half_bytes + a_block_bytes
    assert cached_fraction(str(path), size_bytes) < 0.9


def disk_bytes():
    """What the kernel has read from disks for this process."""
    return int(Path("/proc/self/io").read_text().partition("\nread_bytes:")[2].split()[0])


RANK = """
import sys, streamer
from pathlib import Path

def disk_bytes():
    return int(Path("/proc/self/io").read_text().partition("\\nread_bytes:")[2].split()[0])

options = streamer.Options(memory_limit_bytes=1)  # the next tensor is read when one is taken
with streamer.stream(sys.argv[1], options=options, framework="np") as tensors:
    next(tensors)
    print("begun", flush=True)
    sys.stdin.readline()
    before = disk_bytes()
    for _ in tensors:
        pass
print(disk_bytes() - before)
"""


@pytest.mark.usefixtures("reads_direct")
def test_ranks_that_read_a_cold_file_at_the_same_time_read_it_from_the_disk_once(path, tmp_path):
    equal = {f"{i:03}": torch.zeros(1 << 20, dtype=torch.uint8) for i in range(64)}
    shared = tmp_path / "shared.safetensors"
    save_file(equal, shared)
    drop_from_page_cache(shared)
    command = [sys.executable, "-c", RANK, str(shared)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, **pipes) for _ in range(3)]
    assert [rank.stdout.readline() for rank in ranks] == ["begun\n"] * 3
    for rank in ranks:
        rank.stdin.write("\n")
        rank.stdin.flush()
    from_disk = [int(rank.communicate()[0]) for rank in ranks]
    assert sum(from_disk) < 1.5 * shared.stat().st_size  # and not three times


@pytest.mark.usefixtures("reads_direct")
def test_a_rank_alone_reads_past_the_page_cache_again_when_the_others_are_gone(path):
    with streamer.stream(path, options=Options(memory_limit_bytes=1)) as tensors:
        next(iter(tensors))
    streamer.load(path)
    assert cached_fraction(str(path), path.stat().st_size) < 1 / 2
