"""Starts the ranks of a group, runs cases of `group_cases` on all of them, and collects the results.

    python group_ranks.py RANKS CASES

CASES is JSON, a list of cases: the name of a function of `group_cases`, and its arguments. Prints JSON: for each case
what each rank returned and the seconds it took; the class and text of an exception; None for a rank that died. The
ranks are forked from one process that has imported torch, because the import takes longer than the cases.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import warm_python

import streamer

__all__ = ["ranks_tell", "second_rank", "values"]

PATIENCE_S = 60.0


def run(rank: int, ranks: int, name: str, arguments: dict[str, Any], folder: Path) -> None:
    import group_cases  # not where this file is imported for `ranks_tell`
    import group_failures

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=store)
    dist.barrier()
    began = time.monotonic()
    try:
        cases = {**group_cases.CASES, **group_failures.CASES}
        reported = {"value": cases[name](rank, ranks, **arguments)}
    except Exception as error:
        reported = {"error": type(error).__name__, "text": str(error), "rank": getattr(error, "rank", None)}
    reported["seconds"] = time.monotonic() - began
    (folder / f"{rank}.json").write_text(json.dumps(reported))
    (folder / f"{rank}.done").touch()
    ends_at = time.monotonic() + PATIENCE_S  # the end of a process is noticed by the others as a failure
    while time.monotonic() < ends_at and not all(
        (folder / f"{other}.done").exists() or (folder / f"{other}.dead").exists() for other in range(ranks)
    ):
        time.sleep(0.02)
    os._exit(0)


def told_by(name: str, arguments: dict[str, Any], ranks: int) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        processes = [
            context.Process(target=run, args=(rank, ranks, name, arguments, Path(folder))) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        ends_at = time.monotonic() + PATIENCE_S
        while any(process.is_alive() for process in processes) and time.monotonic() < ends_at:
            for rank, process in enumerate(processes):
                process.join(0.02)
                if not process.is_alive():
                    (Path(folder) / f"{rank}.dead").touch()
        hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
        assert not hung, f"{name}: ranks {hung} hang"
        files = [Path(folder) / f"{rank}.json" for rank in range(ranks)]
        return [json.loads(file.read_text()) if file.exists() else None for file in files]


def ranks_tell(ranks: int, *cases: tuple[str, dict[str, Any]]) -> list[list[Any]]:
    """Run cases, in a process of their own; give for each what each rank told."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = warm_python.run(__file__, str(ranks), json.dumps(cases), env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    reported: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return reported


@contextmanager
def second_rank(uri: str, **how: Any) -> Iterator[Any]:
    """Be rank 0 of a group of two; rank 1 is a process that loads once."""
    with tempfile.TemporaryDirectory() as folder:
        program = (
            "import sys, json, streamer, torch.distributed as dist\n"
            "dist.init_process_group('gloo', rank=1, world_size=2, store=dist.FileStore(sys.argv[1], 2))\n"
            "streamer.load(sys.argv[2], group=dist.group.WORLD, **json.loads(sys.argv[3]))\n"
        )
        other = warm_python.started(program, f"{folder}/store", uri, json.dumps(how), output=folder)
        try:
            dist.init_process_group("gloo", rank=0, world_size=2, store=dist.FileStore(f"{folder}/store", 2))
            yield dist.group.WORLD
        finally:
            other.join(60)
            dist.destroy_process_group()


def values(reported: list[dict[str, Any]]) -> list[Any]:
    assert all(each is not None and "value" in each for each in reported), reported
    return [each["value"] for each in reported]


def main() -> None:
    import group_cases
    import group_failures

    assert group_cases.CASES
    assert group_failures.CASES
    assert all((streamer.load, streamer.load_into, streamer.stream))  # imported here, and not once in each rank
    ranks, cases = int(sys.argv[1]), json.loads(sys.argv[2])
    print(json.dumps([told_by(name, arguments, ranks) for name, arguments in cases]))


if __name__ == "__main__":
    main()
