"""Why no names match: the target's, or the checkpoint's, begin with something that the other's lack. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice

__all__ = ["prefix_hint"]

LOOKED_AT = 1000  # names; all begin alike
COMPILED = "_orig_mod"  # what torch.compile puts before the names of the module it wraps


def prefix_hint(stored: Collection[str], targets: Collection[str]) -> str | None:
    """Say which prefix stands between the names of a checkpoint and those of its targets; None where none does.

    Example:
        >>> prefix_hint({"layer.weight"}, {"model.layer.weight"})
        "The target's names begin with 'model.': load into its submodule, or give a mapping of names as stored"
    """
    more = _prefix(targets, stored)
    if more == COMPILED:
        return "The target is a compiled module: load into its attribute _orig_mod, before or after it is compiled"
    if more is not None:
        return f"The target's names begin with '{more}.': load into its submodule, or give a mapping of names as stored"
    fewer = _prefix(stored, targets)
    if fewer is not None:
        return f"The checkpoint's names begin with '{fewer}.': give a mapping of such names to the target's tensors"
    return None


def _prefix(longer: Iterable[str], shorter: Collection[str]) -> str | None:
    """The prefix that most of the longer names have, if the rest of each is one of the shorter names."""
    known = set(shorter)
    looked_at = list(islice(longer, LOOKED_AT))
    counts: Counter[str] = Counter()
    for name in looked_at:
        prefix, _, rest = name.partition(".")
        while rest:
            if rest in known:
                counts[prefix] += 1
                break
            head, _, rest = rest.partition(".")
            prefix = f"{prefix}.{head}"
    if not counts:
        return None
    prefix, count = counts.most_common(1)[0]
    return prefix if 2 * count > len(looked_at) else None
