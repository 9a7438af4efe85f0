"""Load the same files several times after a line arrives on the standard input; a command for `flame_graph.py`.

    python benchmarks/load_again.py TIMES file-warm|http|https [BYTES]

The first load happens before the line ``ready`` is printed, so no import is recorded. Memory is touched before it.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from bench_load import HERE, targets
from checkpoint import make_or_reuse
from contestants import streamer_load
from measure import bring_into_page_cache, touch_and_free
from nginx_origin import NginxOrigin


def main() -> None:
    times, section = int(sys.argv[1]), sys.argv[2]
    size_bytes = int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 30
    folder = (HERE.parent / ".bench" / f"model-{size_bytes}").resolve()
    shards = make_or_reuse(folder, size_bytes, 4)
    bring_into_page_cache(shards)
    with ExitStack() as stack:
        origin = stack.enter_context(NginxOrigin(folder.parent)) if section.startswith("http") else None
        target = targets(section, shards, origin)
        os.environ.update(target.environment())
        streamer_load(target)
        touch_and_free(int(size_bytes * 1.2), huge_pages=True)
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(times):
            streamer_load(target)
    os._exit(0)  # the interpreter's shutdown would be a sixth of the picture


if __name__ == "__main__":
    main()
