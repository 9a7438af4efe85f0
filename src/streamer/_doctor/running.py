"""Looks into the loads of running processes of this user, without stopping them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from streamer._doctor.findings import Finding
from streamer.core import load_status
from streamer.core.bounds import advice_on, bounds_text
from streamer.core.load_status import CONSUMER, LOCATING, RANKS, READING, Load, began_at, page_of, read_page
from streamer.core.quoting import names_text, size_text

STOPPED_LETTERS = "Tt"  # by a signal, or by a debugger; proc(5)
LOOK_S = 0.5  # between two looks that tell progress from silence
SILENT_S = 10.0  # without a byte; a slow server sends some within it
MOST_SHOWN = 4  # processes that one waits for
STAGES = {READING: "reading", CONSUMER: "consumer", RANKS: "other ranks", LOCATING: "locating"}


class Process(NamedTuple):
    """A process with loads."""

    number: int
    state: str  # the letter of proc(5)
    tracer: int  # the debugger's number, or 0
    loads: list[Load]

    @property
    def is_stopped(self) -> bool:
        """Whether nothing in it runs."""
        return self.state in STOPPED_LETTERS

    def awaited(self, load: Load) -> dict[int, str]:
        """Return the processes that a load waits for, as far as it is known, each with a text that names it."""
        if load.stage == READING and (reader := load.facts.get("awaited_process")):
            return {reader: f"process {reader}"}
        if load.stage != RANKS:
            return {}
        by_rank = {int(rank): number for rank, number in load.facts.get("processes", {}).items()}
        ranks = load.facts.get("awaited_ranks") or [
            rank for rank, number in by_rank.items() if number != self.number and not _waits_for_ranks(number)
        ]
        texts = {rank: f"rank {rank} (process {by_rank[rank]})" for rank in ranks if rank in by_rank}
        return {by_rank.get(rank, -rank): texts.get(rank, f"rank {rank}") for rank in ranks}

    def to_dict(self, waiting: Mapping[int, list[int]]) -> dict[str, Any]:
        """Return what ``ps`` prints for programs; `waiting` are the processes that wait, by the one they wait for."""
        now, loads = time.monotonic(), []
        for each in self.loads:
            numbers = [number for number in self.awaited(each) if number > 0]
            stage = "other process" if numbers and each.stage == READING else STAGES.get(each.stage, "unknown")
            loads.append({"stage": stage, "seconds": round(now - each.since, 1), "awaits": numbers, **each.facts})
        facts = {"pid": self.number, "is_stopped": self.is_stopped, "waiting": waiting.get(self.number, [])}
        return {**facts, "loads": loads}


def _waits_for_ranks(number: int) -> bool:
    found = process(number)
    return found is not None and any(each.stage == RANKS for each in found.loads)


def waiting_processes(found: Iterable[Process]) -> dict[int, list[int]]:
    """Return, by the process that they wait for, the processes that wait for another one."""
    waiting: dict[int, list[int]] = {}
    for each in found:
        for number in {number for load in each.loads for number in each.awaited(load)}:
            waiting.setdefault(number, []).append(each.number)
    return waiting


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


def process_findings(number: int, seen: Sequence[int] = ()) -> Iterator[Finding]:
    """Say what a process waits for, and then the same of the processes that it waits for; each takes half a second."""
    first = process(number)
    if first is None:
        what = f"process {number} has ended, is another user's or another container's, or has loaded nothing"
        advice = "python -m streamer ps lists those that can be looked into; run it in the container of the process"
        yield Finding("process", "unknown", what, advice=advice)
        return
    if first.is_stopped:
        who = f"by the debugger {first.tracer}" if first.tracer else "by a signal"
        advice = "Let the debugger continue it" if first.tracer else f"kill -CONT {number}"
        yield Finding("process", "broken", f"process {number} is stopped {who}", "nothing in it runs", advice)
    elif not first.loads:
        yield Finding("process", "ok", f"process {number} has no load at the moment")
    time.sleep(LOOK_S)
    now = process(number) or first
    second, awaited = {each.slot: each for each in now.loads}, list[int]()
    for before in first.loads:
        if after := second.get(before.slot):  # else it has ended meanwhile
            others = now.awaited(after)
            awaited += others
            found = _finding(before, after, list(others.values()))
            yield replace(found, name=f"process {number}: {found.name}") if seen else found
    if waiting := waiting_processes(processes()).get(number):
        yield Finding("sharers", "ok", f"waiting for process {number}: {names_text([*map(str, waiting)])}")
    for other in [each for each in dict.fromkeys(awaited) if each > 0 and each not in seen][:MOST_SHOWN]:
        yield from process_findings(other, (*seen, number))


def _finding(before: Load, after: Load, awaited: Sequence[str]) -> Finding:
    facts, seconds = after.facts, time.monotonic() - after.since
    name = str(facts.get("uri", "load"))
    done, total = facts.get("done_bytes", 0), facts.get("total_bytes", 0)
    read = f"{size_text(done)} of {size_text(total)}"
    if after.stage == RANKS:
        who = " and ".join(awaited[:MOST_SHOWN]) if awaited else "other ranks"
        what = f"waits for {who} of its group for {seconds:.1f} s"
        return Finding(name, "slow", what, "all ranks take each step together", "Look into the other ranks")
    if away := facts.get("away"):
        server, (waited_s, failure) = next(iter(away.items()))
        begun = "it locates the checkpoint" if after.stage == LOCATING else read
        what = f"{begun}; {server} does not serve requests for {waited_s:.1f} s, at last with: {failure}"
        return Finding(name, "broken", what, "the load waits for it until block_deadline_s", "Look after the server")
    if after.stage == LOCATING:
        what = f"locates the checkpoint for {seconds:.1f} s: the storage has not answered all lookups"
        return Finding(name, "slow", what, advice="Look at the storage: python -m streamer doctor URI")
    if after.stage == CONSUMER:
        what = f"{read} when the consumer took tensors, {seconds:.1f} s ago"
        advice = "See what the program does with the tensors: py-spy dump shows it"
        return Finding(name, "slow", what, "the load waits for its consumer once it has read ahead", advice)
    if awaited:
        what = f"{read}; it waits for {awaited[0]}, which reads it, for {seconds:.1f} s"
        return Finding(name, "slow", what, 'share="node": each byte is read by one process', "Look into that process")
    # Of a shared load, the engine does not know which of the bytes this process reads.
    bounds = {} if "awaited_process" in facts else facts.get("bound_by") or {}
    read += f", bound so far by {bounds_text(bounds)}" if bounds else ""
    moved = max(facts.get(each, 0) - before.facts.get(each, 0) for each in ("done_bytes", "read_bytes"))
    if moved > 0:
        what, lacks_memory = f"{read}, at {moved / LOOK_S / 1e9:.3g} GB/s", next(iter(bounds), "") == "memory"
        return Finding(name, "slow" if lacks_memory else "ok", what, advice=advice_on(bounds) if lacks_memory else "")
    what = f"{read}, and no byte at the moment; it waits for the storage for {seconds:.1f} s"
    advice = "Look at the storage: python -m streamer doctor URI"
    return Finding(name, "broken" if seconds > SILENT_S else "slow", what, advice=advice)
