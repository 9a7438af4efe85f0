"""The processors and memory that this process may use, and the loads that share the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.control_groups import IS_UNIFIED, group_with

from streamer.core.options import machine
from streamer.core.options.machine import AnnouncedLoad, sharers

ALL = len(os.sched_getaffinity(0))
GIB = 1 << 30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tree of control groups, as the kernel mounts it; this process is in `unified` or `legacy` groups of it."""
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "self")
    # More than any machine of today has: what is found is the limit.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1024)))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    machine.memory_bytes.cache_clear()
    machine._processor_limits.cache_clear()
    machine._groups.cache_clear()


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")


def test_without_groups_the_machine_is_the_limit(groups: Path) -> None:
    assert machine.processors() == 1024
    assert machine.memory_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_container_with_a_namespace_sees_its_limits_at_the_top(groups: Path) -> None:
    put(groups, {"self": "0::/", "cpu.max": "400000 100000", "memory.max": str(GIB)})
    assert machine.processors() == 4
    assert machine.memory_bytes() == GIB


def test_swap_is_what_the_kernel_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = tmp_path / "meminfo"
    monkeypatch.setattr(machine, "MEMORY", reported)
    for text, size in (("MemTotal: 9 kB\nSwapTotal:       2048 kB\nSwapFree: 1 kB\n", 2 << 20), ("no such line", 0)):
        reported.write_text(text)
        machine.swap_bytes.cache_clear()
        assert machine.swap_bytes() == size
    machine.swap_bytes.cache_clear()


def test_the_lowest_limit_on_the_way_up_counts(groups: Path) -> None:
    put(groups, {"self": "0::/kube/pod/me", "kube/cpu.max": "max 100000", "kube/pod/cpu.max": "250000 100000"})
    put(groups, {"kube/pod/me/cpu.max": "800000 100000", "kube/memory.max": "max"})
    assert machine.processors() == 3


def test_a_part_of_a_processor_counts_as_one(groups: Path) -> None:
    put(groups, {"self": "0::/", "cpu.max": "20000 100000"})
    assert machine.processors() == 1


def test_the_first_version_of_control_groups_sets_limits_too(groups: Path) -> None:
    put(groups, {"self": "4:memory:/docker/me\n3:cpu,cpuacct:/docker/me\n1:name=systemd:/"})
    put(groups, {"cpu/cpu.cfs_quota_us": "600000", "cpu/cpu.cfs_period_us": "100000"})
    put(groups, {"memory/docker/me/memory.limit_in_bytes": str(GIB)})
    assert machine.processors() == 6
    assert machine.memory_bytes() == GIB


@pytest.mark.parametrize("text", ["-1", "", "max", "nonsense", "0"])
def test_what_is_no_number_is_no_limit(groups: Path, text: str) -> None:
    put(groups, {"self": "0::/\n3:cpu:/", "cpu.max": f"{text} 100000"})
    put(groups, {"cpu/cpu.cfs_quota_us": text, "cpu/cpu.cfs_period_us": "100000"})
    assert machine.processors() == 1024


def test_a_malformed_membership_of_control_groups_sets_no_limit(groups: Path) -> None:
    put(groups, {"self": "what is this", "cpu.max": "200000 100000"})
    assert machine.processors() == 1024


@pytest.fixture
def half_a_processor() -> Iterator[Path]:
    """A real group, of the kernel's, with a quota of 50 ms in each 100 ms."""
    quota = "50000 100000" if IS_UNIFIED else "50000"
    with group_with("cpu", "cpu.max", "cpu.cfs_quota_us", quota) as group:
        yield group


@pytest.mark.skipif(ALL == 1, reason="one processor is one with a quota and without")
def test_a_quota_of_the_kernels_is_seen(half_a_processor: Path) -> None:
    program = (
        "import os, pathlib, sys; from streamer.core.options import machine;"
        "pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid())); print(machine.processors())"
    )
    done = subprocess.run([sys.executable, "-c", program, half_a_processor], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


MEMINFO = "MemTotal: 9 kB\nMemAvailable: 8192 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB\n"
MIB = 1 << 20


@pytest.fixture
def meminfo(groups: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    reported = groups / "meminfo"
    reported.write_text(MEMINFO)
    monkeypatch.setattr(machine, "MEMORY", reported)
    return groups


def test_what_is_available_and_swap_is_free(meminfo: Path) -> None:
    assert machine.free_bytes() == 9 * MIB


def test_all_memory_counts_if_the_kernel_reports_none_as_available(meminfo: Path) -> None:
    (meminfo / "meminfo").write_text("nothing of the kind")
    assert machine.free_bytes() == machine.memory_bytes()


@pytest.mark.parametrize("version", ["unified", "first"])
def test_the_cache_of_files_is_free_in_a_group(meminfo: Path, version: str) -> None:
    if version == "unified":
        put(meminfo, {"self": "0::/me", "me/memory.max": str(6 * MIB), "me/memory.current": str(5 * MIB)})
        put(meminfo, {"me/memory.stat": f"active_file {MIB}\nanon 7\ninactive_file {2 * MIB}\nfile {9 * MIB}"})
    else:
        put(meminfo, {"self": "4:memory:/me", "memory/me/memory.limit_in_bytes": str(6 * MIB)})
        put(meminfo, {"memory/me/memory.usage_in_bytes": str(5 * MIB)})
        put(meminfo, {"memory/me/memory.stat": f"active_file 9\ntotal_inactive_file {3 * MIB}\ntotal_active_file 0"})
    assert machine.free_bytes() == (6 - 5 + 3 + 1) * MIB


def test_the_fullest_group_on_the_way_up_counts(meminfo: Path) -> None:
    put(meminfo, {"self": "0::/pod/me", "pod/me/memory.max": str(4 * MIB), "pod/me/memory.current": "0"})
    put(meminfo, {"pod/memory.max": str(5 * MIB), "pod/memory.current": str(5 * MIB - 4096)})
    assert machine.free_bytes() == 4096 + MIB


def test_a_group_that_holds_more_than_its_limit_has_nothing_free(meminfo: Path) -> None:
    put(meminfo, {"self": "0::/", "memory.max": str(4 * MIB), "memory.current": str(5 * MIB)})
    assert machine.free_bytes() == MIB


def test_a_group_that_does_not_say_what_it_uses_limits_nothing(meminfo: Path) -> None:
    put(meminfo, {"self": "0::/", "memory.max": str(4 * MIB)})
    assert machine.free_bytes() == 9 * MIB  # the machine's: nobody knows more


def test_a_group_whose_limit_is_beyond_the_machine_limits_nothing(meminfo: Path) -> None:
    beyond = str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    put(meminfo, {"self": "0::/", "memory.max": beyond, "memory.current": beyond})
    assert machine.free_bytes() == 9 * MIB


def test_a_limit_that_changes_is_seen(meminfo: Path) -> None:
    for limit in (5, 4):
        put(meminfo, {"self": "0::/", "memory.max": str(limit * MIB), "memory.current": str(2 * MIB)})
        assert machine.free_bytes() == (limit - 2 + 1) * MIB


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Count in a folder of the test's own: other tests load at the same time."""
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_a_load_alone_has_one_sharer():
    assert sharers({}) == 1


@pytest.mark.parametrize("name", machine.LOCAL_SIZES)
def test_ranks_are_counted_as_their_launcher_says(name):
    assert sharers({name: "8"}) == 8
    assert sharers({name: ""}) == sharers({name: "many"}) == sharers({name: "0"}) == 1


def test_announced_loads_are_counted_until_they_end():
    first, second = AnnouncedLoad(), AnnouncedLoad()
    assert sharers({}) == 3
    first.end()
    first.end()
    assert sharers({}) == 2
    third = AnnouncedLoad()  # in the place of the first
    assert sharers({}) == 3
    second.end()
    third.end()
    assert sharers({}) == 1


def test_a_load_of_a_process_that_was_killed_is_counted_no_more(own_folder):
    code = (
        "import sys, pathlib; from streamer.core.options import machine as n; "
        "n.SHARED_MEMORY = pathlib.Path(sys.argv[1]); load = n.AnnouncedLoad(); print('there', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(own_folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        assert sharers({}) == 2
        other.kill()
        other.wait(10)
    assert sharers({}) == 1


def test_a_forked_child_that_lives_on_does_not_count_for_its_parent():
    load = AnnouncedLoad()
    parent, child = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(child)
        os.read(parent, 1)
        os._exit(0)
    os.close(parent)
    load.end()
    assert sharers({}) == 1
    os.close(child)
    os.waitpid(pid, 0)


def test_a_file_that_is_not_this_users_is_left_alone(own_folder):
    elsewhere = own_folder / "elsewhere"
    elsewhere.touch()
    (own_folder / f"streamer-loads-{os.geteuid()}").symlink_to(elsewhere)
    AnnouncedLoad().end()
    assert sharers({}) == 1


def test_a_machine_without_shared_memory_counts_one_load(monkeypatch, own_folder):
    monkeypatch.setattr(machine, "SHARED_MEMORY", own_folder / "absent")
    load = AnnouncedLoad()
    assert sharers({}) == 1
    load.end()


def test_ranks_of_a_process_group_are_counted_once_for_each_device(monkeypatch):
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 16)
    torch = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 8))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert sharers({}) == 8
