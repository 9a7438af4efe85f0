"""How many loads share a machine: what launchers say, and running loads that nobody launched together."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from streamer.core.options import machine
from streamer.core.options.machine import AnnouncedLoad, sharers


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Count in a folder of the test's own: other tests load at the same time."""
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_a_load_alone_shares_with_nobody():
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
