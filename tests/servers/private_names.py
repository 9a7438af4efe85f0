"""A Python script in a world with names of its own: its hosts file and its name server are the test's.

Needs Linux and the right to make a mount namespace; `missing_for_private_names` says what is absent.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNS = 0x00020000
NXDOMAIN, SERVFAIL, SILENCE = 3, 2, None

# Runs before the script: the files are laid over the machine's own, for this process alone.
OVERLAY = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result != 0:
        sys.exit(f"{{what}}: {{os.strerror(ctypes.get_errno())}}")
check(libc.unshare({CLONE_NEWNS}), "unshare")
check(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None), "mount private")  # MS_REC | MS_PRIVATE
for name in ("hosts", "resolv.conf"):
    own, machines = f"{{sys.argv[1]}}/{{name}}".encode(), f"/etc/{{name}}".encode()
    check(libc.mount(own, machines, None, 0x1000, None), name)  # MS_BIND
del sys.argv[1]
"""


class NameServer:
    """Context manager: a DNS server on port 53 of an address of loopback; `answers` maps names to codes of refusal.

    The address is this process's own: resolv.conf(5) names no port, and other processes have name servers, too.

    Attributes:
        asked: How often each name was asked for.
        on_question: Called with each name before it is answered.
    """

    address = "127.{}.{}.{}".format(*(0x800000 + os.getpid() % (1 << 22)).to_bytes(3, "big"))

    def __init__(self, answers: dict[str, int | None]) -> None:
        self.answers = answers
        self.asked: Counter[str] = Counter()
        self.on_question: Callable[[str], None] = lambda name: None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self.address, 53))

    def __enter__(self) -> NameServer:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (self.address, 53))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, sender = self._socket.recvfrom(512)
            if not query:
                return
            name, end = _name_in(query)
            self.asked[name] += 1
            self.on_question(name)
            code = self.answers.get(name, NXDOMAIN)
            if code is not SILENCE:
                head = query[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, 0, 0, 0)
                self._socket.sendto(head + query[12:end], sender)


def _name_in(query: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return ".".join(labels).lower(), at + 5  # the zero, type and class


def missing_for_private_names() -> str | None:
    """Say why tests with names of their own cannot run here, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0 else 1)
    if os.waitpid(child, 0)[1] != 0:
        return "no right to make a mount namespace, and so no hosts file and name server of the test's own"
    return None


def run_with_names(
    folder: Path, script: str, *arguments: str, hosts: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a script whose names are those of `hosts` and of `NameServer`."""
    (folder / "hosts").write_text(hosts)
    (folder / "resolv.conf").write_text(f"nameserver {NameServer.address}\n")
    return subprocess.run(
        [sys.executable, "-c", OVERLAY + textwrap.dedent(script), str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"},
    )
