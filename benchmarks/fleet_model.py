"""A model of a fleet that loads one checkpoint: the seconds until each node has it, and the bytes that leave the store.

    python benchmarks/fleet_model.py                                            # the table
    python benchmarks/fleet_model.py --json benchmarks/results/fleet_model.json # what docs/pictures.py draws

Three ways are compared: each process reads for itself (``everyone``), each node reads once (``once per node``: its
processes share, or it has a cache), and each block leaves the store once, and nodes serve each other what they have
(``peers``). Limits are those of a connection to the store, of the store for one node and for all, of each node's
network in each direction, and between zones. The model knows no processors, disks or TCP: what is slower of these is
the limit of a node (``network``), or of all nodes of one machine (``together``).

Guarantees: the same arguments give the same figures. Every byte is counted where it leaves and where it arrives.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

import simpy

WAYS = ("everyone", "once per node", "peers")
NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
WORKERS = 8  # transfers of a node at the same time; each has a share of its connections
HOLDERS_ASKED = 4  # of so many nodes that hold a block, drawn at random, the least loaded one sends it
MOST_TRANSFERS = 600_000  # of a model, which takes about ten seconds
EVENTS = Iterator[simpy.Event]


@dataclass(frozen=True)
class Fleet:
    """Nodes that load one checkpoint. Speeds are in bytes per second; ``inf`` is no limit."""

    nodes: int = 8
    size_bytes: float = 140e9  # 70 billion parameters of two bytes
    blocks: int = 1000
    readers: int = 8  # processes of a node that all want the whole checkpoint
    connections: int = 128  # of a node to the store
    connection: float = 90e6  # as S3 gives to one connection
    store_per_node: float = inf  # limit of the store for one node, or for its address
    store: float = 25e9  # limit of the store for all: 200 Gbit/s
    network: float = 12.5e9  # of a node, in each direction: 100 Gbit/s
    serving: float = inf  # the part of it that a node gives to others
    together: float = inf  # limit of all transfers together, if all nodes are processes of one machine
    latency_s: float = 0.03  # until an answer of the store begins
    peer_latency_s: float = 0.001
    zones: int = 1
    between_zones: float = inf
    slow_nodes: int = 0  # of these, the network has a tenth of its speed
    warm_nodes: int = 0  # these have everything before
    lost_nodes: int = 0
    lost_after_s: float = inf
    lease_s: float = 1.0  # after so long, another node fetches what a lost one was to fetch


@dataclass(frozen=True)
class Outcome:
    """The result of a model. Bytes are counted for all nodes together."""

    seconds: float  # until the last node has everything
    median_s: float  # until half of the nodes have everything
    store_bytes: float  # bytes that the store sent
    peer_bytes: float  # bytes that nodes sent
    between_zones_bytes: float  # the part of these that went to another zone
    wasted_bytes: float  # bytes that were sent to or by a node which was lost meanwhile
    received_bytes: float  # bytes that arrived on the nodes that are left


class Pipe:
    """A limit. Transfers queue in it: each is through when all that came before it are."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s, self.free_at = bytes_per_s, 0.0

    def through_at(self, now: float, size_bytes: float) -> float:
        """Queue a transfer, and return when its last byte is through."""
        self.free_at = max(now, self.free_at) + size_bytes / self.bytes_per_s
        return self.free_at


MISSING, UNDER_WAY, HELD = range(3)


class Node:
    """One node: its network, and which blocks it holds."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        network = fleet.network / (10 if number < fleet.slow_nodes else 1)
        self.zone = number % fleet.zones
        self.down, self.up, self.store = Pipe(network), Pipe(min(network, fleet.serving)), Pipe(fleet.store_per_node)
        self.blocks = bytearray(fleet.blocks)
        self.held = 0
        self.own: list[int] = []  # blocks that this node is to bring into its zone
        self.ready: list[int] = []  # blocks that another node of its zone holds
        self.wake: simpy.Event | None = None
        self.sending = 0  # a node sends so many blocks at a time as others receive; who comes meanwhile comes again
        self.is_lost = False
        self.done_at = inf

    def wake_up(self) -> None:
        """Let transfers begin again that had nothing to do."""
        if self.wake is not None:
            self.wake.succeed()
            self.wake = None


class Model:
    """One run of a fleet."""

    def __init__(self, fleet: Fleet, way: str, seed: int = 0) -> None:
        if fleet.lost_nodes > fleet.nodes - fleet.zones:
            raise ValueError("one node of each zone must be left")
        self.fleet, self.way, self.random = fleet, way, random.Random(seed)
        self.env = simpy.Environment()
        self.block_bytes = fleet.size_bytes / fleet.blocks
        self.copies = fleet.readers if way == "everyone" else 1  # how often a node reads each block
        self.nodes = [Node(number, fleet) for number in range(fleet.nodes)]
        self.store, self.between, self.together = map(Pipe, (fleet.store, fleet.between_zones, fleet.together))
        self.holders: list[list[list[Node]]] = [[[] for _ in range(fleet.blocks)] for _ in range(fleet.zones)]
        self.bringers: list[list[Node | None]] = [[None] * fleet.blocks for _ in range(fleet.zones)]
        self.store_bytes = self.peer_bytes = self.between_bytes = self.wasted_bytes = 0.0

    def run(self) -> Outcome:
        """Let all nodes begin at once."""
        cold = self.nodes[self.fleet.warm_nodes :]
        for node in self.nodes[: self.fleet.warm_nodes]:
            node.blocks = bytearray([HELD]) * self.fleet.blocks
            for holders in self.holders[node.zone]:
                holders.append(node)
        for block in range(self.fleet.blocks):
            if self.way == "peers":
                self._assign(block, range(self.fleet.zones))
        for node in cold:
            if self.way != "peers":
                node.own = [*range(self.fleet.blocks)]
            for block in range(self.fleet.blocks):
                self._offer(node, block)
            for _ in range(WORKERS):
                self.env.process(self._work(node))
        for node in cold[len(cold) - self.fleet.lost_nodes :]:
            self.env.process(self._lose(node))
        self.env.run()
        left = [node for node in cold if not node.is_lost]
        times = [node.done_at for node in left]
        self.wasted_bytes += sum(node.held for node in self.nodes if node.is_lost) * self.block_bytes * self.copies
        received = sum(node.held for node in left) * self.block_bytes * self.copies
        sent = (self.store_bytes, self.peer_bytes, self.between_bytes, self.wasted_bytes)
        return Outcome(max(times), statistics.median(times), *sent, received)

    def _work(self, node: Node) -> EVENTS:
        """Transfer one block after another to a node."""
        while node.held < self.fleet.blocks and not node.is_lost:
            if node.own:
                block = node.own.pop()
            elif node.ready:
                block = _drawn(node.ready, self.random)
            else:
                node.wake = node.wake or self.env.event()
                yield node.wake
                continue
            if node.blocks[block] != MISSING:
                continue
            source = self._source(node, block)
            if source is not None and source.sending >= WORKERS:
                node.ready.append(block)
                yield self.env.timeout(max(self.fleet.peer_latency_s, 2 * self.block_bytes / source.up.bytes_per_s))
                continue
            yield from self._transfer(node, block, source)

    def _transfer(self, node: Node, block: int, source: Node | None) -> EVENTS:
        node.blocks[block] = UNDER_WAY
        through_at = self._through_at(node, source)
        if source is not None:
            source.sending += 1
        yield self.env.timeout(through_at - self.env.now)
        if source is not None:
            source.sending -= 1
        if node.is_lost or (source is not None and source.is_lost):
            self.wasted_bytes += self.block_bytes * self.copies
            node.blocks[block] = MISSING
            if node is self.bringers[node.zone][block]:
                node.own.append(block)
            self._offer(node, block)
            self._take_over(node.zone, block)
            return
        node.blocks[block] = HELD
        node.held += 1
        holders = self.holders[node.zone][block]
        holders.append(node)
        if node.held == self.fleet.blocks:
            node.done_at = self.env.now
        if len(holders) == 1 and self.way == "peers":
            for other in self.nodes:
                if other.zone == node.zone:
                    self._offer(other, block)

    def _source(self, node: Node, block: int) -> Node | None:
        """Return the node that sends a block, or None for the store: the same zone first, then the least loaded."""
        if self.way == "peers":
            for zone in (node.zone, *(each for each in range(self.fleet.zones) if each != node.zone)):
                holders = self.holders[zone][block]
                if holders:
                    asked = self.random.sample(holders, min(HOLDERS_ASKED, len(holders)))
                    return min(asked, key=lambda holder: holder.up.free_at)
        return None

    def _through_at(self, node: Node, source: Node | None) -> float:
        """Return when a block is through all its limits, and count its bytes."""
        now, fleet, size_bytes = self.env.now, self.fleet, self.block_bytes * self.copies
        if source is None:
            self.store_bytes += size_bytes
            pipes, latency_s = [self.store, node.store], fleet.latency_s
            paced_until = now + size_bytes / (fleet.connection * fleet.connections / WORKERS)
        else:
            self.peer_bytes += size_bytes
            pipes, latency_s, paced_until = [source.up], fleet.peer_latency_s, now
            if source.zone != node.zone:
                self.between_bytes += size_bytes
                pipes.append(self.between)
        through = [pipe.through_at(now, size_bytes) for pipe in (*pipes, node.down, self.together)]
        return max(paced_until, *through) + latency_s

    # --- who brings a block into a zone -------------------------------------------------------------------------------

    def _assign(self, block: int, zones: Sequence[int]) -> None:
        """Draw the node that brings a block into each zone; in the first of them, it reads it from the store."""
        first, *others = self.random.sample(zones, len(zones))
        for zone in (first, *others):
            node = self.random.choice([each for each in self.nodes if each.zone == zone and not each.is_lost])
            self.bringers[zone][block] = node
            self.env.process(self._bring(node, block, first if zone != first else None))

    def _bring(self, node: Node, block: int, zone: int | None) -> EVENTS:
        """Let a node read a block: from the store, or from another zone once that has it, so that it crosses once."""
        while zone is not None and not self.holders[zone][block]:
            yield self.env.timeout(self.fleet.latency_s)
        node.own.append(block)
        node.wake_up()

    def _offer(self, node: Node, block: int) -> None:
        if node.blocks[block] == MISSING and self.holders[node.zone][block]:
            node.ready.append(block)
            node.wake_up()

    def _lose(self, node: Node) -> EVENTS:
        """Lose a node; when its leases have ended, others fetch what nobody else holds."""
        yield self.env.timeout(self.fleet.lost_after_s)
        node.is_lost = True
        node.wake_up()
        for holders in self.holders[node.zone]:
            if node in holders:
                holders.remove(node)
        yield self.env.timeout(self.fleet.lease_s)
        for block in range(self.fleet.blocks):
            self._take_over(node.zone, block)

    def _take_over(self, zone: int, block: int) -> None:
        """Draw another node for a block, if the node that was to bring it is lost, and nobody has it from that."""
        bringer = self.bringers[zone][block]
        if bringer is None or not bringer.is_lost or self.holders[zone][block]:
            return
        nodes = [node for node in self.nodes if node.zone == zone and not node.is_lost]
        if not any(node.blocks[block] == UNDER_WAY for node in nodes):
            self._assign(block, [zone])


def _drawn(blocks: list[int], drawing: random.Random) -> int:
    """Take out one of the blocks at random."""
    place = drawing.randrange(len(blocks))
    blocks[place], blocks[-1] = blocks[-1], blocks[place]
    return blocks.pop()


def outcome_of(fleet: Fleet, way: str, seed: int = 0) -> Outcome:
    """Run a model, with fewer blocks if the fleet is large."""
    blocks = max(1, min(fleet.blocks, MOST_TRANSFERS // fleet.nodes))
    return Model(replace(fleet, blocks=blocks), way, seed).run()


def cases(fleet: Fleet) -> dict[str, Fleet]:
    """Return a fleet, and what may happen to it, by names for the page."""
    return {
        "as above": fleet,
        "all but one have it before": replace(fleet, warm_nodes=fleet.nodes - 1),
        "one node lost after 3 s": replace(fleet, lost_nodes=1, lost_after_s=3),
        "ten nodes lost after 3 s": replace(fleet, lost_nodes=10, lost_after_s=3),
        "ten nodes with a tenth of the network": replace(fleet, slow_nodes=10),
        "two zones": replace(fleet, zones=2),
        "two zones, 25 Gbit/s between them": replace(fleet, zones=2, between_zones=3.1e9),
        "nodes give half of their network": replace(fleet, serving=fleet.network / 2),
        "nodes with 25 Gbit/s": replace(fleet, network=3.1e9),
        "a store of 2.5 GB/s, or one address for all": replace(fleet, store=2.5e9),
    }


def case_rows(fleet: Fleet) -> list[dict[str, Any]]:
    """Run each case for one number of nodes."""
    rows = []
    for name, each in cases(fleet).items():
        once, peers = outcome_of(each, "once per node"), outcome_of(each, "peers")
        seconds = {"once_s": once.seconds, "half_s": peers.median_s, "last_s": peers.seconds}
        shares = {"store": peers.store_bytes / each.size_bytes, "between": peers.between_zones_bytes / each.size_bytes}
        rows.append({"name": name, **{key: round(value, 3) for key, value in {**seconds, **shares}.items()}})
    return rows


def result_of(drawn: dict[str, list[tuple[int, Outcome]]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what `docs/pictures.py` draws."""

    def section(label: str, value: Callable[[Outcome], float]) -> dict[str, Any]:
        points = {way: [(count, round(value(each), 3)) for count, each in found] for way, found in drawn.items()}
        named = [{"name": way, "points": each} for way, each in points.items()]
        about = {"label": label, "title": label, "command": "python benchmarks/fleet_model.py", "rounds": 1}
        return {**about, "curves": named}

    return {
        "title": "A model: nodes that load 140 GB at once",
        "unit": "seconds and TB",
        "machine": "none: a model, by simpy",
        "date": date.today().isoformat(),
        "sections": [
            section("seconds until the last node has it", lambda each: each.seconds),
            section("TB that leave the store", lambda each: each.store_bytes / 1e12),
        ],
        "cases": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    drawn = {way: [(count, outcome_of(Fleet(nodes=count), way)) for count in NODES] for way in WAYS}
    result = result_of(drawn, case_rows(Fleet(nodes=100)))
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
