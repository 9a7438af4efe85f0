"""What each rank of a group does in the tests of saves that fail, end or are continued; see `group_cases`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from itertools import count, product
from pathlib import Path
from typing import Any

import torch
from every_change import die_before_change, tensors
from group_cases import how_of
from group_saves import CASES, case, facts, of_kind, of_mesh, one_save

import streamer
from streamer import Slice
from streamer._push import publish as publishing
from streamer._save import parts, rank_saves
from streamer._save.writing import Writing
from streamer.core.errors import StorageError, StreamerError
from streamer.core.group.member import Member

__all__ = ["CASES", "HALF_TIED"]


@case
def broken(rank: int, ranks: int, *, uri: str, who: int, at: str, number: int, how: str) -> Any:
    """Save; one rank is killed, or raises, in the call of this number of a function; return errors and seconds."""
    place, name = {"sent": (parts.SentParts, "send"), "message": (Member, "round"), "show": (Writing, "show")}[at]
    function, calls, broke = getattr(place, name), Counter[str](), Path(f"{uri}-broke")

    def called(*arguments: Any, **named: Any) -> Any:
        calls[at] += 1
        if calls[at] == number:
            broke.write_text(str(time.monotonic()))
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise StorageError("the quota is used up")
        return function(*arguments, **named)

    if rank == who:
        setattr(place, name, called)
    try:
        return one_save(rank, ranks, uri=uri, kind="columns", mib=6, part_mib=1, overwrite=True)
    except StreamerError as error:
        return [type(error).__name__, str(error), time.monotonic() - float(broke.read_text())]


@case
def ended(rank: int, ranks: int, *, flag: str, parts_sent: list[int], part_mib: int, **how: Any) -> Any:
    """Save what all ranks have, with ``resume=True``; all are killed when each has sent so many parts."""
    send, begun, done, is_done = parts.SentParts.send, count(), count(1), threading.Event()
    flags = [Path(f"{flag}-{other}") for other in range(ranks)]

    def counted(*arguments: Any) -> None:
        if next(begun) < parts_sent[rank]:
            send(*arguments)
            if next(done) == parts_sent[rank]:
                is_done.set()
            return
        is_done.wait()
        (own := Path(f"{flag}-{rank}.{threading.get_ident()}")).write_text(str(os.getpid()))
        own.rename(flags[rank])
        while rank or not all(each.exists() for each in flags):
            time.sleep(0.001)
        for how_to_end in (signal.SIGSTOP, signal.SIGKILL):  # none may see that another one has ended
            for each in flags[1:]:
                os.kill(int(each.read_text()), how_to_end)
        os.kill(os.getpid(), signal.SIGKILL)

    if parts_sent:
        parts.SentParts.send = counted
    parts.PART_BYTES = part_mib << 20
    tensors = {name: torch.arange(size) for name, size in how.pop("sizes").items()}
    return facts(streamer.save(tensors, **how_of({"resume": True, **how}, rank)))


@case
def killed_before(rank: int, ranks: int, *, uri: str, number: int, is_killed: bool = True, **how: Any) -> str:
    """Save; rank 0 is killed before its change of the disk of this number."""
    if not rank and is_killed:
        die_before_change(number)
    whole = tensors(2)
    own = {name: of_mesh("rows", tensor, ranks) if name == "b" else tensor for name, tensor in whole.items()}
    try:
        streamer.save(own, f"{uri}{number}", **how_of(how, rank))
    except StreamerError as error:
        return type(error).__name__
    return ""


HALF_TIED = [
    (kind, who, *rest)
    for kind, rest in [
        *product(["plain", "rows", "sliced", "chained", "alone"], [(True, torch.float32), (False, torch.float32)]),
        ("plain", (True, torch.float64)),
        ("view", (True, torch.float32)),
    ]
    for who in range(2)
]


@case
def half_tied(rank: int, ranks: int, *, uri: str) -> Any:
    """Save tensors that share memory on one rank alone, and are equal or not on the other."""
    told = list[Any]()
    for number, (kind, who, is_equal, dtype) in enumerate(HALF_TIED):
        one, other = torch.ones(4, 6), torch.full((4, 6), 1.0 if is_equal else 2.0, dtype=dtype)
        if kind == "rows":
            one, other = of_mesh("rows", one, ranks), of_mesh("rows", other, ranks)
        tensors = {"a": one, "b": one[:2] if kind == "view" else one}
        if rank != who:
            apart = {"chained": {"b": other, "c": other}, "alone": {"b": other}}
            tensors = apart.get(kind, {"a": one, "b": other[:2] if kind == "view" else other})
        slices = {"*": Slice(0, rank, ranks)} if kind == "sliced" else None
        try:
            how = how_of({"slices": slices}, rank)
            told.append(["", facts(streamer.save_model(tensors, f"{uri}/{number}", **how))["tensors"]])
        except StreamerError as error:
            told.append([type(error).__name__, str(error)])
    return told


@case
def stopped(rank: int, ranks: int, *, uri: str, who: int, **how: Any) -> Any:
    """Save; one rank is stopped, and goes on when all others have raised."""
    step, pid, own = rank_saves.RankSave._send_step, Path(f"{uri}-pid"), Path(f"{uri}-raised-{rank}")

    def stopping(*arguments: Any) -> None:
        if rank == who and not pid.exists():
            pid.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        step(*arguments)

    rank_saves.RankSave._send_step = stopping
    try:
        return one_save(rank, ranks, uri=uri, kind="columns", mib=6, part_mib=1, overwrite=True, **how)
    except StreamerError as error:
        own.touch()
        others = [other for other in range(ranks) if other != who]
        if rank != who and all(Path(f"{uri}-raised-{other}").exists() for other in others):
            os.kill(int(pid.read_text()), signal.SIGCONT)
        return [type(error).__name__, str(error)]


@case
def published(rank: int, ranks: int, *, uri: str) -> Any:
    """Publish several times; in some calls one rank fails, or the ranks do not agree."""

    def publish(tensors: Any, **how: Any) -> Any:
        try:
            report = streamer.publish(tensors, uri, **{"grace_s": 0, **how_of(how, rank)})
            return [report.version, report.removed, report.saved.files]
        except StreamerError as error:
            return [type(error).__name__, str(error)]

    def refuse(*_: Any) -> None:
        raise StorageError("no room for the pointer")

    tensors, write = of_kind("columns", rank, ranks, 0), publishing.write_whole
    told = [publish(tensors), publish(tensors, keep=1)]
    told += [
        publish({"a": torch.ones(3, dtype=torch.complex128)} if rank else tensors),
        publish(tensors, keep=rank + 1),
    ]
    told += [publish(uri if rank else tensors), publish(tensors, keep=1 if rank else "one")]
    publishing.write_whole = refuse
    told.append(publish(tensors))
    publishing.write_whole = write
    return [*told, publish(tensors)]
