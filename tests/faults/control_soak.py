"""Many loads whose server mutates what it says of objects: each ends equal, or with an error of the tree.

    cd tests && PYTHONPATH=../examples python -m faults.control_soak --loads 500 --seed 7

The servers are real ones; a proxy before them mutates listings, sizes, places and refusals (`faults.mutations`), and
leaves alone the bytes of objects, which `faults.soak` is about.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
from make_checkpoint import make_checkpoint

import streamer
from faults.mutating_proxy import MutatingProxy
from faults.soak import Loaded, is_equal
from faults.storages import STORAGES, Storage

KINDS = ("http", "s3", "gs", "az", "hub")
TOTAL_BYTES = 200_000
MUTATED = 0.4  # of the answers about objects; a load has three to ten
OPTIONS = streamer.Options(block_deadline_s=0.2, deadline_s=20)
TOO_LONG_S = 30.0

__all__ = ["KINDS", "ControlSoak", "ControlTally"]


@dataclass
class ControlTally:
    """What became of the loads.

    Attributes:
        equal: Ended with every tensor equal.
        errors: Ended with an error of the tree; by class.
        bad: Number of results that must never happen (another exception, wrong tensors, a load without end), by
            description.
        mutations: How often each was made.
    """

    equal: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)


class ControlSoak:
    """Loads one checkpoint again and again from one server.

    Args:
        storage: With the checkpoint.
        expected: Its tensors.
    """

    def __init__(self, storage: Storage, expected: Loaded) -> None:
        self._storage, self._expected = storage, expected
        self.tally = ControlTally()

    def run(self, loads: int, seed: str) -> ControlTally:
        """Load so often, each time with other mutations."""
        for number in range(loads):
            drawn = random.Random(f"{seed}-{number}")
            with MutatingProxy(self._storage.port, drawn, MUTATED) as proxy:
                began = time.monotonic()
                outcome = self._outcome(proxy.port, drawn.choice(["off", "auto"]))
                took_s = time.monotonic() - began
            self.tally.mutations += proxy.mutations
            if took_s > TOO_LONG_S:
                outcome = f"{outcome} after {took_s:.0f} s"
            if outcome == "equal":
                self.tally.equal += 1
            elif outcome in dir(streamer):
                self.tally.errors[outcome] += 1
            else:
                self.tally.bad[f"{seed}-{number}: {outcome}, {dict(proxy.mutations)}"] += 1
        return self.tally

    def _outcome(self, port: int, verify: str) -> str:
        try:
            loaded = streamer.load(
                self._storage.url(port),
                storage_options=self._storage.options(port),
                options=OPTIONS,
                verify=verify,
                progress=False,
            )
        except streamer.StreamerError as error:
            if any(not (character.isprintable() or character == "\n") for character in str(error)):
                return f"{error!r} shows control characters"
            return type(error).__name__
        except Exception as error:
            return f"{error!r} is not of the tree"
        return "equal" if is_equal(loaded, self._expected) else "wrong tensors"


@click.command()
@click.option("--loads", default=200, show_default=True, help="Per kind of server.")
@click.option("--seed", default=0, show_default=True)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, default=KINDS, help="May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the tallies as JSON.")
def main(loads: int, seed: int, kinds: tuple[str, ...], as_json: bool) -> None:
    """Load from servers that say strange things about their objects, and count how the loads end."""
    tallies: dict[str, ControlTally] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = Path(folder) / "bucket" / "model"
        make_checkpoint(model, total_bytes=TOTAL_BYTES, shards=2)
        expected = streamer.load(model, progress=False)
        for kind in kinds:
            storage = stack.enter_context(STORAGES[kind](model))
            tallies[kind] = ControlSoak(storage, expected).run(loads, f"{seed}-{kind}")
            if not as_json:
                tally = tallies[kind]
                click.echo(f"{kind}: {tally.equal} equal, {sum(tally.errors.values())} errors {dict(tally.errors)}")
                for bad in tally.bad:
                    click.echo(f"  BAD {bad}")
    if as_json:
        click.echo(json.dumps({kind: vars(tally) for kind, tally in tallies.items()}))
    sys.exit(any(tally.bad for tally in tallies.values()))


if __name__ == "__main__":
    main(prog_name="python -m faults.control_soak")
