"""Fuzz one Python parser: ``cd tests && python -m fuzzing header -max_total_time=60`` (libFuzzer's own options)."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

from fuzzing.targets import TARGETS

atheris.instrument_all()  # not instrument_imports: it cannot see through the hook of an editable install
name = sys.argv[1]
corpus = Path(__file__).parent / "corpus" / name
# New inputs go to the first folder, which is not in the repository; the second is only read.
found = Path("../build/fuzz") / name
found.mkdir(parents=True, exist_ok=True)
atheris.Setup([sys.argv[0], *sys.argv[2:], str(found), str(corpus)], TARGETS[name])
atheris.Fuzz()
