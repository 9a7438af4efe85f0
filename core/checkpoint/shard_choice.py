"""Chooses the shard that counts for a tensor in several shards: the shard that the index of their checkpoint names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from streamer.core.errors import FormatError
from streamer.core.quoting import names_text

__all__ = ["NO_INDEX", "ShardChoice", "duplicate_tensor"]


@dataclass(frozen=True)
class ShardChoice:
    """The indexes of one checkpoint, or of several that are loaded together.

    An index does not decide about shards of another checkpoint: a tensor in both checkpoints is refused.

    Attributes:
        shard_of: Tensor name to the number of its shard; None without an index.
        checkpoint_of: For each shard, the number of its checkpoint; empty if there is only one.
    """

    shard_of: Mapping[str, int] | None = None
    checkpoint_of: Sequence[int] = ()

    def overrules(self, name: str, shard: int) -> bool:
        """Say whether the index takes this tensor from another shard of the same checkpoint."""
        chosen = (self.shard_of or {}).get(name, shard)
        if chosen == shard:
            return False
        return not self.checkpoint_of or self.checkpoint_of[chosen] == self.checkpoint_of[shard]

    def remarks_on(self, tensors: Iterable[tuple[str, int]]) -> tuple[str, ...]:
        """Return a remark if a checkpoint with an index has tensors that its index does not name."""
        if self.shard_of is None:
            return ()
        indexed = {self.checkpoint_of[shard] for shard in self.shard_of.values()} if self.checkpoint_of else {0}
        more = [
            name
            for name, shard in tensors
            if name not in self.shard_of and (not self.checkpoint_of or self.checkpoint_of[shard] in indexed)
        ]
        return (f"the index does not name {names_text(more, 3)}, which its shards hold",) if more else ()


NO_INDEX = ShardChoice()


def duplicate_tensor(name: str, first: str, second: str) -> FormatError:
    """Return the error for a tensor that two shards hold; `first` and `second` are their URLs."""
    if first == second:
        return FormatError("the same shard is named twice", uri=first, hint="Name each file once")
    return FormatError(
        f"tensor {name[:80]!r} is in two shards: {first} and {second}",
        hint="Name one file, or the *.index.json that says which shard counts",
    )
