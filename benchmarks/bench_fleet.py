"""Time a fleet of processes with own caches and ports, beside as many without peers.

    python benchmarks/bench_fleet.py [--nodes 8] [--mb 400] [--store-mb-per-s 100] [--peer-mb-per-s 0] [--rounds 3] ...

The store is `paced_server.cc` on loopback, capped for all connections together, and each peer for all that it serves;
0 is no cap. Both kinds of fleet alternate; each run has fresh processes that import before the clock starts, and empty
caches in shared memory. After a cold fleet, one more node joins its warm ones. ``--kill`` adds a cold fleet that loses
a node in the middle. The tensors are compared. ``fleet_model.py --compare`` reads what ``--json FILE`` writes.
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
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from checkpoint import make_or_reuse  # noqa: E402  its folder is no package
from paced_origin import Pace, PacedOrigin  # noqa: E402

TOKEN = "a-token-of-the-benchmark"
LATENCY_US = 5000  # of the store


def child(url: str, cache: str, peers: str, serving: str) -> None:
    """Load when a line comes, print the figures, and serve until the input ends."""
    import streamer
    from streamer.core.peers import guide, joining  # noqa: F401 (as a load with peers does)

    how = {"peers": peers.split(","), "max_serving_bytes_per_second": int(serving) or None} if peers else {}
    options = streamer.Options(cache_dir=cache, **how)
    print(flush=True)
    sys.stdin.readline()
    began, cpu_s, tensors, arrived = time.time(), time.process_time(), {}, []
    with streamer.stream(url, framework="np", options=options, progress=False) as stream:
        for name, tensor in stream:
            arrived.append(time.time())
            tensors[name] = tensor
    ended, cpu_s = time.time(), time.process_time() - cpu_s
    report = stream.report
    digest = 0
    for name in sorted(tensors):
        digest = zlib.crc32(tensors[name].reshape(-1).view("u1"), digest)
    figures = {"ended": ended, "store": report.bytes_read, "peers": sum(report.peer_bytes.values()), "digest": digest}
    figures |= {"began": began, "headers": report.stages["locate"] + report.stages["headers"], "first": arrived[0]}
    print(json.dumps({**figures, "cpu_s": cpu_s, "bytes": report.bytes, "log": str(report)}), flush=True)
    sys.stdin.read()


class Node:
    """A process of the fleet."""

    def __init__(self, url: str, cache: str, peers: str = "", serving: int = 0) -> None:
        self.peers = peers
        command = [sys.executable, __file__, "--child", url, cache, peers, str(serving)]
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

    def cpu_s(self) -> float:
        """Return the processor seconds of all its threads so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


def together(
    nodes: list[Node], size_bytes: int, fleet: Sequence[Node] = (), killed_after_s: float | None = None
) -> dict[str, float]:
    """Let all nodes load at the same time, while the others of the fleet serve them."""
    living = nodes if killed_after_s is None else nodes[1:]
    # A virtual machine gives free memory back to its host, and gets it again slowly. So each case begins with as much
    # as its tensors and caches need, else those that run after a pause would be slower.
    numpy.ones(2 * size_bytes * len(nodes), "u1")
    serving_s, busy_s, began = sum(node.cpu_s() for node in fleet), machine_busy_s(), time.time()
    for node in nodes:
        node.go()
    if killed_after_s is not None:
        time.sleep(killed_after_s)
        nodes[0].close()
    figures = [node.figures() for node in living]
    if len({each["digest"] for each in figures}) != 1:
        raise SystemExit("the tensors differ")
    busy_s = machine_busy_s() - busy_s
    return {
        "seconds": max(each["ended"] for each in figures) - began,
        "store": sum(each["store"] for each in figures) / size_bytes,
        "peers": sum(each["peers"] for each in figures) / size_bytes,
        "started_s": max(each["began"] for each in figures) - began,  # until the last node was awake
        "headers_s": statistics.median(each["headers"] for each in figures),
        "first_tensor_s": statistics.median(each["first"] - each["began"] for each in figures),
        # Of the living nodes until the end of their load, and of those that only serve; without the store
        "cpu_s": sum(each["cpu_s"] for each in figures) + sum(node.cpu_s() for node in fleet) - serving_s,
        "machine_busy_s": busy_s,  # processor seconds of everything; the store, digests and other programs included
    }


def machine_busy_s() -> float:
    """Return the processor seconds of all programs of the machine, and those that a host took from it."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def one_round(url: str, size_bytes: int, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Time each case once."""
    caches = Path(tempfile.mkdtemp(dir="/dev/shm"))
    running, serving = list[Node](), arguments.peer_mb_per_s * 1_000_000

    def end() -> None:
        while running:
            running.pop().close()
        for cache in caches.iterdir():
            shutil.rmtree(cache)

    def without_peers(nodes: int) -> dict[str, float]:
        running.extend(Node(url, tempfile.mkdtemp(dir=caches)) for _ in range(nodes))
        figures = together(running, size_bytes)
        end()
        return figures

    def start_cold_fleet() -> None:
        """Start nodes with empty caches that know each other, and the address of one more."""
        peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(arguments.nodes + 1))
        running.extend(Node(url, tempfile.mkdtemp(dir=caches), peers, serving) for _ in range(arguments.nodes))

    try:
        result = {"everyone reads": without_peers(arguments.nodes)}
        start_cold_fleet()
        result["cold fleet"] = together(running, size_bytes)
        time.sleep(2)  # what they read is written
        running.append(Node(url, tempfile.mkdtemp(dir=caches), running[0].peers, serving))
        result["one more node"] = together(running[-1:], size_bytes, running[:-1])
        end()
        result["one node alone"] = without_peers(1)
        if arguments.kill:
            start_cold_fleet()
            result["one killed"] = together(running, size_bytes, killed_after_s=arguments.killed_after_s)
    finally:
        end()
        caches.rmdir()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--store-mb-per-s", type=int, default=100)
    parser.add_argument("--peer-mb-per-s", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    if arguments.kill and not arguments.store_mb_per_s:
        parser.error("--kill needs a store with a limit, which says when the middle of a load is")
    if arguments.kill:  # in the middle of what the store needs for one copy
        arguments.killed_after_s = arguments.mb / arguments.store_mb_per_s / 2
    rounds = []
    with tempfile.TemporaryDirectory() as scratch:
        (path,) = make_or_reuse(Path(scratch) / "bucket", arguments.mb * 1_000_000, 1)
        time.sleep(2.5)  # younger versions are not kept
        pace = Pace(latency_us=LATENCY_US, connection_bytes=10**10, total_bytes=arguments.store_mb_per_s * 1_000_000)
        with PacedOrigin(Path(scratch), pace) as store:
            url = f"{store.http_url}/bucket/{path.name}"
            for _ in range(arguments.rounds):
                rounds.append(one_round(url, path.stat().st_size, arguments))
                print(json.dumps(rounds[-1]), flush=True)
    for kind in rounds[0]:
        seconds, store_share = ([each[kind][name] for each in rounds] for name in ("seconds", "store"))
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"{kind}: {statistics.median(seconds):.2f} s ({spread}), store {statistics.median(store_share):.3f} x")
    if arguments.json:
        about = {name: value for name, value in vars(arguments).items() if name not in ("json", "child")}
        about |= {"latency_us": LATENCY_US, "date": date.today().isoformat()}
        about["processors"] = len(os.sched_getaffinity(0))
        arguments.json.write_text(json.dumps({"arguments": about, "rounds": rounds}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
