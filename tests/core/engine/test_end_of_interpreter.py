"""A thread inside the engine does not abort a process whose main thread has come to its end."""

from __future__ import annotations

import subprocess
import sys

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
