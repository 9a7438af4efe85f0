"""The file of a trace, to which the processes of a machine add what each of them did.

Guarantees: a reader finds a complete file, at any time. A file that is no trace is never replaced. What a process
adds replaces what it added before, and leaves what others added; a trace of an earlier run is replaced.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from streamer.core.errors import OptionError
from streamer.core.folders.drafts import LockedDraft
from streamer.core.folders.paths import is_replaceable

BEGIN = '{"otherData": {"product": "streamer"'
EVENTS, END = '"traceEvents": [\n', "]}\n"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
CLOCK_US = 1_000_000  # what was written before this machine was started again may seem later than that
WAIT_S, PAUSE_S = 5.0, 0.01  # for another process that adds to the file, which takes a fraction of a second


class Part(NamedTuple):
    """What one process adds."""

    facts: dict[str, Any]  # with the fields `id`, `pid`, `began_us`, `ended_us`, `dropped_events` and `loads`
    events: Sequence[str]  # one line of JSON each, without the number of the process


def check_path(path: str) -> None:
    """Raise an error if no trace can be written to a path."""
    problem = ""
    if not is_replaceable(path):
        problem = "is a folder" if os.path.isdir(path) else "is no regular file"
    elif not os.path.isdir(os.path.dirname(path)):
        problem = "is in no folder that there is"
    if problem:
        raise OptionError(f"the trace {path!r} {problem}", hint="Name a file in a folder that exists")
    try:
        if os.path.exists(path):
            with open(path, "rb") as file:
                is_trace = file.read(len(BEGIN)) in (b"", BEGIN.encode())
            if not is_trace:
                hint = "Name another file, or remove this one"
                raise OptionError(f"the trace {path!r} would replace a file that is no trace of streamer", hint=hint)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: str, error: OSError) -> OptionError:
    """Return the error for a path to which nothing can be written."""
    hint = "Name a file in a folder that you may write to"
    return OptionError(f"the trace {path!r} cannot be written: {error.strerror or error}", hint=hint)


def add(path: str, part: Part, most_events: int, summary: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> bool:
    """Write a file with this part and those of others; return False if another process keeps it locked for too long.

    Args:
        path: The file.
        part: What this process did.
        most_events: The number of events in the file.
        summary: Returns the facts of the file from those of all its parts.
    """
    waits_until = time.monotonic() + WAIT_S
    while (draft := LockedDraft.take(path, waits=False)) is None:
        if time.monotonic() > waits_until:
            return False
        time.sleep(PAUSE_S)
    try:
        others = [each for each in _parts(path) if _is_kept(each.facts, part.facts)]
        with open(os.dup(draft.descriptor), "w", encoding="utf-8") as file:
            _write(file, [*others, part], most_events, summary)
        draft.finish(is_flushed=False)
    except BaseException:
        draft.discard()
        raise
    return True


def _write(
    file: Any, parts: Sequence[Part], most: int, summary: Callable[[list[dict[str, Any]]], dict[str, Any]]
) -> None:
    pids: set[int] = set()
    lines: list[str] = []
    for part in parts:
        pid = next(each for each in count(part.facts["pid"]) if each not in pids)  # containers number alike
        pids.add(pid)
        kept = part.events[: max(0, most - len(lines))]
        part.facts.update(pid=pid, dropped_events=part.facts["dropped_events"] + len(part.events) - len(kept))
        lines.extend(f'{{"pid": {pid}, {line}' for line in kept)
    facts = {"product": "streamer", **summary([part.facts for part in parts])}
    file.write(f'{{"otherData": {json.dumps(facts)},\n{EVENTS}')
    file.write(",\n".join(lines))
    file.write(f"\n{END}" if lines else END)


def _parts(path: str) -> list[Part]:
    """Read what is in a file; nothing if there is none, or another program wrote it meanwhile."""
    with suppress(OSError, ValueError, KeyError, TypeError), open(path, encoding="utf-8") as file:
        facts = json.loads("{" + file.readline().strip().rstrip(",").removeprefix("{") + "}")["otherData"]
        lines: dict[int, list[str]] = {int(each["pid"]): [] for each in facts["processes"]}
        for line in file:
            if line.startswith('{"pid": '):
                pid, _, rest = line.removeprefix('{"pid": ').partition(", ")
                lines[int(pid)].append(rest.rstrip().rstrip(","))
        return [Part(each, lines[int(each["pid"])]) for each in facts["processes"]]
    return []


def _is_kept(other: dict[str, Any], own: dict[str, Any]) -> bool:
    """Say whether another process's part belongs to the same run: it ended after this process had begun."""
    ended_us = int(other["ended_us"])
    is_of_run = own["process_began_us"] <= ended_us <= own["ended_us"] + CLOCK_US
    return other["id"] != own["id"] and bool(is_of_run)
