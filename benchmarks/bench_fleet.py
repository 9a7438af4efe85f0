"""Time a fleet of processes with own caches and ports, beside as many that each read everything from the storage.

    python benchmarks/bench_fleet.py [--nodes 8] [--mb 400] [--store-mb-per-s 100] [--rounds 3] [--kill]

The store is `paced_server.cc` on loopback, capped for all connections together (0: no cap). Both kinds of fleet
alternate; each run has fresh processes that import before the clock starts, and empty caches in shared memory. After a
cold fleet, one more node joins its warm ones. ``--kill`` ends one node of the cold fleet in the middle. The tensors are
compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from checkpoint import make_or_reuse  # noqa: E402  its folder is no package
from paced_origin import Pace, PacedOrigin  # noqa: E402

TOKEN = "a-token-of-the-benchmark"


def child(url: str, cache: str, peers: str) -> None:
    """Load when a line comes, print the figures, and serve until the input ends."""
    import streamer
    from streamer.core.peers import guide, joining  # noqa: F401 (as a load with peers does)

    options = streamer.Options(cache_dir=cache, peers=peers.split(",")) if peers else streamer.Options()
    print(flush=True)
    sys.stdin.readline()
    with streamer.stream(url, framework="np", options=options, progress=False) as stream:
        tensors = dict(stream)
    ended = time.time()
    report = stream.report
    digest = 0
    for name in sorted(tensors):
        digest = zlib.crc32(tensors[name].reshape(-1).view("u1"), digest)
    figures = {"ended": ended, "store": report.bytes_read, "peers": sum(report.peer_bytes.values()), "digest": digest}
    print(json.dumps({**figures, "bytes": report.bytes, "log": str(report)}), flush=True)
    sys.stdin.read()


class Node:
    """A process of the fleet."""

    def __init__(self, url: str, cache: str = "", peers: str = "") -> None:
        command = [sys.executable, __file__, "--child", url, cache, peers]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "STREAMER_PEERS_TOKEN": TOKEN},
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()  # it has imported

    def go(self) -> None:
        """Let it load."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def figures(self) -> dict[str, Any]:
        """Wait for its load."""
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


def together(nodes: list[Node], killed_after_s: float | None = None) -> dict[str, float]:
    """Let all load at the same time."""
    began = time.time()
    for node in nodes:
        node.go()
    living = nodes
    if killed_after_s is not None:
        time.sleep(killed_after_s)
        nodes[0].close()
        living = nodes[1:]
    figures = [node.figures() for node in living]
    if len({each["digest"] for each in figures}) != 1:
        raise SystemExit("the tensors differ")
    size = figures[0]["bytes"]
    return {
        "seconds": max(each["ended"] for each in figures) - began,
        "store": sum(each["store"] for each in figures) / size,
        "peers": sum(each["peers"] for each in figures) / size,
    }


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def one_round(url: str, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Time each kind once."""
    caches = tempfile.mkdtemp(dir="/dev/shm")
    peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(arguments.nodes + 1))
    alone = [Node(url) for _ in range(arguments.nodes)]
    result = {"everyone reads": together(alone)}
    for node in alone:
        node.close()
    fleet = [Node(url, f"{caches}/{number}", peers) for number in range(arguments.nodes)]
    try:
        kill_s = result["everyone reads"]["seconds"] / arguments.nodes / 2 if arguments.kill else None
        result["cold fleet"] = together(fleet, kill_s)
        time.sleep(2)  # what they read is written
        fleet.append(Node(url, f"{caches}/more", peers))
        result["one more node"] = together(fleet[-1:])
        fleet.append(Node(url))
        result["one node alone"] = together(fleet[-1:])
    finally:
        for node in fleet:
            node.close()
        shutil.rmtree(caches)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--store-mb-per-s", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    rounds = []
    with tempfile.TemporaryDirectory() as scratch:
        (path,) = make_or_reuse(Path(scratch) / "bucket", arguments.mb * 1_000_000, 1)
        time.sleep(2.5)  # younger versions are not kept
        pace = Pace(latency_us=5000, connection_bytes=10**10, total_bytes=arguments.store_mb_per_s * 1_000_000)
        with PacedOrigin(Path(scratch), pace) as store:
            for _ in range(arguments.rounds):
                rounds.append(one_round(f"{store.http_url}/bucket/{Path(path).name}", arguments))
                print(json.dumps(rounds[-1]), flush=True)
    for kind in rounds[0]:
        seconds, store_share = ([each[kind][name] for each in rounds] for name in ("seconds", "store"))
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"{kind}: {statistics.median(seconds):.2f} s ({spread}), store {statistics.median(store_share):.3f} x")
    if arguments.json:
        arguments.json.write_text(json.dumps(rounds, indent=2))


if __name__ == "__main__":
    main()
