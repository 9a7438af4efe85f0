"""Decides during a load who gives which bytes: which peer, or the storage.

The engine holds back all items that are not in the own cache. A thread asks the peers again and again what they hold.
It releases items to each peer and to the storage, by the speed that each has shown: half a second of work at a time,
and less near the end. So a slow peer gets little work, and the death of a peer leaves little to repeat.

Nodes that load the same objects divide the bytes that no node holds. Each node reads its part from the storage, and
tells the others, which wait for it. A part is many runs of neighbouring bytes. Rendezvous hashing gives each node an
equal number of runs, and changes them when nodes come or go.

If the storage is faster than the peers, it also gives bytes that peers hold or are to read, and a peer gets only what
it gives before the storage could. A node without a part of its own reads some of the load from the storage to measure
its speed, all of them together up to `PROBED`. With `prefer="egress"`, for storages whose bytes cost money, the storage
gives only the bytes that no peer gives.

Guarantees: every item is released, to a peer that says it holds the item, or to the storage.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from streamer.core.conditions import Event
from streamer.core.engine.plan import Missing
from streamer.core.peers.flow import Flow, Speeds
from streamer.core.peers.held import ToldLoad

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.peers.asking import Answer, Peers
    from streamer.core.peers.held import Claims

LOOK_S = 0.02  # between two looks at what has arrived
FIRST_ASK_S = 0.05  # between the first two questions to the peers
ASK_S, LONGEST_PAUSE_S = 0.25, 1.5  # between later ones; longer if there is much to ask
PATIENCE_S = 2.0  # for their answers, and without any progress of them; at least
AHEAD_S, LEAST_AHEAD_S = 0.5, 0.1  # released ahead of what has arrived, as time at the speed so far
MEASURE_S = 0.15  # a speed says something after this
RUN_BYTES, LEAST_RUN_BYTES = 4 << 20, 1 << 20
FEW_RUNS, MOST_RUNS = 64, 1024  # runs are smaller if there were fewer of them, and larger if there were more
LEAST_PROBED_BYTES = 32 << 20  # less than this comes before a speed is measured
PROBED = 1 / 32  # of the load: as much is read to measure the storage
PROBE_S = 0.1  # so long the peers need for what is read at once
MOST_READERS = 64  # if more nodes load, the others read nothing from the storage
WIN_BACKS = 3  # so often a peer that has failed is read again

Offered: TypeAlias = tuple[Missing, int]  # with the CRC32C that a peer told; 0 for the storage


class LoadGuide:
    """The guide of one session; see the module's docstring."""

    def __init__(self, peers: Peers, missing: Sequence[Missing], *, in_item_order: bool) -> None:
        self._peers, self._missing, self._in_item_order = peers, missing, in_item_order
        self._pending = {each.item: each for each in missing}
        self._size_bytes = self._left_bytes = sum(map(_size, missing))  # of all items; of those not released yet
        self._name = secrets.token_hex(8)
        self._name_of = peers.names_of(missing)
        self._claims: Claims = {name: set() for name in self._name_of.values()}  # told to the others
        self._held: set[int] = set()  # items that peers hold
        self._near: set[int] = set()  # those of them that peers of the own zone hold
        self._near_peers: set[str] = set()
        self._queues: dict[str, deque[Offered]] = {}  # what each peer can give
        self._mine: deque[Offered] = deque()  # what this node is to read from the storage
        self._spare: deque[Offered] = deque()  # what it may read from there besides
        self._owner: dict[str, str] = {}  # the node of each run
        self._nodes: set[str] = set()
        self._told_nodes: set[str] = set()  # those that peers have told of
        self._left: list[Missing] = []  # what no peer holds, or reads now
        self._disputed: list[Missing] = []  # what peers say different things of, so that none can be believed
        self._news: deque[tuple[Sequence[Missing], Mapping[str, Answer]]] = deque()
        self._pause_s = FIRST_ASK_S
        self._ended = Event()
        self._thread = Thread(target=self._run, name="streamer-guide", daemon=True)

    def start(self, engine: _native.Session, source_of: Mapping[tuple[int, str], int]) -> None:
        """Begin to release."""
        self._engine, self._source_of = engine, source_of
        self._tell()  # before the first question: of two that begin together, one at least knows of the other
        sources: defaultdict[str, set[int]] = defaultdict(set)
        for (_, address), source in source_of.items():
            sources[address].add(source)
        self._storage = Flow({each.number for each in self._missing})
        self._flows = {address: Flow(each) for address, each in sources.items()}
        self._speeds = Speeds(self._storage, self._flows)
        self._failures = dict.fromkeys(sources, 0)
        self._thread.start()

    def end(self) -> None:
        """Stop; what is not released then is not wanted any more."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._peers.hang_up()

    def _run(self) -> None:
        try:
            self._learn(self._missing, self._peers.ask(self._missing, load=self._as_told))
            asked_at, is_asking = time.monotonic(), False
            while self._pending and not self._ended.is_set():
                if self._news:
                    self._learn(*self._news.popleft())
                    answered_s = time.monotonic() - asked_at
                    self._pause_s = max(min(2 * self._pause_s, ASK_S), min(4 * answered_s, LONGEST_PAUSE_S))
                    is_asking = False
                elif not is_asking and time.monotonic() >= asked_at + self._pause_s:
                    asked_at, is_asking = time.monotonic(), self._ask_again()
                self._tell()
                if not self._asking_nodes() <= self._nodes:
                    self._divide()
                self._look()
                self._top_up()
                self._ended.wait(LOOK_S)
        finally:  # whatever happens here, no item stays behind
            self._release(self._storage, [(each, 0) for each in self._pending.values()])

    def _ask_again(self) -> bool:
        """Ask about what no peer held, in a thread of its own, because some may be slow to answer."""
        asked = [each for item, each in self._pending.items() if item not in self._near]
        load = self._as_told

        def ask() -> None:
            answers: Mapping[str, Answer] = {}
            try:
                answers = self._peers.ask(asked, PATIENCE_S, load)
            finally:  # without an answer of anybody, this node reads everything
                self._news.append((asked, answers))
                if self._ended.is_set():
                    self._peers.hang_up()

        if asked:
            Thread(target=ask, name="streamer-ask", daemon=True).start()
        return bool(asked)

    @property
    def _as_told(self) -> ToldLoad:
        """This load, as the others are told of it."""
        return ToldLoad(self._name, self._pause_s, self._claims)

    def _tell(self) -> None:
        """Tell the server of this process."""
        if self._peers.server:
            self._peers.server.loads.note(self._as_told)

    def _learn(self, asked: Sequence[Missing], answers: Mapping[str, Answer]) -> None:
        """Queue what peers hold, and choose the own part of the rest."""
        answers = self._readable(answers)
        offered: defaultdict[str, list[Offered]] = defaultdict(list)
        self._disputed, self._left = [], []
        for position, each in enumerate(asked):
            crcs = {where: crc for where, told in answers.items() if (crc := told.crcs[position]) is not None}
            if len({*crcs.values()}) == 1:
                self._held.add(each.item)
                if any(answers[address].is_near for address in crcs):
                    self._near.add(each.item)
                for address, crc in crcs.items():
                    offered[address].append((each, crc))
            elif crcs:
                self._disputed.append(each)
            elif each.item not in self._held and not any(position in told.coming for told in answers.values()):
                self._left.append(each)
        for address, items in offered.items():
            self._queues[address] = self._ordered([*self._queues.get(address, ()), *items])
        self._near_peers |= {address for address, told in answers.items() if told.is_near}
        self._told_nodes = {name for told in answers.values() for name in told.loads}
        self._divide()

    def _divide(self) -> None:
        """Choose the part that this node reads of what no peer holds or reads now."""
        nodes = {self._name, *self._told_nodes, *self._asking_nodes()}
        if nodes != self._nodes:
            self._nodes = nodes
            self._owner = owners(sorted({*self._run_of.values()}), sorted(nodes)[:MOST_READERS])
        mine = [each for each in self._left if self._owner[self._run_of[each.item]] == self._name]
        self._mine = self._ordered((each, 0) for each in [*self._disputed, *mine])

    def _asking_nodes(self) -> set[str]:
        """Return the nodes that have asked this one about the same objects."""
        server = self._peers.server
        return server.loads.of(self._claims, self._name)[0] if server else set()

    def _readable(self, answers: Mapping[str, Answer]) -> Mapping[str, Answer]:
        """Leave out the answers of peers that failed. One that had no processor for a moment is read again."""
        lost = {*self._engine.lost_peers()}
        for address in answers:
            flow = self._flows[address]
            if flow.sources & lost and flow.has_given and self._failures[address] < WIN_BACKS:
                self._failures[address] += 1
                self._flows[address] = Flow(flow.sources, received_bytes=self._engine.received_bytes())
                for source in flow.sources:
                    self._engine.win_back(source)
        lost = {*self._engine.lost_peers()}
        return {address: answer for address, answer in answers.items() if not self._flows[address].sources & lost}

    def _ordered(self, items: Iterable[Offered]) -> deque[Offered]:
        """Order items as `_place_of` says, each once."""
        last = {each[0].item: each for each in items}
        return deque(last[item] for item in sorted(last, key=self._place_of.__getitem__))

    @cached_property
    def _place_of(self) -> Mapping[int, int]:
        """The place of each item in the order: runs by chance, so that not all nodes begin with the same run.

        Items that are wanted in their order stay in it: the memory that one waits for is freed by those before it.
        """
        items = sorted(self._run_of)
        if not self._in_item_order:
            ranks = {run: _rank(run, self._name) for run in {*self._run_of.values()}}
            items.sort(key=lambda item: ranks[self._run_of[item]])
        return {item: place for place, item in enumerate(items)}

    @cached_property
    def _run_of(self) -> dict[int, str]:
        """The run of each item, the same on each node that loads these objects."""
        ends: defaultdict[str, int] = defaultdict(int)
        for each in self._missing:
            ends[each.digest] = max(ends[each.digest], each.end)
        size_bytes = sum(ends.values())
        run_bytes = max(LEAST_RUN_BYTES, min(RUN_BYTES, size_bytes // FEW_RUNS), size_bytes // MOST_RUNS)
        return {each.item: f"{each.digest}/{each.begin // run_bytes}" for each in self._missing}

    @property
    def _probed_bytes(self) -> float:
        """How much this node may read to measure the storage: all nodes together, a part of the load."""
        if self._size_bytes < LEAST_PROBED_BYTES or len(self._nodes) > MOST_READERS:
            return 0
        return max(RUN_BYTES, PROBED * self._size_bytes / len(self._nodes))

    def _look(self) -> None:
        """See what has arrived, and which peers are lost."""
        self._speeds.look(time.monotonic(), self._engine.received_bytes(), self._patience_s)
        lost = {*self._engine.lost_peers()}
        gone = [address for address in self._queues if self._flows[address].sources & lost]
        for address in gone:
            del self._queues[address]
        if gone:
            self._held = {each.item for queue in self._queues.values() for each, _ in queue}
            near = (queue for address, queue in self._queues.items() if address in self._near_peers)
            self._near = {each.item for queue in near for each, _ in queue}

    @property
    def _patience_s(self) -> float:
        """How long others may give nothing: longer if their answers take long, as on machines that are busy."""
        return max(PATIENCE_S, 2 * self._pause_s)

    def _top_up(self) -> None:
        """Release to each peer, and to the storage, as much as there is room for."""
        left_s = self._speeds.left_s(self._left_bytes)
        ahead_s = min(AHEAD_S, max(LEAST_AHEAD_S, left_s / 2))  # less near the end, so that all end at the same time
        fastest = self._storage.speed if self._is_storage_faster else 0.0
        for address, queue in self._queues.items():
            flow = self._flows[address]
            left_out = self._near if address not in self._near_peers else ()
            if not queue or _size(queue[0][0]) <= flow.most_bytes(left_s, fastest):
                self._release(flow, self._taken(queue, flow.room_bytes(ahead_s), left_out), address)
        if self._mine:
            self._release(self._storage, self._taken(self._mine, self._storage.room_bytes(ahead_s)))
        else:
            room_bytes = self._spare_room_bytes(ahead_s)  # chooses what is spare, too
            self._release(self._storage, self._taken(self._spare, room_bytes))

    @property
    def _is_storage_faster(self) -> bool:
        """Whether the storage gives what peers hold, too, because it is faster than all of them."""
        speeds = self._speeds
        is_faster = speeds.measured_s >= MEASURE_S and self._storage.speed > speeds.of_peers
        return is_faster and not self._peers.saves_egress

    def _spare_room_bytes(self, ahead_s: float) -> float:
        """How much of what others hold, or are to read, the storage is to give: much if it is the faster one."""
        speed = self._speeds.of_peers
        is_late = self._speeds.measured_s >= self._patience_s
        is_stuck = is_late and speed == 0
        may_be_faster = not self._storage.awaited_bytes and 4 * self._storage.speed >= speed
        room_bytes = 0.0
        if is_stuck or self._is_storage_faster:
            room_bytes = self._storage.room_bytes(ahead_s)
        elif may_be_faster and not self._peers.saves_egress:
            left_bytes = self._probed_bytes - self._storage.released_bytes
            # At once as much as takes a faster storage a moment: fewer bytes would only show its latency
            room_bytes = min(left_bytes, max(RUN_BYTES, PROBE_S * speed))
        if room_bytes > 0 and not self._spare:
            # The others soon give what they read now
            takes_all = is_stuck or (is_late and self._storage.speed > 2 * speed)
            spare = [(each, 0) for item, each in self._pending.items() if takes_all or item in self._held]
            self._spare = self._ordered(spare)
        return room_bytes

    def _taken(self, queue: deque[Offered], room_bytes: float, left_out: Collection[int] = ()) -> list[Offered]:
        """Take whole runs from a queue, until the room is used; items that are left out are offered again later."""
        taken, run = list[Offered](), None
        while queue and (room_bytes > 0 or self._run_of[queue[0][0].item] == run):
            each, crc = queue.popleft()
            if each.item in self._pending and each.item not in left_out:
                taken.append((each, crc))
                run = self._run_of[each.item]
                room_bytes -= _size(each)
        return taken

    def _release(self, flow: Flow, items: Iterable[Offered], address: str | None = None) -> None:
        """Release items to a peer, or else to the storage; the others are told that this node reads them."""
        table = array("q")
        for each, crc in items:
            if self._pending.pop(each.item, None) is None:
                continue
            self._left_bytes -= _size(each)
            flow.released_bytes += _size(each)
            source = each.number if address is None else self._source_of[each.number, address]
            table.extend((each.item, source, crc))
            if address is None:
                self._claims[self._name_of[each.digest]].add((each.begin, each.end))
        if table:
            self._engine.release(table)


def owners(runs: Sequence[str], nodes: Iterable[str]) -> dict[str, str]:
    """Choose a node for each run, the same on each node: by rendezvous hashing, with equal numbers of runs.

    Example:
        >>> owners(["a", "b", "c"], ["x"])
        {'a': 'x', 'b': 'x', 'c': 'x'}
    """
    names = sorted(nodes)
    most = -(-len(runs) // len(names))
    room = dict.fromkeys(names, most)
    chosen = {}
    for run in runs:
        chosen[run] = next(name for name in sorted(names, key=lambda name: _rank(run, name)) if room[name])
        room[chosen[run]] -= 1
    return chosen


def _size(each: Missing) -> int:
    return each.end - each.begin


def _rank(run: str, name: str) -> bytes:
    return hashlib.blake2b(f"{run} {name}".encode(), digest_size=8).digest()
