"""Compares the model of a fleet with measurements, for ``fleet_model.py --compare``.

Two parameters of the machine come from the measurement with the fewest nodes: `Machine`. All else is what the product
does and what the store was told, so the other cases are predictions.

Guarantees: no case gives a parameter by which its own seconds are predicted, but for the one that the table marks.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from pathlib import Path
from typing import Any

from modelled_fleet import WORKERS, Fleet, outcome_of

MOST_OFF = 0.15  # a model that differs more from a measurement explains it no more
DRAWS = 5  # runs of the model with different seeds: chance decides which node reads which block
# As in core/peers/guide.py: the part of a load that all nodes together read from the store to measure its speed. If the
# store is much slower than the peers, they read only the first bytes.
PROBED, FIRST_PROBED_BYTES, MUCH_SLOWER = 1 / 32, 4 << 20, 4
Measured = dict[str, Any]  # what bench_fleet.py writes


@dataclass(frozen=True)
class Machine:
    """The parameters of a machine that all nodes share. They come from the measurement with the fewest nodes."""

    together: float  # bytes per second of all transfers, so that "one more node" takes as long as it did
    start_s: float  # from the headers of the cold fleet: nodes of one machine start as if one after another


@dataclass(frozen=True)
class Compared:
    """One case, measured and modelled. Store bytes are in copies of the checkpoint, of the nodes that are left."""

    nodes: int
    case: str
    calibrates: bool  # its seconds gave a parameter, so they say nothing about the model
    seconds: float
    model_s: float
    store: float
    model_store: float
    run_share: float  # of the checkpoint: one run, the least that a node reads

    @property
    def seconds_off(self) -> float:
        """Return by which part of the measured seconds the model differs."""
        return self.model_s / self.seconds - 1

    @property
    def store_off(self) -> float:
        """Return by which part of the measured store bytes the model differs; less than one run is no difference."""
        apart = self.model_store - self.store
        return apart / self.store if abs(apart) > self.run_share else 0.0

    @property
    def is_off(self) -> bool:
        """Whether the model must not be trusted here."""
        return abs(self.store_off) > MOST_OFF or (not self.calibrates and abs(self.seconds_off) > MOST_OFF)


def median_of(measured: Measured, case: str, name: str) -> float:
    """Return the median over all rounds of `bench_fleet.py`."""
    return float(statistics.median(each[case][name] for each in measured["rounds"]))


def run_bytes_of(size_bytes: float) -> float:
    """Return the neighbouring bytes that a node reads together: `LoadGuide._run_of`."""
    return max(1 << 20, min(4 << 20, size_bytes / 64), size_bytes / 1024)


def fleet_of(measured: Measured, case: str, machine: Machine) -> tuple[Fleet, str]:
    """Return the fleet of a measured case, and its way."""
    about = measured["arguments"]
    size_bytes, nodes = about["mb"] * 1e6, about["nodes"]
    run_bytes, store = run_bytes_of(size_bytes), about["store_mb_per_s"] * 1e6 or inf
    is_slow = MUCH_SLOWER * store < machine.together
    probed = FIRST_PROBED_BYTES / size_bytes if is_slow else PROBED
    fleet = Fleet(
        nodes=nodes,
        size_bytes=size_bytes,
        blocks=max(1, round(WORKERS * size_bytes / run_bytes)),  # all workers of a node read one run
        readers=1,
        connection=inf,
        store=store,
        network=inf,
        together=machine.together,
        latency_s=about["latency_us"] / 1e6,
        start_s=machine.start_s * nodes,
        is_side_by_side=True,  # as streamer does; if it were False, no other node had the part of the node that is lost
        probed=probed / nodes,
        lease_s=Fleet.asking_s,  # the port of a killed process refuses: the next question shows it
    )
    one = replace(fleet, start_s=machine.start_s, probed=probed)
    return {
        "everyone reads": (fleet, "everyone"),
        "cold fleet": (fleet, "peers"),
        "one more node": (replace(one, nodes=nodes + 1, warm_nodes=nodes), "peers"),
        "one node alone": (replace(one, nodes=1), "once per node"),
        "one killed": (replace(fleet, lost_nodes=1, lost_after_s=about.get("killed_after_s", inf)), "peers"),
    }[case]


def modelled(measured: Measured, case: str, machine: Machine) -> tuple[float, float]:
    """Return the seconds and the copies from the store: medians, because a model draws who reads what."""
    fleet, way = fleet_of(measured, case, machine)
    found = [outcome_of(fleet, way, seed) for seed in range(DRAWS)]
    store_bytes = statistics.median(each.received_from_store for each in found)
    return statistics.median(each.seconds for each in found), store_bytes / fleet.size_bytes


def machine_of(measured: Measured) -> Machine:
    """Return the parameters by which "one more node" takes as long as it did: by bisection."""
    start_s = median_of(measured, "cold fleet", "headers_s") / measured["arguments"]["nodes"]
    seconds, slow, fast = median_of(measured, "one more node", "seconds"), 1e6, 1e11
    while fast / slow > 1.01:
        middle = sqrt(slow * fast)
        is_slow = modelled(measured, "one more node", Machine(middle, start_s))[0] > seconds
        slow, fast = (middle, fast) if is_slow else (slow, middle)
    return Machine(fast, start_s)


def compared(results: Sequence[Measured]) -> tuple[Machine, list[Compared]]:
    """Take the parameters from the result with the fewest nodes, and predict all cases of all results."""
    first, *_ = ordered = sorted(results, key=lambda each: each["arguments"]["nodes"])
    machine, rows = machine_of(first), []
    for measured in ordered:
        nodes, size_bytes = measured["arguments"]["nodes"], measured["arguments"]["mb"] * 1e6
        run_share = run_bytes_of(size_bytes) / size_bytes
        for case in measured["rounds"][0]:
            seconds, store = (median_of(measured, case, name) for name in ("seconds", "store"))
            model_s, model_store = modelled(measured, case, machine)
            calibrates = measured is first and case == "one more node"
            rows.append(Compared(nodes, case, calibrates, seconds, model_s, store, model_store, run_share))
    return machine, rows


def others_share(results: Sequence[Measured]) -> float:
    """Return which part of the processors other programs used: the store, digests, and what disturbs."""
    used_s, all_s = 0.0, 0.0
    for measured in results:
        for case in (case for each in measured["rounds"] for case in each.values()):
            used_s += case["machine_busy_s"] - case["cpu_s"]
            all_s += case["seconds"] * measured["arguments"]["processors"]
    return used_s / all_s


def comparison_text(machine: Machine, rows: Sequence[Compared]) -> str:
    """Return the comparison as a table of Markdown."""
    lines = [
        f"Parameters of the machine: {machine.together / 1e6:.0f} MB/s for all transfers together, "
        f"{machine.start_s:.3f} s to start a node.",
        "",
        "| nodes | measured | seconds | model | off by | from the store: copies | model | off by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seconds_off = "calibrates" if row.calibrates else f"{row.seconds_off:+.0%}"
        store_off = f"{row.store_off:+.0%}" if row.store_off else "less than a run"
        seconds = f"{row.seconds:.2f} | {row.model_s:.2f} | {seconds_off}"
        store = f"{row.store:.3f} | {row.model_store:.3f} | {store_off}"
        lines.append(f"| {row.nodes} | {row.case} | {seconds} | {store} |")
    off = sum(row.is_off for row in rows)
    return "\n".join([*lines, "", f"{off} of {len(rows)} cases are off by more than {MOST_OFF:.0%}."])


def is_as_measured(paths: Sequence[Path]) -> bool:
    """Print the comparison; return whether every case is as the model predicts."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    machine, rows = compared(results)
    print(comparison_text(machine, rows))
    print(f"Other programs, the store included, used {others_share(results):.0%} of the processors meanwhile.")
    return not any(row.is_off for row in rows)
