"""Compare the settings that this project chooses for a server with fixed settings, at five kinds of server.

    python benchmarks/bench_tuning.py [--rounds 3] [--bytes N] [--servers near,store,far,stragglers,capped]
                                      [--only REGEX] [--json FILE]

Guarantees: as `bench_load.py`. The fixed settings are options of this project and of the raw reader, which uses only
libcurl. ``8x8`` means 8 requests of 8 MiB in flight in each of two event loops. The goal is 0.95 of the best fixed
setting.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench_load import HERE, Session
from checkpoint import make_or_reuse
from contestants import CONTESTANTS, Contestant, Target
from nginx_origin import NginxOrigin
from paced_origin import Pace, PacedOrigin
from raw_programs import http_reader
from report import Row, is_measured, table

REACTORS = 2
IN_FLIGHT = (4, 8, 16, 32, 64)  # in each event loop
BLOCK_MIB = (1, 2, 4, 8)
PACES = {
    "store": Pace(),
    "far": Pace(latency_us=100_000, connect_us=100_000, connection_bytes=20_000_000),
    "stragglers": Pace(slow_per_mille=10),
    "capped": Pace(total_bytes=1_000_000_000),
}
SERVERS = ("near", *PACES)


def _fixed(in_flight: int, mib: int) -> Contestant:
    automatic = CONTESTANTS["streamer load"]
    environment = {
        "STREAMER_HTTP_REACTORS": str(REACTORS),
        "STREAMER_HTTP_IN_FLIGHT": str(in_flight),
        "STREAMER_BLOCK_BYTES": str(mib << 20),
    }
    name = f"fixed {in_flight}x{mib}"
    return Contestant(name, automatic.run, automatic.imports, ("http",), environment, listed_as=automatic.name)


def _raw(in_flight: int, mib: int) -> Any:
    numbers = {"--reactors": REACTORS, "--in-flight": in_flight, "--block": mib << 20}
    return http_reader(f"raw {in_flight}x{mib}", *[str(word) for pair in numbers.items() for word in pair])


def candidates() -> list[Any]:
    """List all rows: the automatic setting, all fixed settings, the raw reader, and Run:ai."""
    settings = [(in_flight, mib) for in_flight in IN_FLIGHT for mib in BLOCK_MIB]
    runai = [each for name, each in CONTESTANTS.items() if name.startswith("runai s3")]
    return [
        CONTESTANTS["streamer load"],
        *(_fixed(*each) for each in settings),
        *(_raw(*each) for each in settings),
        *runai,
    ]


def origin_of(server: str, root: Path) -> AbstractContextManager[NginxOrigin | PacedOrigin]:
    """Create the server of this name."""
    return PacedOrigin(root, PACES[server]) if server in PACES else NginxOrigin(root)


def verdict(server: str, rows: list[Row]) -> str:
    """Return how the automatic setting compares with the best other rows, by medians and by best runs."""
    ours = next((row for row in rows if row.name == "streamer load" and is_measured(row)), None)
    lines = []
    for kind, wanted in (("fixed", 0.95), ("raw", 0.9), ("runai", 1.7)):
        others = [row for row in rows if row.name.startswith(kind) and is_measured(row)]
        if ours is None or not others:
            continue
        other = max(others, key=lambda row: row.median)
        best = max(row.best for row in others)
        state = "met   " if ours.median >= wanted * other.median else "missed"
        ratio = f"{ours.median / other.median:.2f} ({ours.best / best:.2f})"
        lines.append(f"  {state} {server}: at least {wanted} of {other.name}: {ratio}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=2 << 30, help="size of the checkpoint (default 2 GiB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--servers", default=",".join(SERVERS), help="comma-separated, of: " + ", ".join(SERVERS))
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="contestants to run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run's figures here")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # raises, so that servers and children end
    folder = HERE.parent / ".bench" / f"model-{arguments.bytes}"
    shards = make_or_reuse(folder.resolve(), arguments.bytes, 4)
    session = Session(shards, arguments.rounds, [each for each in candidates() if arguments.only.search(each.name)])
    for server in arguments.servers.split(","):
        with origin_of(server, folder.resolve().parent) as origin:
            paths = [f"s3://{path.parent.name}/{path.name}" for path in shards]
            rows = session.run_section(server, "http", Target(paths, origin.http_url))
        print(table(f"{server}, {sum(path.stat().st_size for path in shards) / 1e9:.2f} GB", rows), flush=True)
        print(verdict(server, rows), flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({name: [vars(row) for row in rows] for name, rows in session.sections.items()})
        )


if __name__ == "__main__":
    main()
