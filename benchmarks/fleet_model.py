"""A model of a fleet that loads one checkpoint: the seconds until each node has it, and the bytes that leave the store.

    python benchmarks/fleet_model.py                                            # the table
    python benchmarks/fleet_model.py --json benchmarks/results/fleet_model.json # what docs/pictures.py draws
    python benchmarks/fleet_model.py --compare four.json eight.json             # with what bench_fleet.py has measured

`modelled_fleet.py` is the model; here are the fleets that docs/scale.md shows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from fleet_comparison import is_as_measured
from modelled_fleet import WAYS, Fleet, Outcome, outcome_of

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


def cases(fleet: Fleet) -> dict[str, Fleet]:
    """Return a fleet, and what may happen to it, by names for the page."""
    return {
        "as above": fleet,
        "all but one have it before": replace(fleet, warm_nodes=fleet.nodes - 1),
        "one node lost after 3 s": replace(fleet, lost_nodes=1, lost_after_s=3),
        "ten nodes lost after 3 s": replace(fleet, lost_nodes=10, lost_after_s=3),
        "ten nodes with a tenth of the network": replace(fleet, slow_nodes=10),
        "two zones": replace(fleet, zones=2),
        "two zones, 25 Gbit/s between them": replace(fleet, zones=2, between_zones=3.1e9),
        "nodes give half of their network": replace(fleet, serving=fleet.network / 2),
        "nodes with 25 Gbit/s": replace(fleet, network=3.1e9),
        "a store of 2.5 GB/s, or one address for all": replace(fleet, store=2.5e9),
    }


def case_rows(fleet: Fleet) -> list[dict[str, Any]]:
    """Run each case for one number of nodes."""
    rows = []
    for name, each in cases(fleet).items():
        once, peers = outcome_of(each, "once per node"), outcome_of(each, "peers")
        seconds = {"once_s": once.seconds, "half_s": peers.median_s, "last_s": peers.seconds}
        shares = {"store": peers.store_bytes / each.size_bytes, "between": peers.between_zones_bytes / each.size_bytes}
        rows.append({"name": name, **{key: round(value, 3) for key, value in {**seconds, **shares}.items()}})
    return rows


def result_of(drawn: dict[str, list[tuple[int, Outcome]]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what `docs/pictures.py` draws."""

    def section(label: str, value: Callable[[Outcome], float]) -> dict[str, Any]:
        points = {way: [(count, round(value(each), 3)) for count, each in found] for way, found in drawn.items()}
        named = [{"name": way, "points": each} for way, each in points.items()]
        about = {"label": label, "title": label, "command": "python benchmarks/fleet_model.py", "rounds": 1}
        return {**about, "curves": named}

    return {
        "title": "A model: nodes that load 140 GB at once",
        "unit": "seconds and TB",
        "machine": "none: a model, by simpy",
        "date": date.today().isoformat(),
        "sections": [
            section("seconds until the last node has it", lambda each: each.seconds),
            section("TB that leave the store", lambda each: each.store_bytes / 1e12),
        ],
        "cases": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--compare", type=Path, nargs="+", metavar="RESULTS", help="what bench_fleet.py --json wrote")
    arguments = parser.parse_args()
    if arguments.compare:
        sys.exit(not is_as_measured(arguments.compare))
    drawn = {way: [(count, outcome_of(Fleet(nodes=count), way)) for count in NODES] for way in WAYS}
    result = result_of(drawn, case_rows(Fleet(nodes=100)))
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
