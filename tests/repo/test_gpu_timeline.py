"""What the timeline of a load adds up: busy time, gaps, and the calls that took longest."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "gpu_timeline.py"


@pytest.fixture(scope="module")
def summary():
    spec = importlib.util.spec_from_file_location("gpu_timeline", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.summary


def test_gaps_are_where_no_copy_runs(summary):
    copies = [("copy", 10.0, 2.0), ("copy", 11.0, 3.0), ("copy", 20.0, 1.0), ("copy", 21.5, 1.0)]
    found = summary(copies, [("cudaMalloc", 15.0, 4.0), ("cudaMalloc", 1.0, 1.0)], 7_000_000)
    assert found["gaps_ms"] == [(14.0, 6.0)]
    assert (found["first_copy_ms"], found["last_copy_ms"], found["busy_ms"]) == (10.0, 22.5, 7.0)
    assert found["gb_per_s_while_busy"] == pytest.approx(1.0)
    assert found["calls_ms"] == {"cudaMalloc": 5.0}


def test_a_load_without_copies_has_no_figures(summary):
    assert summary([], [], 0)["gb_per_s_while_busy"] is None
