"""A process that loads a checkpoint as the parent says, with what others of this machine read of it.

    python node_load.py '{"uri": …}'

It says ``ready`` once the headers are read, ``begun`` once the load has begun after a line on its standard input, and
at the end what it got, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["NodeLoad", "all_meetings"]


class NodeLoad:
    """One such process, in the parent. A context manager that ends it.

    Args:
        uri: What to load.
        how: Of the program: see `main`.
        environment: None for this process's.
    """

    def __init__(self, uri: str, environment: dict[str, str] | None = None, **how: Any) -> None:
        command = [sys.executable, __file__, json.dumps({"uri": uri, **how})]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def expect(self, line: str) -> None:
        """Wait for a line."""
        assert self.process.stdout is not None
        got = self.process.stdout.readline().strip()
        assert got == line, got

    def go(self) -> None:
        """Begin to load, and wait until it has begun."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.expect("begun")

    def result(self) -> dict[str, Any]:
        """Wait for the end: ``tensors`` (checksums), ``report``, ``seconds``, ``error``."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"it ended with {self.process.wait(10)}"
        return dict(json.loads(text))

    def meetings(self) -> set[str]:
        """Name the meetings at which it waits for other processes."""
        open_files = set()
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                open_files.add(os.readlink(each))
        return {name for number, name in all_meetings() if f"socket:[{number}]" in open_files}

    def __enter__(self) -> NodeLoad:
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def all_meetings() -> list[tuple[str, str]]:
    """Return the numbers of sockets and the names of the meetings of this machine, those of other tests among them."""
    return re.findall(r"(\d+) @(streamer-\S+)", Path("/proc/net/unix").read_text())


def main(
    uri: str,
    *,
    storage_options: dict[str, Any],
    names: list[str] | None = None,
    part: tuple[int, int] | None = None,
    patience_s: float | None = None,
    pause_s: float = 0.0,
    stop_after: int | None = None,
    leave_after: int | None = None,
    least_bytes: int | None = None,
    least_memory_bytes: int | None = None,
    refused: tuple[str, int] | None = None,
    descriptors: int | None = None,
    **options: Any,
) -> None:
    """Load.

    Args:
        uri: What.
        storage_options: As of `streamer.load`.
        names: As of `streamer.load`.
        part: Rank and number of ranks: columns of ``*.columns``, rows of ``*.rows``.
        patience_s: Of all waits for other processes, for a machine that is busy with other tests.
        pause_s: After each tensor.
        stop_after: So many tensors; it goes on after a line on its standard input.
        leave_after: So many tensors.
        least_bytes: Of a load that shares by itself.
        least_memory_bytes: Of the shared memory of a load that does not fit into it.
        refused: The beginning of the names of threads that are refused, and how many are given before.
        descriptors: So many more descriptors can be opened once the headers are read.
        options: Of `streamer.Options`.
    """
    from streamer import Options, Slice
    from streamer._checkpoint_headers import open_checkpoint, wanted_tensors
    from streamer.core.node import leader, member, messages, should_share
    from streamer.core.request.request import Request

    if patience_s is not None:
        leader.ARRIVAL_S = messages.SILENCE_S = member.MEETING_S = patience_s  # type: ignore[attr-defined]
    if least_bytes is not None:
        should_share.LEAST_BYTES = least_bytes
    if least_memory_bytes is not None:
        should_share.LEAST_MEMORY_BYTES = least_memory_bytes
    how: dict[str, Any] = {"storage_options": storage_options, "names": names, "framework": "np"}
    if part is not None:
        how["slices"] = {"*.columns": Slice(1, *part), "*.rows": Slice(0, *part)}
    request = Request(uri=uri, **how, options=Options(**options))
    checkpoint = open_checkpoint(request)
    wanted = wanted_tensors(checkpoint, request)
    if refused is not None:
        refuse_threads(*refused)
    if descriptors is not None:
        most = len(os.listdir("/proc/self/fd")) + descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run(checkpoint, request, wanted, pause_s, stop_after, leave_after)


def refuse_threads(name: str, left: int) -> None:
    """Let Python start only so many more threads whose names begin so."""
    start, given = threading.Thread.start, list[threading.Thread]()

    def start_or_refuse(self: threading.Thread) -> None:
        if self.name.startswith(name):
            if len(given) >= left:
                raise RuntimeError("can't start new thread")
            given.append(self)
        start(self)

    threading.Thread.start = start_or_refuse  # type: ignore[method-assign]


def run(
    checkpoint: Any, request: Any, wanted: Any, pause_s: float, stop_after: int | None, leave_after: int | None
) -> None:
    """Load when the parent says so, and print what came of it."""
    from streamer import StreamerError
    from streamer._checkpoint_headers import framework_for
    from streamer._stream import Stream

    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    got: dict[str, Any] = {"tensors": {}, "error": None}
    try:
        with Stream(checkpoint, wanted, framework_for(request), checkpoint.verification(wanted)) as stream:
            print("begun", flush=True)
            for name, tensor in stream:
                got["tensors"][name] = zlib.crc32(tensor)
                time.sleep(pause_s)
                if len(got["tensors"]) == stop_after:
                    sys.stdin.readline()
                if len(got["tensors"]) == leave_after:
                    break
        got["report"] = stream.report.to_dict()
    except StreamerError as error:
        got["error"] = type(error).__name__
    print(json.dumps({**got, "seconds": time.monotonic() - began}), flush=True)
    sys.stdin.readline()  # what is left behind is looked at first


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(**json.loads(sys.argv[1]))
