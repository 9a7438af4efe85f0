"""Run one contestant once, in this fresh process, and print one JSON line.

    python run_one.py NAME < target.json

Guarantees: only the load is measured. Imports come first, and then memory is touched, before the clock starts; the
tensors are checked after the clock has stopped. A contestant that keeps the model keeps it until then. The exit status
is 3 if a library is missing, and 1 with a traceback after any other failure.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from typing import Any

from contestants import CONTESTANTS, Contestant, Target
from measure import MASK, Measurement, tensor_digest, touch_and_free

NOT_INSTALLED = 3


def _sum(named: Any) -> dict[str, int]:
    found = {"bytes": 0, "digest": 0, "tensors": 0}
    for name, tensor in named:
        size, value = tensor_digest(name, tensor)
        found["bytes"] += size
        found["digest"] = (found["digest"] + value) & MASK
        found["tensors"] += 1
    return found


def run(contestant: Contestant, target: Target, touch_bytes: int) -> dict[str, Any]:
    """Load once; return the figures, and the bytes and digest of the tensors."""
    touch_and_free(touch_bytes, huge_pages=contestant.huge_pages)
    with Measurement() as measured:
        loaded = contestant.run(target)
        # A stream's tensors are freed afterwards, so they are sampled while the clock runs: a few milliseconds in all.
        found = None if contestant.keeps else _sum(loaded)
    return (found or _sum(loaded)) | measured.to_dict()


def main() -> None:
    request = json.load(sys.stdin)
    contestant = CONTESTANTS[sys.argv[1]]
    try:
        contestant.import_all()
        for module in request.get("imports", []):
            importlib.import_module(module)
    except ImportError:
        traceback.print_exc()
        sys.exit(NOT_INSTALLED)
    figures = run(contestant, Target(**request["target"]), request["touch_bytes"])
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
