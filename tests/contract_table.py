"""Prints, after the tests, which backend showed which behaviour of the contract."""

from __future__ import annotations

from collections import defaultdict

import pytest

MARKS = {"passed": "yes", "failed": "NO", "skipped": "-"}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    table: dict[str, dict[str, str]] = defaultdict(dict)
    for outcome, mark in MARKS.items():
        for report in terminalreporter.stats.get(outcome, []):
            parts = report.nodeid.split("::")
            if parts[0].startswith("tests/contract/") and len(parts) == 3:
                table[parts[1].removeprefix("Test")][parts[2].removeprefix("test_").replace("_", " ")] = mark
    if not table:
        return
    backends = sorted(table)
    behaviours = list(dict.fromkeys(name for row in table.values() for name in row))
    terminalreporter.section("backend contract (yes: shown, -: not applicable)")
    for number, name in enumerate(backends):
        terminalreporter.write_line(f"  {chr(ord('a') + number)}  {name}")
    letters = "".join(f"{chr(ord('a') + number):>4}" for number in range(len(backends)))
    width = max(len(name) for name in behaviours)
    terminalreporter.write_line(" " * width + letters)
    for behaviour in behaviours:
        cells = "".join(f"{table[name].get(behaviour, ''):>4}" for name in backends)
        terminalreporter.write_line(behaviour.ljust(width) + cells)
