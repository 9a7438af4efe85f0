"""A server in a process of its own, which ends with us, whatever ends us, and leaves nothing behind.

Guarantees: after `ServerProcess.end`, and also after the death of this process by any signal, the server, the processes
it started and its folder are gone. Every wait ends; a server that does not start is reported with the end of its log.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

__all__ = ["LoopbackServer", "RestartableServer", "ServerProcess", "is_open"]

LOG_TAIL_BYTES = 4000
POLL_S = 0.02

# Waits for a line from us, or for the end of its input when we die, whatever kills us. Removing is tried twice, as the
# last threads of the server may still write while they are being killed.
WATCHDOG = 'read -r line; kill -KILL "-$1"; shift; rm -rf -- "$@" || { sleep 1; rm -rf -- "$@"; }'

Answer = TypeVar("Answer")
Self = TypeVar("Self", bound="LoopbackServer")


class LoopbackServer(ABC):
    """A server that runs inside a ``with`` block, or between `start` and `stop`."""

    def __enter__(self: Self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it answers."""

    @abstractmethod
    def stop(self) -> None:
        """End it."""


class RestartableServer(LoopbackServer):
    """A server that can crash, and start again on the same ports and data."""

    _process: ServerProcess | None = None

    def kill(self) -> None:
        """End it as a crash would; what it serves stays."""
        assert self._process is not None
        self._process.crash()
        self._process = None

    def restart(self) -> None:
        """Start it again, after `kill`."""
        self._launch()

    @abstractmethod
    def _launch(self) -> None:
        """Set `_process`, and wait until it answers."""


class ServerProcess:
    """One running server.

    Args:
        name: Of the server, for messages.
        command: The program and its arguments.
        folder: Where it runs: its own, with its output in ``log``.
        environment: Beside a path, and `folder` as home: nothing of the user's is read.
        leftovers: What it leaves outside of `folder`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        leftovers: Sequence[str] = (),
    ) -> None:
        self._name, self._log = name, folder / "log"
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                command,
                cwd=folder,
                env={"PATH": os.defpath, "HOME": str(folder), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt in the terminal is ours to handle
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(self._server.pid), str(folder), *leftovers],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_for(self, look: Callable[[], Answer | None], timeout_s: float) -> Answer:
        """Look again and again until there is something to see, and give that.

        Raises:
            RuntimeError: the server ended, or nothing was to be seen in time; the message shows the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while (seen := look()) is None:
            if self._server.poll() is not None:
                raise RuntimeError(f"{self._name} ended with status {self._server.returncode}:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._name} gave no answer in {timeout_s:.0f} s:\n{self._log_tail()}")
            time.sleep(POLL_S)
        return seen

    def crash(self) -> None:
        """End the server and what it started at once; its folder stays, and is the caller's from here on."""
        self._watchdog.kill()  # without its bite
        self._watchdog.communicate()
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def end(self) -> None:
        """Kill the server, without any good-byes, and remove its folder. May be called twice."""
        if self._watchdog.poll() is None:
            self._watchdog.communicate(b"\n")  # not only the end: a forked child may hold the pipe open too
        self._server.wait()

    def _log_tail(self) -> str:
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def is_open(port: int) -> bool | None:
    """Look whether somebody listens on a port of 127.0.0.1; None if nobody does, for `ServerProcess.wait_for`."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0 or None
