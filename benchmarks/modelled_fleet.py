"""Moves the blocks of one checkpoint between nodes, in a model: when each node has it, and who sent which bytes.

Three ways are compared: each process reads for itself (``everyone``), each node reads once (``once per node``: its
processes share, or it has a cache), and each block leaves the store once, and nodes serve each other what they have
(``peers``). Limits are those of a connection to the store, of the store for one node and for all, of each node's
network in each direction, and between zones. The model knows no processors, disks or TCP: what is slower of these is
the limit of a node (``network``), or of all nodes of one machine (``together``).

Guarantees: the same arguments give the same figures. Every byte is counted when it is sent,
and again when it is received.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

import simpy

WAYS = ("everyone", "once per node", "peers")
WORKERS = 8  # transfers of a node at the same time; each has a share of its connections
HOLDERS_ASKED = 4  # of so many nodes that hold a block, drawn at random, the least loaded one sends it
MOST_TRANSFERS = 600_000  # of a model, which takes about ten seconds
EVENTS = Generator[simpy.Event, Any, None]


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
    start_s: float = 0.0  # of a node before its first transfer: it locates the checkpoint, and reads the headers
    asking_s: float = 0.25  # between two questions of a node to the others: it hears so late of what they hold
    is_side_by_side: bool = False  # a node reads from others beside its own part; if not, after it
    probed: float = 0.0  # the part that each node reads from the store to measure it, even if others hold everything


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
    received_from_store: float  # the part of these that came from the store


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
        self.news: list[int] = []  # such blocks that this node is to hear of by its next question
        self.probes: set[int] = set()  # blocks that it reads from the store to measure it
        self.from_store = 0.0
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
            if self.fleet.probed and self.way == "peers":
                self._probe(node)
            for _ in range(WORKERS):
                self.env.process(self._work(node, takes_own=not self.fleet.is_side_by_side, takes_ready=True))
                if self.fleet.is_side_by_side:
                    self.env.process(self._work(node, takes_own=True, takes_ready=False))
        for node in cold[len(cold) - self.fleet.lost_nodes :]:
            self.env.process(self._lose(node))
        self.env.run()
        left = [node for node in cold if not node.is_lost]
        times = [node.done_at for node in left]
        self.wasted_bytes += sum(node.held for node in self.nodes if node.is_lost) * self.block_bytes * self.copies
        received = sum(node.held for node in left) * self.block_bytes * self.copies
        sent = (self.store_bytes, self.peer_bytes, self.between_bytes, self.wasted_bytes)
        from_store = sum(node.from_store for node in left)
        return Outcome(max(times), statistics.median(times), *sent, received, from_store)

    def _work(self, node: Node, *, takes_own: bool, takes_ready: bool) -> EVENTS:
        """Transfer one block after another to a node."""
        yield self.env.timeout(self.fleet.start_s)
        while node.held < self.fleet.blocks and not node.is_lost:
            if node.own and takes_own:
                block = node.own.pop()
            elif node.ready and takes_ready:
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
        if source is None:
            node.from_store += self.block_bytes * self.copies
        holders = self.holders[node.zone][block]
        holders.append(node)
        if node.held == self.fleet.blocks:
            node.done_at = self.env.now
        if len(holders) == 1 and self.way == "peers":
            for other in self.nodes:
                if other.zone == node.zone:
                    other.news.append(block)
                    if len(other.news) == 1:
                        self.env.process(self._ask(other))

    def _source(self, node: Node, block: int) -> Node | None:
        """Return the node that sends a block, or None for the store: the same zone first, then the least loaded."""
        if self.way == "peers" and block not in node.probes:
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

    def _probe(self, node: Node) -> None:
        """Let a node read more from the store than it is to bring, if that is less than the probed part."""
        holders, bringers = self.holders[node.zone], self.bringers[node.zone]
        own = {block for block in range(self.fleet.blocks) if bringers[block] is node and not holders[block]}
        count = ceil(self.fleet.probed * self.fleet.blocks) - len(own)
        if count > 0:
            others = [block for block in range(self.fleet.blocks) if block not in own]
            node.probes = {*self.random.sample(others, min(count, len(others)))}
            node.own.extend(node.probes)

    def _ask(self, node: Node) -> EVENTS:
        """Tell a node what others hold when it asks the next time."""
        yield self.env.timeout(self.fleet.asking_s * self.random.random())
        for block in node.news:
            self._offer(node, block)
        node.news.clear()

    def _offer(self, node: Node, block: int) -> None:
        if node.blocks[block] == MISSING and self.holders[node.zone][block]:
            node.ready.append(block)
            node.wake_up()

    def _lose(self, node: Node) -> EVENTS:
        """Lose a node. After its leases have ended, other nodes fetch the blocks that no node holds."""
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
        """Draw another node for a block, if its node is lost and has given the block to no other node."""
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
