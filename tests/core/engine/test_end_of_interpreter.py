"""A thread inside the engine does not abort a process whose main thread has come to its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import zlib
from collections import Counter
from pathlib import Path

import pytest
import torch
from gpu.fake_devices import cxx_compiler
from safetensors.torch import save
from servers.scripted_http import ScriptedServer

import streamer
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

# The engine reads 2 GiB, of one page of zeros, without the interpreter's lock, and asks for it while the interpreter
# ends: the last reference to an object is dropped then, and the lock is free while that sleeps.
SCRIPT = """
import mmap, sys, threading, time
from streamer import _native

class LastObject:
    def __del__(self, sleep=time.sleep):
        sleep(2)

def read():
    has_begun.set()
    _native.crc("crc32c", zeros)
    print("not reached: the interpreter has ended", flush=True)

zeros = mmap.mmap(-1, 2 << 30)
has_begun = threading.Event()
threading.Thread(target=read, daemon=True).start()
has_begun.wait()
sys.last_object = LastObject()
print("done", flush=True)
"""


def test_a_thread_that_comes_back_from_the_engine_while_the_interpreter_ends_does_not_abort_it():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


# --- A local file whose bytes are exchanged by one long write: a load gives one version of it, or raises ------------

TENSORS = {f"t{index}": torch.zeros(10_000_000, dtype=torch.uint8) for index in range(8)}
LOADS = 60


def test_a_load_in_the_middle_of_a_long_write_mixes_no_versions_regression(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    versions = [save({name: tensor + value for name, tensor in TENSORS.items()}) for value in (1, 2)]
    path.write_bytes(versions[0])
    is_over = threading.Event()

    def write() -> None:  # each version with one system call, which holds no lock of Python
        descriptor = os.open(path, os.O_WRONLY)
        number = 0
        while not is_over.wait(0.1):
            number += 1
            assert os.pwrite(descriptor, versions[number % 2], 0) == len(versions[0])
        os.close(descriptor)

    writer = threading.Thread(target=write)
    writer.start()
    found: Counter[frozenset[int]] = Counter()
    try:
        for _ in range(LOADS):
            try:
                loaded = streamer.load(path)
            except streamer.ChangedError:
                continue
            found[frozenset(int(value) for tensor in loaded.values() for value in tensor.aminmax())] += 1
    finally:
        is_over.set()
        writer.join()
    assert set(found) <= {frozenset({1}), frozenset({2})}
    assert found


# --- signals are the program's, SIGPIPE too: a server that resets its connections ends no process -------------------

DATA = bytes(range(256)) * 8000
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset

PLAIN_WRITES = """
#include <sys/types.h>
#include <unistd.h>
extern "C" ssize_t send(int descriptor, const void* data, size_t bytes, int) { return write(descriptor, data, bytes); }
"""

LOAD = """
    import signal, sys, zlib
    from streamer import Options
    from streamer.core.engine.plan import Item, plan_reads
    from streamer.core.engine.session import ReadSession, SourceObject
    from streamer.core.options.settings import resolve
    from streamer.core.store.sources import HttpSource

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    url, ca_file, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    options = Options(block_bytes=64 << 10, http_reactors=1, http_in_flight=2, max_attempts=9)
    object = SourceObject(url, HttpSource(url, ca_file=ca_file), size)
    session = ReadSession([object], plan_reads([Item(0, 0, size)], 0), resolve(options))
    assert session.next_items() == [0]
    print(zlib.crc32(memoryview(session.take(0))))
    session.close()
"""


def reset_often(request, answer):
    """Break off every fourth answer, and the connection after every other fourth, which the client would use again."""
    if request.number % 2:
        answer.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        answer.sent_bytes = len(answer.body) // 2 if request.number % 4 == 1 else len(answer.body)


@pytest.fixture(scope="module")
def plain_writes(tmp_path_factory):
    """To be preloaded: sockets are written to without MSG_NOSIGNAL, as OpenSSL does for libcurl before 7.88."""
    folder = tmp_path_factory.mktemp("plain_writes")
    (folder / "send.cc").write_text(PLAIN_WRITES)
    command = [cxx_compiler(), "-shared", "-fPIC", folder / "send.cc", "-o", folder / "libsend.so"]
    subprocess.run(command, check=True)
    return folder / "libsend.so"


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
def test_a_load_from_a_server_that_resets_survives_the_default_of_sigpipe_regression(with_tls, plain_writes, tmp_path):
    with ScriptedServer(DATA, reset_often, with_tls=with_tls) as server:
        if server.authority is not None:
            server.authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        command = [sys.executable, "-c", textwrap.dedent(LOAD), server.url, str(tmp_path / "ca.pem"), str(len(DATA))]
        environment = os.environ | {"LD_PRELOAD": str(plain_writes)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode != -signal.SIGPIPE
    assert (done.stdout.strip(), done.stderr, done.returncode) == (str(zlib.crc32(DATA)), "", 0)


def blocked_by_native_threads():
    """Return the signals each native thread of ours blocks, as the system sees them: bit n is signal n + 1."""
    masks = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it ended meanwhile
            if (task / "comm").read_text().startswith("streamer-http"):
                masks.append(int(re.search(r"SigBlk:\s*(\w+)", (task / "status").read_text())[1], 16))
    return masks


def test_no_thread_of_the_engine_takes_a_signal_of_the_program_regression():
    masks = []

    def look(request, answer):
        masks.extend(blocked_by_native_threads())

    with ScriptedServer(DATA, look) as server:
        objects = [SourceObject(server.url, HttpSource(server.url), len(DATA))]
        session = ReadSession(objects, plan_reads([Item(0, 0, len(DATA))], 0), resolve(None))
        assert session.next_items() == [0]
        session.close()
    assert masks
    for theirs in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE):
        assert all(mask >> (theirs - 1) & 1 for mask in masks), theirs
    for ours in (signal.SIGSEGV, signal.SIGBUS, signal.SIGPROF):
        assert not any(mask >> (ours - 1) & 1 for mask in masks), ours


def test_the_engine_releases_the_lock_of_the_interpreter_by_its_own_means_alone_regression():
    """Helpers of pybind11 take it again in a way that aborts a process that ends, also while the engine is imported."""
    sources = [path for path in (Path(__file__).parents[3] / "native/python").iterdir() if path.suffix in (".cc", ".h")]
    helpers = re.compile(r"gil_scoped_|gil_safe_call_once|register_(local_)?exception<")
    assert sources
    assert [path.name for path in sources if helpers.search(path.read_text())] == []
