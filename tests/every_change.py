"""Runs calls again and again, each time in a process that is killed before another change of its storage.

    python every_change.py CALLS

CALLS is JSON, a list: the name of a call, the beginning of its places, and its arguments. The first process of a call
dies before its first change, the second before its second, and so on; the last one ends. Each has a place of its own,
with its number. Prints the numbers of processes that died. Changes of a disk are counted here; a test whose storage is
a server counts them there, and kills the process whose ID it reads from the file that ``pid`` names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import warm_python

import streamer
from streamer._pull.record import PullArguments
from streamer._push.push import Target, push
from streamer.backends.posix import upload

__all__ = ["CALLS", "MOST_CHANGES", "SHARDS", "die_before_change", "died", "tensors"]

MOST_CHANGES = 60
SHARDS = {"max_shard_bytes": 400}  # one for each tensor


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full((100,), value) for name in "abc"}


def pushed(place: str, source: str, storage_options: Any = None) -> Any:
    return push(source, Target(place, storage_options), PullArguments(), progress=False)


CALLS: dict[str, Callable[..., Any]] = {
    "save": lambda place, **how: streamer.save(tensors(2), place, progress=False, **how),
    "publish": lambda place, **how: streamer.publish(tensors(2), place, progress=False, **how),
    "push": pushed,
}


def died(*calls: tuple[str, str, dict[str, Any]]) -> list[int]:
    """Run the program of this file; return how many processes died in each call."""
    done = warm_python.run(__file__, json.dumps(calls))
    assert done.returncode == 0, done.stderr[-4000:]
    numbers: list[int] = json.loads(done.stdout)
    assert all(numbers)
    return numbers


def die_before_change(number: int) -> None:
    """Kill this process before its change of a disk of this number, from 0 on."""
    changes = count()

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            is_change = call is not opening or arguments[1] & os.O_CREAT
            if is_change and next(changes) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return called

    opening = os.open
    for name in ("mkdir", "link", "unlink", "rename", "replace", "rmdir", "open"):
        setattr(os, name, dying(getattr(os, name)))
    upload._renamed = dying(upload._renamed)


def one_died(call: str, places: str, how: dict[str, Any]) -> int:
    pid_file = how.pop("pid", None)
    for number in range(MOST_CHANGES):
        child = os.fork()
        if not child:
            if pid_file:
                with open(pid_file, "w") as file:
                    file.write(str(os.getpid()))
            else:
                die_before_change(number)
            CALLS[call](f"{places}{number}", **how)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return number
        assert status == signal.SIGKILL, status
    raise AssertionError("the last process died, too")


if __name__ == "__main__":
    print(json.dumps([one_died(*each) for each in json.loads(sys.argv[1])]))
