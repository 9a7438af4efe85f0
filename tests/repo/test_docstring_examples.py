"""The examples of docstrings give what they say; those that name a storage of somebody's are skipped."""

from __future__ import annotations

import doctest
from importlib import import_module

import house
from each_row import each_row

import streamer

MODULES = sorted(
    module if module.partition(".")[0] == "streamer" else f"streamer.{module}"
    for module, path in house.python_files().items()
    if any(">>> " in line and "+SKIP" not in line for line in path.read_text().splitlines())
)


@each_row("module", MODULES)
def test_the_examples_of_a_module_give_what_they_say(module: str) -> None:
    results = doctest.testmod(import_module(module), extraglobs={"streamer": streamer}, optionflags=doctest.ELLIPSIS)
    assert results.attempted
    assert not results.failed
