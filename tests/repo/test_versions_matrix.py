"""`make test-versions` finds interpreters, and its table tells what failed and what this machine could not try."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from versions.__main__ import table, tried
from versions.cells import Cell, cells
from versions.environments import find_python

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_each_python_has_its_oldest_and_its_newest_libraries() -> None:
    names = [cell.name for cell in cells()]
    ages = [f"{age}-{kind}" for age in ("lowest", "highest") for kind in ("storages", "hosts")]
    assert {f"3.{minor}-{age}" for minor in range(10, 15) for age in ages} == set(names)


def test_the_running_python_is_found() -> None:
    assert find_python(HERE) is not None


def test_an_absent_python_is_an_error() -> None:
    row = {"cell": "3.99-lowest-storages", **tried(Cell("3.99", "lowest"), None, "{}", keep=False)}
    assert row["result"] == "SKIPPED"
    assert "THIS MACHINE HAS NO PYTHON 3.99" in table([row])
    assert table([row]).endswith("0 passed, 0 failed, 1 skipped")


def test_a_failed_place_is_reported_with_its_reason() -> None:
    rows = [
        {"cell": "a", "result": "passed", "why": "", "versions": {"torch": "2.4.0"}, "places": {"s3": None}},
        {"cell": "b", "result": "FAILED", "why": "AttributeError", "places": {"s3": "AttributeError"}},
    ]
    drawn = table(rows)
    assert "AttributeError" in drawn
    assert drawn.endswith("1 passed, 1 failed, 0 skipped")


def test_the_log_of_a_load_by_a_host_is_reported() -> None:
    rows = [
        {"cell": "a", "result": "passed", "why": "", "places": {"transformers http": None}, "lines": ["does not fit"]},
        {"cell": "b", "result": "passed", "why": "", "places": {"s3": None}},
    ]
    drawn = table(rows).splitlines()
    assert "a logged: does not fit" in drawn
    assert [line.split() for line in drawn if line.startswith("environment")] == [
        ["environment", "transformers", "http", "result"],
        ["environment", "s3", "result"],
    ]


# --- what the timeline of a load adds up: busy time, gaps, and the calls that took longest --------------------------

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
