"""Runs `paced_server.cc` on 127.0.0.1: a server as slow as an object store, near or on another continent.

The server ignores signatures and has no ListObjects. Use it to measure speed, not to test correctness.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from raw_programs import compiled

STOP_TIMEOUT_S = 5


@dataclass(frozen=True)
class Pace:
    """The speed of the server.

    Attributes:
        latency_us: Microseconds from a request to the first byte of its response.
        connect_us: Additional microseconds for the first request of a connection.
        connection_bytes: The limit of one connection, in bytes per second.
        total_bytes: The limit of all connections together, in bytes per second; 0 is no limit.
        slow_per_mille: How many of a thousand responses take ten times as long.
    """

    latency_us: int = 30_000
    connect_us: int = 0
    connection_bytes: int = 90_000_000
    total_bytes: int = 0
    slow_per_mille: int = 0

    def arguments(self) -> list[str]:
        """Return the arguments of the program."""
        return [word for name, value in vars(self).items() for word in (f"--{name.replace('_', '-')}", str(value))]


class PacedOrigin:
    """Serve `root` at ``/`` while the context is open; lay files out as ``root/BUCKET/KEY``."""

    ca_file = None

    def __init__(self, root: Path, pace: Pace) -> None:
        self._command = [compiled("paced_server"), *pace.arguments(), str(root)]

    def __enter__(self) -> PacedOrigin:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.http_url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_TIMEOUT_S)
