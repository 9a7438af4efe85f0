"""How much pinned memory a load uses for each device."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from servers.short_fuse import fuse_mount

from streamer import Options
from streamer.core.engine import tuning
from streamer.core.engine.tuning import choose_pinned_bytes
from streamer.core.options.settings import resolve

MIB, GIB = 1 << 20, 1 << 30


def ring_mib(*, options=None, files=True, threads=12, devices=1, sharers=1):
    chosen = choose_pinned_bytes(
        resolve(options), reads_only_files=files, file_threads=threads, devices=devices, sharers=sharers
    )
    return chosen // MIB


def test_files_need_a_small_ring_whatever_the_memory(monkeypatch):
    monkeypatch.setattr(tuning, "memory_bytes", lambda: 2048 * GIB)
    assert ring_mib() == 256


@pytest.mark.parametrize(
    ("devices", "sharers", "threads", "expected"), [(2, 1, 12, 128), (1, 2, 6, 128), (1, 8, 2, 64)]
)
def test_devices_and_neighbours_share_it(devices, sharers, threads, expected):
    assert ring_mib(devices=devices, sharers=sharers, threads=threads) == expected


def test_a_ring_has_a_slot_for_each_reader_and_some_more():
    assert ring_mib(threads=64) == (64 + 4) * 8


@pytest.mark.parametrize(("memory_gib", "expected"), [(8, 256), (64, 1024), (2048, 2048)])
def test_requests_over_a_network_need_a_large_one(memory_gib, expected, monkeypatch):
    monkeypatch.setattr(tuning, "memory_bytes", lambda: memory_gib * GIB)
    assert ring_mib(files=False) == expected
    assert ring_mib(files=False, sharers=8) == 256


def test_what_the_user_set_counts():
    assert ring_mib(options=Options(pinned_bytes=5 * MIB), sharers=8) == 5


# --- direct reads use io_uring, if the system allows it -------------------------------------------------------------

# The numbers of system calls as new as io_uring_setup(2), and of prctl(2), are the same on every kind of machine.
LOAD = """
import ctypes, json, os, struct, sys
import streamer

IO_URING_SETUP = 425
libc = ctypes.CDLL(None, use_errno=True)

def forbid(system_call, os_error):
    load_number, jump_if_equal, give = 0x20, 0x15, 0x06
    steps = [(load_number, 0, 0, 0), (jump_if_equal, 0, 1, system_call), (give, 0, 0, 0x50000 | os_error),
             (give, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_seccomp, by_filter, program, 0, 0) == 0

def is_allowed():
    descriptor = libc.syscall(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0

def rings():
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # that of the listing itself
            pass
    return sum("io_uring" in target for target in targets)

os_error = int(sys.argv[2])
if os_error:
    forbid(IO_URING_SETUP, os_error)
    assert not is_allowed() and ctypes.get_errno() == os_error
can = is_allowed()
most, right = 0, 0
# The limit keeps the threads alive, and with them their rings, while the consumer looks.
options = streamer.Options(**json.loads(sys.argv[3]))
with streamer.stream(sys.argv[1], framework="np", progress=False, options=options) as tensors:
    for name, tensor in tensors:
        most = max(most, rings())
        right += bool((tensor == float(name[1:])).all())
can = can and "liburing" in open("/proc/self/maps").read()  # which a build may lack
print(json.dumps({"right": right, "can_have": can, "had": most > 0, "rings_after": rings()}))
"""
TENSORS = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("ring") / "model.safetensors"
    save_file({f"t{number:02}": torch.full((1_000_001,), float(number)) for number in range(TENSORS)}, path)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    return path


def loaded(path, os_error=0, **options):
    given = json.dumps({"direct_io": True, "memory_limit_bytes": 16 << 20, **options})
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), str(os_error), given],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_direct_reads_take_a_ring_where_the_system_has_one(path):
    reported = loaded(path)
    if not reported["can_have"]:
        pytest.skip("NO IO_URING here, or a build without liburing: nothing of this was checked")
    assert reported == {"right": TENSORS, "can_have": True, "had": True, "rings_after": 0}


@pytest.mark.parametrize("os_error", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_threads_read_by_themselves_where_it_is_forbidden(path, os_error):
    assert loaded(path, os_error) == {"right": TENSORS, "can_have": False, "had": False, "rings_after": 0}


def test_a_fuse_mount_that_answers_with_less_than_was_asked_for_is_read_without_a_ring_regression(path, tmp_path):
    """The kernel reads the rest for a ring into the wrong place, and calls the read complete."""
    try:
        with fuse_mount(tmp_path, path.read_bytes(), most_bytes=100 << 10) as mounted:
            reported = loaded(mounted)
    except OSError as error:
        pytest.skip(f"no right to mount a file system: {error}")
    assert (reported["right"], reported["had"]) == (TENSORS, False)


@pytest.mark.parametrize("options", [{"io_uring": False}, {"direct_io": False}])
def test_no_ring_is_made_without_need(path, options):
    reported = loaded(path, **options)
    assert (reported["right"], reported["had"]) == (TENSORS, False)
