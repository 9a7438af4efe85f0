"""Which shard counts for a tensor that several shards hold: the one that an index names, within its own checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamer.core.errors import FormatError

__all__ = ["NO_INDEX", "ShardChoice", "twin"]


@dataclass(frozen=True)
class ShardChoice:
    """The indexes of one checkpoint, or of several that are loaded together.

    An index says nothing of the shards of another checkpoint: a tensor that both hold has two values.

    Attributes:
        shard_of: Tensor name to the number of its shard; None without an index.
        checkpoint_of: For each shard, the number of its checkpoint; empty if there is only one.
    """

    shard_of: Mapping[str, int] | None = None
    checkpoint_of: Sequence[int] = ()

    def overrules(self, name: str, shard: int) -> bool:
        """Tell whether the index takes a tensor of this shard from another shard of the same checkpoint."""
        chosen = (self.shard_of or {}).get(name, shard)
        if chosen == shard:
            return False
        return not self.checkpoint_of or self.checkpoint_of[chosen] == self.checkpoint_of[shard]


NO_INDEX = ShardChoice()


def twin(name: str, first: str, second: str) -> FormatError:
    """Make the error for a tensor that two shards hold, by their URLs."""
    if first == second:
        return FormatError("the same shard is named twice", uri=first, hint="Name each file once")
    return FormatError(
        f"tensor {name[:80]!r} is in two shards: {first} and {second}",
        hint="Name one file, or the *.safetensors.index.json that says which shard counts",
    )
