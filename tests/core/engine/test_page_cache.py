"""A look into the page cache tells warm files from cold ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cold_files import drop_from_page_cache

from streamer.core.engine import tuning
from streamer.core.engine.tuning import FILES_LOOKED_AT, cached_fraction, cached_fractions

SIZE = 8 << 20


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_a_file_just_read_is_warm_and_a_dropped_one_is_not(file):
    drop_from_page_cache(file)
    cold = cached_fraction(str(file), SIZE)
    file.read_bytes()
    warm = cached_fraction(str(file), SIZE)
    if warm == 0:
        pytest.skip("this file system does not tell what it caches")
    assert warm == 1
    assert cold == 0 or is_memory_backed(file)


def test_a_look_does_not_make_a_file_look_warm(file):
    drop_from_page_cache(file)
    looks = [cached_fraction(str(file), SIZE) for _ in range(3)]
    assert max(looks) < 1 / 2 or is_memory_backed(file)


def test_many_files_are_looked_at_with_fewer_samples(file):
    drop_from_page_cache(file)
    fractions = {cached_fraction(str(file), SIZE, files=10_000) for _ in range(20)}
    assert fractions <= {0.0, 1.0}  # one sample each


@pytest.fixture
def looks(monkeypatch):
    """List the files that are looked at; the name of each says what is cached of it."""
    looked_at = []

    def look(path, size_bytes, files):
        looked_at.append(path)
        return float(path.partition("/")[0])

    monkeypatch.setattr(tuning, "cached_fraction", look)
    return looked_at


@pytest.mark.parametrize("cached", ["0", "1"])
def test_some_of_very_many_similar_files_are_examined(looks, cached):
    sizes = {f"{cached}/{number}": SIZE for number in range(1000)}
    assert cached_fractions(sizes) == dict.fromkeys(sizes, float(cached))
    assert len(looks) == FILES_LOOKED_AT


@pytest.mark.parametrize("others", ["0", "0.5"])
def test_each_file_is_examined_once_if_some_differ(looks, others):
    sizes = {f"{others if number % 2 else 1}/{number}": SIZE for number in range(1000)}
    assert cached_fractions(sizes) == {path: float(path.partition("/")[0]) for path in sizes}
    assert sorted(looks) == sorted(sizes)


def test_few_files_are_looked_at_one_by_one(looks):
    sizes = {f"1/{number}": SIZE for number in range(FILES_LOOKED_AT)}
    assert cached_fractions(sizes) == dict.fromkeys(sizes, 1.0)
    assert len(looks) == len(sizes)


def is_memory_backed(path):
    """On tmpfs there is no disk to drop to."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return max((m for m in mounts if str(path).startswith(m[1])), key=lambda m: len(m[1]))[2] in ("tmpfs", "ramfs")


@pytest.mark.parametrize("path", ["/nonexistent", "/tmp", "/dev/null"])
def test_what_is_not_a_readable_file_counts_as_cold(path):
    assert cached_fraction(path, SIZE) == 0


def test_a_fifo_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert cached_fraction(str(tmp_path / "pipe"), SIZE) == 0


NOBODY = 65534


def looked_at_by(user: int, file: Path) -> float:
    """Look as another user, who may read the file and does not own it."""
    child = os.fork()
    if child == 0:
        os.setgid(user)
        os.setuid(user)
        os._exit(int(16 * cached_fraction(str(file), SIZE)))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) / 16


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_another_user_sees_what_the_owner_sees(file, monkeypatch):
    """mincore calls every page cached there, and cachestat refuses."""
    file.chmod(0o644)
    file.parent.chmod(0o755)
    monkeypatch.chdir(file.parent)  # the folders above may not be for others
    here = Path(file.name)
    drop_from_page_cache(file)
    cold = looked_at_by(NOBODY, here)
    file.read_bytes()
    assert looked_at_by(NOBODY, here) == 1
    assert cold == 0 or is_memory_backed(file)


@pytest.fixture
def file_of_an_image(file, tmp_path):
    """The same file on overlayfs, as the files of a container's image are."""
    folders = [tmp_path / name for name in ("upper", "work", "merged")]
    for folder in folders:
        folder.mkdir()
    upper, work, merged = folders
    lower = tmp_path / "lower"
    lower.mkdir()
    file.rename(lower / file.name)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mounted = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(merged)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no overlayfs can be mounted here: {mounted.stderr.decode()}")
    yield merged / file.name
    subprocess.run(["umount", str(merged)], check=True)


def test_a_file_of_a_containers_image_is_warm_once_it_was_read(file_of_an_image, tmp_path):
    """Overlayfs does not know RWF_NOWAIT (regression: such a file always looked cold, and was read from the disk)."""
    drop_from_page_cache(tmp_path / "lower" / file_of_an_image.name)
    cold = cached_fraction(str(file_of_an_image), SIZE)
    file_of_an_image.read_bytes()
    assert cached_fraction(str(file_of_an_image), SIZE) > 1 / 2
    assert cold < 1 / 2 or is_memory_backed(tmp_path)
