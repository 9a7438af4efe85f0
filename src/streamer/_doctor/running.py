"""Looks into the loads of running processes of this user, without stopping them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from streamer._doctor.findings import Finding
from streamer.core import load_status
from streamer.core.load_status import CONSUMER, RANKS, READING, Load, began_at, page_of, read_page
from streamer.core.quoting import size_text

STOPPED_LETTERS = "Tt"  # by a signal, or by a debugger; proc(5)
LOOK_S = 0.5  # between two looks that tell progress from silence
SILENT_S = 10.0  # without a byte; a slow server sends some within it


class Process(NamedTuple):
    """A process with loads."""

    number: int
    state: str  # the letter of proc(5)
    tracer: int  # the debugger's number, or 0
    loads: list[Load]

    def to_dict(self) -> dict[str, Any]:
        """Return what ``ps`` prints for programs."""
        now = time.monotonic()
        loads = [
            {"stage": STAGES[each.stage], "seconds": round(now - each.since, 1), **each.facts} for each in self.loads
        ]
        return {"pid": self.number, "is_stopped": self.state in STOPPED_LETTERS, "loads": loads}


STAGES = {READING: "reading", CONSUMER: "consumer", RANKS: "other ranks"}


def processes() -> Iterator[Process]:
    """Yield this user's processes with a page of loads; remove the pages of processes that have ended."""
    prefix = page_of(0).name[:-1]
    for path in sorted(load_status.FOLDER.glob(f"{prefix}*")):
        number = path.name.removeprefix(prefix)
        if number.isdecimal() and (found := process(int(number))) is not None:
            yield found


def process(number: int) -> Process | None:
    """Look at one process; None if it has no page, or has ended."""
    path = page_of(number)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            is_ours = os.fstat(descriptor).st_uid == os.geteuid()
            page = read_page(file.read(load_status.PAGE_BYTES + 1)) if is_ours else None
    except OSError:
        return None
    if page is None:
        return None
    began, loads = page
    if began_at(number) != began:  # it has ended, and its number may be another process's now
        with suppress(OSError):
            os.unlink(path)
        return None
    status = _status(number)
    return Process(number, status.get("State", "?")[:1], int(status.get("TracerPid", "0")), loads)


def _status(number: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{number}/status").read_text()
    except OSError:
        return {}
    return dict(re.findall(r"^(\w+):\t(.*)$", text, re.MULTILINE))


def process_findings(number: int) -> Iterator[Finding]:
    """Say what a process waits for, if it waits; it takes half a second."""
    first = process(number)
    if first is None:
        what = f"process {number} has ended, is another user's, or has loaded nothing"
        yield Finding("process", "unknown", what, advice="python -m streamer ps lists those that can be looked into")
        return
    if first.state in STOPPED_LETTERS:
        who = f"by the debugger {first.tracer}" if first.tracer else "by a signal"
        advice = "Let the debugger continue it" if first.tracer else f"kill -CONT {number}"
        yield Finding("process", "broken", f"process {number} is stopped {who}", "nothing in it runs", advice)
    elif not first.loads:
        yield Finding("process", "ok", f"process {number} has no load at the moment")
    time.sleep(LOOK_S)
    second = {each.slot: each for each in (process(number) or first).loads}
    for before in first.loads:
        if before.slot in second:  # else it has ended meanwhile
            yield _finding(before, second[before.slot])


def _finding(before: Load, after: Load) -> Finding:
    facts, seconds = after.facts, time.monotonic() - after.since
    name = str(facts.get("uri", "load"))
    done, total = facts.get("done_bytes", 0), facts.get("total_bytes", 0)
    read = f"{size_text(done)} of {size_text(total)}"
    if after.stage == RANKS:
        what = f"waits for other ranks of its group for {seconds:.1f} s"
        return Finding(name, "slow", what, "all ranks take each step together", "Look into the other ranks")
    if away := facts.get("away"):
        server, (waited_s, failure) = next(iter(away.items()))
        what = f"{read}; {server} does not serve requests for {waited_s:.1f} s, at last with: {failure}"
        return Finding(name, "broken", what, "the load waits for it until block_deadline_s", "Look after the server")
    if after.stage == CONSUMER:
        what = f"{read} when the consumer took tensors, {seconds:.1f} s ago"
        advice = "See what the program does with the tensors: py-spy dump shows it"
        return Finding(name, "slow", what, "the load waits for its consumer once it has read ahead", advice)
    speed = (done - before.facts.get("done_bytes", 0)) / LOOK_S / 1e9
    if speed > 0:
        return Finding(name, "ok", f"{read}, at {speed:.3g} GB/s")
    what = f"{read}, and no byte at the moment; it waits for the storage for {seconds:.1f} s"
    advice = "Look at the storage: python -m streamer doctor URI"
    return Finding(name, "broken" if seconds > SILENT_S else "slow", what, advice=advice)
