"""The model of a fleet is compared with measurements that did not give its parameters."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

with pytest.MonkeyPatch.context() as paths:
    paths.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    MODEL, COMPARISON = map(importlib.import_module, ("fleet_model", "fleet_comparison"))
MACHINE = COMPARISON.Machine(together=3e8, start_s=0.05)


@pytest.fixture(scope="module")
def measured() -> dict[int, Any]:
    """What `bench_fleet.py` would write, by number of nodes, on a machine that is as the model says."""
    about = {"mb": 200, "store_mb_per_s": 50, "latency_us": 5000, "killed_after_s": 2.0, "processors": 2}
    results: dict[int, Any] = {nodes: {"arguments": {**about, "nodes": nodes}, "rounds": [{}]} for nodes in (4, 8)}
    for nodes, result in results.items():
        for case in ("everyone reads", "cold fleet", "one more node", "one node alone", "one killed"):
            seconds, store = COMPARISON.modelled(result, case, MACHINE)
            used = {"cpu_s": seconds, "machine_busy_s": 1.5 * seconds}
            waited = {"seconds": seconds, "headers_s": nodes * MACHINE.start_s}
            result["rounds"][0][case] = {**waited, **used, "store": store}
    return results


def compare(monkeypatch: pytest.MonkeyPatch, folder: Path, *results: dict[str, Any]) -> Any:
    paths = [folder / f"{number}.json" for number in range(len(results))]
    for path, result in zip(paths, results, strict=True):
        path.write_text(json.dumps(result))
    monkeypatch.setattr(sys, "argv", ["fleet_model.py", "--compare", *map(str, paths)])
    with pytest.raises(SystemExit) as exited:
        MODEL.main()
    return exited.value.code


def test_parameters_of_the_machine_are_found_again_in_the_smallest_fleet(measured: dict[int, Any]) -> None:
    found, rows = COMPARISON.compared([measured[8], measured[4]])
    assert (found.together, found.start_s) == (pytest.approx(MACHINE.together, rel=0.02), pytest.approx(0.05))
    assert [(row.nodes, row.case) for row in rows if row.calibrates] == [(4, "one more node")]
    assert all(abs(row.seconds_off) < 0.03 for row in rows)


@pytest.mark.parametrize("figure", ["seconds", "store", None])
def test_a_case_that_differs_by_more_than_15_percent_fails(
    figure: str | None,
    measured: dict[int, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    eight = copy.deepcopy(measured[8])
    if figure is not None:
        eight["rounds"][0]["cold fleet"][figure] *= 1.3
    assert compare(monkeypatch, tmp_path, measured[4], eight) == (figure is not None)
    printed = capsys.readouterr().out
    assert f"{int(figure is not None)} of 10 cases" in printed
    assert figure == "seconds" or "used 25% of the processors" in printed
