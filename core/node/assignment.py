"""Who reads which block of a meeting, and where it lies: a function of events. Pure: no clock, no socket, no memory.

Guarantees: a block is lent to one member at a time; a slot that anybody may still write is lent to nobody else; each
member either hears that a block it wants is ready, or that it shall read the block itself. A member that does not take
its blocks keeps no slot from the others once one of them is in need.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from streamer.core.node.grid import Hull


@dataclass
class Block:
    """A block that somebody wants or that lies in a slot."""

    # By member, the range that the member wants and has not taken
    wants: dict[int, Hull] = field(default_factory=dict)
    slot: int | None = None  # slot that holds the block, or will; None as long as no member reads the block
    # The member that reads the block now; None if no member has begun, or the block is ready
    reader: int | None = None
    hull: Hull = (0, 0)  # range of the block that is read

    @property
    def is_missing(self) -> bool:
        """Whether it lies nowhere yet."""
        return self.slot is None

    @property
    def is_ready(self) -> bool:
        """Whether it is whole."""
        return self.slot is not None and self.reader is None

    @property
    def wanted(self) -> Hull:
        """The shortest range that contains all wanted bytes."""
        return min(begin for begin, _ in self.wants.values()), max(end for _, end in self.wants.values())

    def serves(self, member: int) -> bool:
        """Whether the bytes that are read contain all that the member wants of the block."""
        want = self.wants.get(member)
        return want is not None and self.hull[0] <= want[0] and want[1] <= self.hull[1]


READERS = 2  # readers of each member: one waits for its last block while the other's requests are under way
Grant: TypeAlias = tuple[int, int, int, int]  # block, slot, first byte, byte after the last
Ready: TypeAlias = tuple[int, int, int, int, int]  # as Grant, and the generation of the slot
Letter: TypeAlias = tuple[int, str, "list[Grant] | list[Ready] | list[int]"]  # to whom, "grant" | "ready" | "dropped"


class Book:
    """The state of one meeting. Every method returns what the members are to be told, in order.

    Attributes:
        generations: Generation of each slot; it grows whenever the slot is lent.
    """

    def __init__(self, slots: int, batch_blocks: int, expected: int, whole: Callable[[int], Hull]) -> None:
        self.generations = [0] * slots
        self._whole, self._awaits_others, self._takes_parts = whole, False, False
        self._batch_blocks, self._expected = batch_blocks, expected
        self._free = list(range(slots))[::-1]
        self._blocks: dict[int, Block] = {}
        self._ready: dict[int, None] = {}  # ready blocks, the oldest first
        self._next: dict[int, list[int]] = {}  # by member: a heap of blocks that it may read
        self._asking: deque[int] = deque()  # members with an idle reader, the first first
        self._silent: set[int] = set()
        self._late: set[int] = set()  # late members: their ready blocks make room for those of others
        # By slot that is no longer lent: the member that may still write to the slot, and the range that it may write.
        self._abandoned: dict[int, tuple[int, Hull]] = {}
        self._letters: list[Letter] = []

    def await_others(self, awaits_others: bool) -> list[Letter]:
        """Say whether members are yet to come: then blocks that all have taken are kept, and none is read in parts."""
        self._awaits_others = awaits_others
        return self._served()

    def join(self, member: int, wants: Mapping[int, Hull], *, takes_parts: bool = False) -> list[Letter]:
        """Add a member, with what it wants of each block, and whether others probably want the rest of these blocks."""
        self._takes_parts = self._takes_parts or takes_parts
        self._next[member] = sorted(wants)
        ready = []
        for number, hull in wants.items():
            block = self._blocks.setdefault(number, Block())
            block.wants[member] = hull
            if block.is_ready and block.serves(member):
                ready.append(self._told(number))
            elif block.is_ready and not any(map(block.serves, block.wants)):
                self._free_slot(number, block)
        if ready:
            self._letters.append((member, "ready", ready))
        return self._served()

    def ask(self, member: int) -> list[Letter]:
        """Lend blocks to a reader of a member, as soon as there are blocks that the member wants."""
        self._asking.append(member)
        return self._served()

    def read(self, member: int, lent: Iterable[Sequence[int]]) -> list[Letter]:
        """Note that blocks lie in the slots that were lent for them, each a pair of numbers."""
        for number, slot in lent:
            block = self._blocks.get(number)
            if slot in self._abandoned and self._abandoned[slot][0] == member:
                _, hull = self._abandoned.pop(slot)
                if block is None or not block.is_missing:
                    self._free.append(slot)
                    continue
                block.slot, block.reader, block.hull = slot, member, hull
            if block is not None and (block.reader, block.slot) == (member, slot):
                self._has_arrived(number, block)
        return self._served()

    def fail(self, member: int, lent: Iterable[Sequence[int]]) -> list[Letter]:
        """Note that a member could not read blocks, and no longer wants them; the arguments are as for `read`."""
        for number, slot in lent:
            block = self._blocks.get(number)
            if slot in self._abandoned and self._abandoned[slot][0] == member:
                del self._abandoned[slot]
                self._free.append(slot)
            elif block is not None and (block.reader, block.slot) == (member, slot):
                self._free_slot(number, block)
            if block is not None:
                self._unwant(member, number, block)
        return self._served()

    def take(self, member: int, numbers: Iterable[int]) -> list[Letter]:
        """Note that a member has what it wants of blocks."""
        for number in numbers:
            block = self._blocks.get(number)
            if block is not None:
                self._unwant(member, number, block)
        return self._served()

    def need(self, member: int, number: int) -> list[Letter]:
        """Help a member that waits for a block: idle members lose slots, or the waiting member reads by itself."""
        block = self._blocks.get(number)
        if block is None or member not in block.wants or (block.is_ready and not block.serves(member)):
            self._drop(member, number)
        elif block.is_missing and member in self._asking and not self._is_premature(number, block):
            self._make_room(member, number)
        return self._served()

    def heard(self, member: int) -> None:
        """Note that a member is alive; blocks are lent to it again."""
        self._silent.discard(member)

    def silent(self, member: int) -> list[Letter]:
        """Note that a member does not answer. Others read its blocks into other slots, because it may still write."""
        self._silent.add(member)
        self._late.add(member)
        for number, block in self._lent_to(member):
            assert block.slot is not None
            self._abandoned[block.slot] = member, block.hull
            self._is_missing(number, block)
        return self._served()

    def leave(self, member: int) -> list[Letter]:
        """Remove a member that neither reads nor writes any more."""
        self._asking = deque(each for each in self._asking if each != member)
        for number, block in self._lent_to(member):
            self._free_slot(number, block)
        for slot in [slot for slot, (writer, _) in self._abandoned.items() if writer == member]:
            del self._abandoned[slot]
            self._free.append(slot)
        for number, block in list(self._blocks.items()):
            self._unwant(member, number, block)
        self._silent.discard(member)
        self._late.discard(member)
        self._next.pop(member, None)
        return self._served()

    def reader_of(self, number: int) -> int | None:
        """Return the member that reads a block; None if nobody does."""
        block = self._blocks.get(number)
        return block.reader if block else None

    def members_who_read(self) -> set[int]:
        """Return the members that are reading blocks for the meeting."""
        return {block.reader for block in self._blocks.values() if block.reader is not None}

    def _lent_to(self, member: int) -> list[tuple[int, Block]]:
        return [(number, block) for number, block in self._blocks.items() if block.reader == member]

    def _served(self) -> list[Letter]:
        """Lend what can be lent, and return the letters of this event."""
        for member in dict.fromkeys(self._asking):
            while member in self._asking and (grants := self._lend(member)):
                self._asking.remove(member)
                self._letters.append((member, "grant", grants))
        letters, self._letters = self._letters, []
        return letters

    def _lend(self, member: int) -> list[Grant]:
        grants: list[Grant] = []
        if member in self._silent:
            return grants
        heap = self._next.get(member, [])
        # The blocks that are being read take half of the slots; ready blocks take the others.
        readers = READERS * max(len(self._next), self._expected)
        most = max(1, min(self._batch_blocks, len(self.generations) // (2 * readers)))
        while heap and len(grants) < most:
            number = heap[0]
            block = self._blocks.get(number)
            if block is None or member not in block.wants or not block.is_missing:
                heapq.heappop(heap)
                continue
            slot = None if self._is_premature(number, block) else self._slot(member)
            if slot is None:
                break
            heapq.heappop(heap)
            block.hull = block.wanted
            block.slot, block.reader = slot, member
            grants.append((number, slot, *block.hull))
        return grants

    def _is_premature(self, number: int, block: Block) -> bool:
        """Whether members that are yet to come may want the rest of a block."""
        return self._awaits_others and self._takes_parts and block.wanted != self._whole(number)

    def _slot(self, member: int) -> int | None:
        """Find a slot for a member; if none is free, take the slot of a ready block that no member waits for."""
        if not self._free:
            number = next((each for each in self._ready if self._is_idle(self._blocks[each], member)), None)
            if number is None:
                return None
            self._evict(number)
        slot = self._free.pop()
        self.generations[slot] += 1
        return slot

    def _is_idle(self, block: Block, reader: int) -> bool:
        if not block.wants:
            return not self._awaits_others
        return reader not in block.wants and self._late.issuperset(block.wants)

    def _make_room(self, member: int, number: int) -> None:
        """Free a slot for a member in need: the slot of the oldest ready block that the member does not wait for."""
        for each in self._ready:
            wants = self._blocks[each].wants
            if member not in wants:
                self._late.update(wants)
                self._evict(each)
                return
        if all(block.is_ready or block.is_missing for block in self._blocks.values()):
            self._drop_up_to_ready(member, number)

    def _drop_up_to_ready(self, member: int, number: int) -> None:
        """Let a member read the blocks past the meeting that lie before the next one that is ready for it.

        All slots hold later blocks of this member, and nothing else is read. The member frees no slot before it has
        read up to these blocks, so it is told all of them at once: it waits for each that it is not told.
        """
        own = [each for each in self._ready if each > number and member in self._blocks[each].wants]
        for each in [each for each in range(number, min(own, default=number + 1)) if each in self._blocks]:
            if member in self._blocks[each].wants and self._blocks[each].is_missing:
                self._drop(member, each)

    def _evict(self, number: int) -> None:
        """Free the slot of a ready block; members that the block would have served read it from the storage."""
        block = self._blocks[number]
        for member in [each for each in block.wants if block.serves(each)]:
            self._drop(member, number)
        if number in self._ready:
            self._free_slot(number, block)

    def _drop(self, member: int, number: int) -> None:
        self._letters.append((member, "dropped", [number]))
        block = self._blocks.get(number)
        if block is not None:
            self._unwant(member, number, block)

    def _unwant(self, member: int, number: int, block: Block) -> None:
        block.wants.pop(member, None)
        if block.is_ready and block.wants and not any(map(block.serves, block.wants)):
            self._free_slot(number, block)  # the others want more of the block than was read
        elif block.is_missing and not block.wants:
            self._blocks.pop(number, None)

    def _has_arrived(self, number: int, block: Block) -> None:
        block.reader = None
        self._ready[number] = None
        served = [member for member in block.wants if block.serves(member)]
        for member in served:
            self._letters.append((member, "ready", [self._told(number)]))
        if not served and block.wants:
            self._free_slot(number, block)

    def _told(self, number: int) -> Ready:
        block = self._blocks[number]
        assert block.slot is not None
        return number, block.slot, *block.hull, self.generations[block.slot]

    def _free_slot(self, number: int, block: Block) -> None:
        assert block.slot is not None
        self._free.append(block.slot)
        self._ready.pop(number, None)
        self._is_missing(number, block)

    def _is_missing(self, number: int, block: Block) -> None:
        """Let the members that want the block read it."""
        block.slot = block.reader = None
        for member in block.wants:
            heapq.heappush(self._next[member], number)
        if not block.wants:
            self._blocks.pop(number, None)
