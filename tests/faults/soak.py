"""Many loads through the fault server: each ends bit-equal, or with the class its fault calls for, and leaves nothing.

    cd tests && python -m faults.soak --loads 2000 --threads 4 --seed 7
    cd tests && python -m faults.soak --loads 200 --threads 2 --nodes 3      # nodes that are peers, most of them broken

Most loads meet several faults that pass; one in ten meets one that stays; one in six meets, in its middle, an outage of
the whole server. Which, a seed decides. The summary, also as ``--json``, is what ``docs/reliability.md`` shows.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch
from make_checkpoint import make_checkpoint
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from faults.catalogue import FAULTS, Fault
from faults.outages import OUTAGES, Planned, Scene
from faults.server import Asked, FaultServer

AUDIBLE = [fault for fault in FAULTS.values() if not fault.is_silent]
PASSING = [fault for fault in AUDIBLE if not fault.is_lasting]
STAYING = [fault for fault in AUDIBLE if fault.ends and fault.name not in ("stall", "silence")]  # slow to end
RATE = 0.08  # of requests: a load makes some sixty
STAYING_SHARE = 0.1  # of loads
OUTAGES_DRAWN = ("gone", "reset_wave", "throttle_wave")  # short ones of servers that need not be started again
OUTAGE_SHARE = 1 / 6  # of loads
OUTAGE_S = (0.2, 1.0)
# Small blocks: a load asks often. Short time-outs: a stall costs little; long enough for a server in Python that
# shares two processors with eight loads.
BLOCK_BYTES = 64 << 10
OPTIONS = streamer.Options(
    block_bytes=BLOCK_BYTES, header_bytes=4096, first_byte_timeout_s=8, stall_timeout_s=5, http_reactors=1
)

PATIENCE_S = 60.0  # how long a server is waited for
SHORT_PATIENCE_S = 4.0  # where it is known to stay away

Loaded = dict[str, torch.Tensor]
# Loads (url, storage_options); a rival may not know of the patience.
Load = Callable[[str, dict[str, Any], float], Loaded]


@dataclass
class Tally:
    """What became of the loads.

    Attributes:
        equal: Ended with every tensor equal.
        expected_errors: Met a fault that stays, and ended with the class that a fault it met calls for.
        wrong: Ended well with a wrong or missing tensor: the one thing that must never happen.
        other_errors: Failed though they should not have, or with another class; by name.
        faults: How often each fault was made.
        outages: How many of each began.
        requests: GETs of object bytes.
    """

    equal: int = 0
    expected_errors: int = 0
    wrong: int = 0
    other_errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    outages: Counter[str] = field(default_factory=Counter)
    requests: int = 0


class Soak:
    """Runs loads over several threads, each against a fault server of its own.

    Args:
        folder: A folder ``bucket`` with the checkpoint in ``model``.
        load: Loads ``(url, storage_options)``; this project's unless a rival is compared.
        outage_share: How many of the loads meet an outage.
    """

    def __init__(self, folder: Path, load: Load, outage_share: float = OUTAGE_SHARE) -> None:
        self._folder, self._load, self._outage_share = folder, load, outage_share
        self._total_bytes = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
        self._expected = streamer.load(folder / "model", progress=False)
        self._lock = threading.Lock()
        self.tally = Tally()

    def run(self, loads: int, threads: int, seed: int, on_done: Callable[[], None] = lambda: None) -> Tally:
        """Run `loads` loads and return what became of them."""

        def one(number: int) -> None:
            self._run_one(random.Random(f"{seed}-{number}"))
            on_done()

        with ThreadPoolExecutor(threads, thread_name_prefix="soak") as pool:
            list(pool.map(one, range(loads)))
        return self.tally

    def _run_one(self, drawn: random.Random) -> None:
        staying = drawn.choice(STAYING) if drawn.random() < STAYING_SHARE else None
        after = drawn.randrange(20)
        outage = drawn.choice(OUTAGES_DRAWN) if drawn.random() < self._outage_share else None
        at_bytes, lasts_s = int(drawn.uniform(0.1, 0.9) * self._total_bytes), drawn.uniform(*OUTAGE_S)
        answered_wrongly: set[tuple[str, int]] = set()

        def script(asked: Asked) -> Fault | None:
            if staying is not None and asked.number >= after:
                return staying
            fault = drawn.choice(PASSING) if drawn.random() < RATE else None
            if fault is not None and fault.ends == "RangeResponseError":
                block = (asked.path, asked.begin // BLOCK_BYTES)
                if block in answered_wrongly:  # twice is what such a server does: the load would rightly fail
                    return None
                answered_wrongly.add(block)
            return fault

        with FaultServer(self._folder, script) as server:
            if outage is None:
                outcome = self._outcome(server, server.port, staying)
            else:
                with (
                    TcpProxy(server.port, http_requests) as proxy,
                    Planned(outage, Scene(proxy), at_bytes, lasts_s) as met,
                ):
                    outcome = self._outcome(server, proxy.port, staying, met)
        with self._lock:
            self.tally.outages.update([outage] if outage and met.began.is_set() else [])
            self.tally.requests += server.requests
            self.tally.faults += server.faults
            if outcome in ("equal", "expected_errors", "wrong"):
                setattr(self.tally, outcome, getattr(self.tally, outcome) + 1)
            else:
                self.tally.other_errors[outcome] += 1

    def _outcome(self, server: FaultServer, port: int, staying: Fault | None, outage: Planned | None = None) -> str:
        try:
            patience_s = PATIENCE_S if staying is None else SHORT_PATIENCE_S
            loaded = self._load(server.url("model"), server.storage_options(port), patience_s)
        except Exception as error:
            # Of the class of a fault it met: the last straw may be one from before the staying one began; or a stall,
            # since a machine short of processors answers late by itself.
            met = {FAULTS[name].ends for name in server.faults} | {"TransferTimeoutError"}
            if outage is not None and outage.began.is_set():
                met.add(OUTAGES[outage.name].ends)
            is_expected = staying is not None and type(error).__name__ in met
            reported = f"{error!r} (staying: {staying and staying.name}, outage: {outage and outage.name})"
            return "expected_errors" if is_expected else reported
        return "equal" if is_equal(loaded, self._expected) else "wrong"


def is_equal(loaded: Loaded, expected: Loaded) -> bool:
    """Tell whether every tensor is there and right."""
    return loaded.keys() == expected.keys() and all(torch.equal(loaded[name], expected[name]) for name in expected)


def load_ours(url: str, storage_options: dict[str, Any], patience_s: float = PATIENCE_S) -> Loaded:
    """Load with this project."""
    options = replace(OPTIONS, block_deadline_s=patience_s)
    return streamer.load(url, storage_options=storage_options, options=options, progress=False)


def made_bucket(parent: Path) -> Path:
    """Make the folder that is served: a checkpoint of 3 MiB in three shards."""
    make_checkpoint(parent / "bucket" / "model", total_bytes=3 << 20, shards=3)
    return parent / "bucket"


def open_descriptors() -> int:
    """Count the file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


@click.command()
@click.option("--loads", default=500, show_default=True)
@click.option("--threads", default=4, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--nodes", default=1, show_default=True, help="Load on so many nodes that are peers (faults/fleet.py).")
@click.option("--json", "as_json", is_flag=True, help="Print the tally as JSON.")
def main(loads: int, threads: int, seed: int, nodes: int, as_json: bool) -> None:
    """Load through faults, and count how the loads end."""
    from tqdm import tqdm

    from faults.fleet import BrokenPeer, Fleet, broken_peers

    fleet = Fleet(nodes, seed)
    load, peers = (fleet.load, broken_peers()) if nodes > 1 else (load_ours, nullcontext())
    with peers, tempfile.TemporaryDirectory() as folder, tqdm(total=loads, unit="load") as bar:
        tally = Soak(made_bucket(Path(folder)), load).run(loads, threads, seed, bar.update)
    if as_json:
        click.echo(json.dumps(vars(tally)))  # asdict makes a Counter of pairs
    else:
        click.echo(
            f"{tally.equal} equal, {tally.expected_errors} with the right error, {tally.wrong} wrong, ", nl=False
        )
        click.echo(f"{sum(tally.other_errors.values())} with another error {dict(tally.other_errors)}")
        click.echo(f"{tally.requests} requests, {sum(tally.faults.values())} faults: {dict(tally.faults)}")
        click.echo(f"{sum(tally.outages.values())} outages: {dict(tally.outages)}")
        if nodes > 1:
            click.echo(f"{fleet.peer_bytes >> 20} MiB of peers, with troubles: {dict(BrokenPeer.troubles)}")
    sys.exit(bool(tally.wrong or tally.other_errors))


if __name__ == "__main__":
    main(prog_name="python -m faults.soak")
