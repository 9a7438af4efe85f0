"""One block in the book of a meeting: who wants it, and where it lies. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamer._node.grid import Hull

__all__ = ["Block"]


@dataclass
class Block:
    """A block that somebody wants or that lies in a slot.

    Attributes:
        wants: By member, what it wants and has not taken.
        slot: Where it lies, or will; None as long as nobody reads it.
        reader: The member that reads it; None if it is not read yet, or ready.
        hull: What is read of it.
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
        """The shortest range that has all that is wanted."""
        return min(begin for begin, _ in self.wants.values()), max(end for _, end in self.wants.values())

    def serves(self, member: int) -> bool:
        """Whether its bytes, once ready, are all that the member wants of it."""
        want = self.wants.get(member)
        return want is not None and self.hull[0] <= want[0] and want[1] <= self.hull[1]
