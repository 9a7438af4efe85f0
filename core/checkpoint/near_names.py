"""Explains why no names match: the target's or the checkpoint's names have one prefix more. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice

__all__ = ["prefix_hint"]

MOST_COMPARED = 1000  # names; the names of one model usually begin alike
COMPILED = "_orig_mod"  # the prefix that torch.compile adds to the names of the module it wraps
WRAPPERS = (COMPILED, "module", "_checkpoint_wrapped_module")  # prefixes of torch's wrappers


def prefix_hint(stored: Collection[str], targets: Collection[str]) -> str | None:
    """Return a hint at the prefix that only the checkpoint's names or only the targets' names have; None without one.

    Example:
        >>> prefix_hint({"layer.weight"}, {"model.layer.weight"})
        "The target's names begin with 'model.': load into its submodule, or pass rename={'': 'model'}"
        >>> prefix_hint({"model.layer.weight"}, {"layer.weight"})
        "The checkpoint's names begin with 'model.': pass prefix='model.'"
    """
    more = _prefix(targets, stored)
    if more == COMPILED:
        return "The target is a compiled module: load into its attribute _orig_mod, before or after it is compiled"
    if more is not None:
        return f"The target's names begin with '{more}.': load into its submodule, or pass rename={{'': '{more}'}}"
    fewer = _prefix(stored, targets)
    if fewer is not None:
        return f"The checkpoint's names begin with '{fewer}.': pass prefix='{fewer}.'"
    return _wrapped_hint(set(stored), targets)


def _wrapped_hint(stored: Collection[str], targets: Iterable[str]) -> str | None:
    """Return a hint if modules inside the target are wrapped, which adds a part to their names."""
    for name in islice(targets, MOST_COMPARED):
        parts = name.split(".")
        wrapper = next((part for part in WRAPPERS if part in parts), None)
        if wrapper and name not in stored and ".".join(part for part in parts if part != wrapper) in stored:
            what = "compiled" if wrapper == COMPILED else "wrapped"
            return f"Modules inside of the target are {what} ('{wrapper}' in their names): load before this step"
    return None


def _prefix(longer: Iterable[str], shorter: Collection[str]) -> str | None:
    """Return the prefix that turns most of the longer names into one of the shorter names; None if there is none."""
    short_names = set(shorter)
    compared = list(islice(longer, MOST_COMPARED))
    counts: Counter[str] = Counter()
    for name in compared:
        prefix, _, rest = name.partition(".")
        while rest:
            if rest in short_names:
                counts[prefix] += 1
                break
            head, _, rest = rest.partition(".")
            prefix = f"{prefix}.{head}"
    if not counts:
        return None
    prefix, count = counts.most_common(1)[0]
    return prefix if 2 * count > len(compared) else None
