"""Fuzz one Python parser: ``cd tests && python -m fuzzing header -max_total_time=60`` (libFuzzer's own options)."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FunctionType

import atheris

from fuzzing.targets import TARGETS

INSTRUMENTED = ("streamer", "json")  # packages; all that is imported, as instrument_all takes it, takes a minute

# Not instrument_imports: it cannot see through the hook of an editable install.
for function in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
    if (function.__module__ or "").partition(".")[0] in INSTRUMENTED:
        atheris.instrument_func(function)
name = sys.argv[1]
corpus = Path(__file__).parent / "corpus" / name
# New inputs go to the first folder, which is not in the repository; the second is only read.
found = Path("../build/fuzz") / name
found.mkdir(parents=True, exist_ok=True)
atheris.Setup([sys.argv[0], *sys.argv[2:], str(found), str(corpus)], TARGETS[name])
atheris.Fuzz()
