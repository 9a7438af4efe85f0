"""Why no names match: the target's, or the checkpoint's, begin with something that the other's lack. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice

__all__ = ["prefix_hint"]

LOOKED_AT = 1000  # names; all begin alike
COMPILED = "_orig_mod"  # what torch.compile puts before the names of the module it wraps
WRAPPERS = (COMPILED, "module", "_checkpoint_wrapped_module")  # and others of torch's


def prefix_hint(stored: Collection[str], targets: Collection[str]) -> str | None:
    """Say which prefix stands between the names of a checkpoint and those of its targets; None where none does.

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
    """Say that modules inside of the target are wrapped, so that their names have another part."""
    for name in islice(targets, LOOKED_AT):
        parts = name.split(".")
        wrapper = next((part for part in WRAPPERS if part in parts), None)
        if wrapper and name not in stored and ".".join(part for part in parts if part != wrapper) in stored:
            what = "compiled" if wrapper == COMPILED else "wrapped"
            return f"Modules inside of the target are {what} ('{wrapper}' in their names): load before they are"
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
