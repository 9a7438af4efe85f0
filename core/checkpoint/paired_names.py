"""Pairs the names of a checkpoint with those of its targets, and reports names without a partner.

Refuses a name without a partner if `strict`, and in any case a checkpoint without a single pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from streamer.core.checkpoint.near_names import prefix_hint
from streamer.core.checkpoint.renaming import Renaming
from streamer.core.errors import TargetError
from streamer.core.tensors.memory_ranges import covered_names
from streamer.core.tensors.named_targets import is_extra_state

__all__ = ["PairedNames", "pair_names"]

MOST_SHOWN = 5  # names shown in a message


@dataclass(frozen=True)
class PairedNames:
    """The pairs of a checkpoint's tensors and their targets.

    Attributes:
        targets: Name in the checkpoint to name of the target, in the checkpoint's order.
        missing: Targets for which the checkpoint has no tensor. A target needs none if others fill all its memory.
            Targets whose tensor the caller left out do not count.
        unexpected: Chosen tensors without a target, by their names in the checkpoint.
    """

    targets: Mapping[str, str]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def pair_names(
    chosen: Sequence[str], held: Sequence[str], tensors: Mapping[str, Any], renaming: Renaming, *, strict: bool
) -> PairedNames:
    """Pair the names of a checkpoint's tensors with those of the targets.

    Args:
        chosen: The names in the checkpoint that the caller wants.
        held: All names in the checkpoint.
        tensors: The targets by name.
        renaming: What the checkpoint's tensors are called among the targets.
        strict: Refuse a name without a partner.

    Raises:
        TargetError: names do not match (`strict`), no name matches, or two tensors would go to one target.
        UnknownTensorError: the renaming has names that the checkpoint does not hold.
    """
    renaming.check_fits(held)
    called = dict(zip(chosen, chosen, strict=True)) if renaming.changes_nothing else renaming.names_of(chosen)
    paired = {stored: name for stored, name in called.items() if name in tensors}
    left_out = set(held).difference(chosen) if len(held) > len(chosen) else set()
    names = PairedNames(
        paired,
        _missing(tensors, {*paired.values(), *filter(None, map(renaming.name_of, left_out))}),
        tuple(stored for stored in called if stored not in paired),
    )
    if strict and (names.missing or names.unexpected):
        raise _unpaired_error(names, called, tensors)
    if called and not paired:
        raise TargetError(
            f"the checkpoint holds no tensor of the target's: it holds {_first_few(sorted(called.values()))}",
            hint=_prefix_hint(called, tensors)
            or f"The target has {_first_few(sorted(map(str, tensors))) or 'no tensors'}; see rename=",
        )
    return names


def _hint_for_missing(missing: Sequence[str], tensors: Mapping[str, Any]) -> str:
    """Return the hint for targets that the checkpoint does not hold under any name."""
    lacking = set(missing)  # strings; the target's own names may be of other types
    if any(str(name) in lacking and getattr(tensor, "is_meta", False) for name, tensor in tensors.items()):
        # accelerate's init_empty_weights makes two parameters out of one parameter with two names.
        return "Tie them first (tie_weights()) if other parameters hold their values; strict=False leaves them empty"
    return "Pass strict=False to leave them as they are"


def _unpaired_error(names: PairedNames, called: Mapping[str, str], tensors: Mapping[str, Any]) -> TargetError:
    near = _prefix_hint(called, tensors)
    extra = [name for name in names.unexpected if is_extra_state(called[name])]
    others = [name for name in names.unexpected if name not in extra]
    shown = [name if called[name] == name else f"{name} as {called[name]}" for name in others]
    if names.missing:
        held = f"It holds {_first_few(sorted(shown))}, which the target lacks"
        pairs = "rename= pairs one with one; for fused experts and the like, use streamer.transformers.from_pretrained"
        both = f"{held}: {'rename= pairs them' if len(shown) == len(names.missing) else pairs}" if shown else None
        return TargetError(
            f"the checkpoint lacks {len(names.missing)} of the target's tensors: {_first_few(names.missing)}",
            hint=near or both or _hint_for_missing(names.missing, tensors),
        )
    if not shown:
        return TargetError(
            f"the checkpoint holds extra state of modules, which load_into leaves alone: {_first_few(sorted(extra))}",
            hint="Pass strict=False, and give the tensors that load(uri, names=…) returns to each set_extra_state()",
        )
    return TargetError(
        f"the target lacks {len(shown)} of the checkpoint's tensors: {_first_few(sorted(shown))}",
        hint=near or "Pass strict=False to skip them, or choose with names=",
    )


def _prefix_hint(called: Mapping[str, str], tensors: Mapping[str, Any]) -> str | None:
    return prefix_hint(set(called.values()), [name for name in tensors if isinstance(name, str)])


def _missing(tensors: Mapping[str, Any], named: set[str]) -> tuple[str, ...]:
    """Return the targets that get no value; a view of memory that other targets fill gets its values with theirs."""
    missing = [name for name in tensors if name not in named]
    if missing:
        with_memory = {name: tensor for name, tensor in tensors.items() if _has_memory(tensor)}
        filled = [with_memory[name] for name in named if name in with_memory]
        ids = {id(tensors[name]) for name in named if name in tensors}
        covered = covered_names([name for name in missing if name in with_memory], filled, with_memory)
        missing = [name for name in missing if name not in covered and id(tensors[name]) not in ids]
    return tuple(map(str, missing))


def _has_memory(tensor: Any) -> bool:
    with suppress(Exception):  # a target that is no plain tensor is refused later, before it is filled
        if not hasattr(tensor, "untyped_storage"):
            return hasattr(tensor, "__array_interface__")
        is_strided = str(tensor.layout) == "torch.strided" and not tensor.is_meta
        return is_strided and bool(tensor.untyped_storage().data_ptr())  # it is 0 for an empty tensor and a DTensor
    return False


def _first_few(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(repr(str(name)[:80]) for name in listed[:MOST_SHOWN])
    return shown + (", …" if len(listed) > MOST_SHOWN else "")
