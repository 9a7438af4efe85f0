"""One block in the book of a meeting: who wants it, and where it lies. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamer._node.grid import Hull

__all__ = ["Block"]


@dataclass
class Block:
    """A block that somebody wants or that lies in a slot.

    Attributes:
        wants: By member, the range that the member wants and has not taken.
        slot: Slot that holds the block, or will; None as long as no member reads the block.
        reader: The member that reads the block now; None if no member has begun, or the block is ready.
        hull: Range of the block that is read.
    """

    wants: dict[int, Hull] = field(default_factory=dict)
    slot: int | None = None
    reader: int | None = None
    hull: Hull = (0, 0)

    @property
    def is_missing(self) -> bool:
        return self.slot is None

    @property
    def is_ready(self) -> bool:
        return self.slot is not None and self.reader is None

    @property
    def wanted(self) -> Hull:
        """The shortest range that contains all wanted bytes."""
        return min(begin for begin, _ in self.wants.values()), max(end for _, end in self.wants.values())

    def serves(self, member: int) -> bool:
        """Whether the bytes that are read contain all that the member wants of the block."""
        want = self.wants.get(member)
        return want is not None and self.hull[0] <= want[0] and want[1] <= self.hull[1]
