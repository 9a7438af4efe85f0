"""Pairs the names of a checkpoint with those of its targets, and says what stays alone on either side.

Refuses, when it is strict, a name without its partner; and always a checkpoint none of whose names has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from streamer.core.checkpoint.near_names import prefix_hint
from streamer.core.checkpoint.renaming import Renaming
from streamer.core.errors import TargetError

__all__ = ["PairedNames", "pair_names"]

NAMED = 5  # names shown in a message


@dataclass(frozen=True)
class PairedNames:
    """Which tensor of a checkpoint goes to which target.

    Attributes:
        targets: Name in the checkpoint to name of the target, in the checkpoint's order.
        missing: Targets for which the checkpoint has no tensor. One of several tied targets is enough; those whose
            tensor the caller left out are not among them.
        unexpected: Tensors of those chosen, by their names in the checkpoint, for which there is no target.
    """

    targets: Mapping[str, str]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def pair_names(
    chosen: Sequence[str], held: Sequence[str], tensors: Mapping[str, Any], renaming: Renaming, *, strict: bool
) -> PairedNames:
    """Pair names.

    Args:
        chosen: The names in the checkpoint that the caller wants.
        held: All names in the checkpoint.
        tensors: The targets by name.
        renaming: What the checkpoint's tensors are called among the targets.
        strict: Each has a partner.

    Raises:
        TargetError: names do not match (`strict`), none does, or two tensors would go to one target.
        UnknownTensorError: the renaming is of names that the checkpoint does not hold.
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
        raise _alone(names, called, tensors)
    if called and not paired:
        raise TargetError(
            f"the checkpoint holds no tensor of the target's: it holds {_some(sorted(called.values()))}",
            hint=_near(called, tensors)
            or f"The target has {_some(sorted(map(str, tensors))) or 'no tensors'}; see rename=",
        )
    return names


def _as_they_are(missing: Sequence[str], tensors: Mapping[str, Any]) -> str:
    """Say what to do about targets that the checkpoint lacks, and that have no other name there."""
    lacking = set(missing)  # as texts; the target's own names may be of other types
    if any(str(name) in lacking and getattr(tensor, "is_meta", False) for name, tensor in tensors.items()):
        # accelerate's init_empty_weights makes two parameters of one that a module has under two names.
        return "Tie them first if they are others of the target (its tie_weights()); strict=False leaves them empty"
    return "Pass strict=False to leave them as they are"


def _alone(names: PairedNames, called: Mapping[str, str], tensors: Mapping[str, Any]) -> TargetError:
    near = _near(called, tensors)
    shown = [name if called[name] == name else f"{name} as {called[name]}" for name in names.unexpected]
    if names.missing:
        held = f"It holds {_some(sorted(shown))}, which the target lacks"
        pairs = (
            "rename= pairs one with one; of others, as of fused experts, streamer.transformers.from_pretrained knows"
        )
        both = f"{held}: {'rename= pairs them' if len(shown) == len(names.missing) else pairs}" if shown else None
        return TargetError(
            f"the checkpoint lacks {len(names.missing)} of the target's tensors: {_some(names.missing)}",
            hint=near or both or _as_they_are(names.missing, tensors),
        )
    return TargetError(
        f"the target lacks {len(shown)} of the checkpoint's tensors: {_some(sorted(shown))}",
        hint=near or "Pass strict=False to skip them, or choose with names=",
    )


def _near(called: Mapping[str, str], tensors: Mapping[str, Any]) -> str | None:
    return prefix_hint(set(called.values()), [name for name in tensors if isinstance(name, str)])


def _missing(tensors: Mapping[str, Any], known: set[str]) -> tuple[str, ...]:
    missing = [name for name in tensors if name not in known]
    if missing:  # one of several tied tensors is enough
        filled = {_storage(tensors[name]) for name in known if name in tensors}
        missing = [name for name in missing if _storage(tensors[name]) not in filled]
    return tuple(map(str, missing))


def _storage(tensor: Any) -> object:
    """Identify the memory that two tied tensors have in common."""
    with suppress(Exception):  # a target that is no plain tensor is refused later, where it would be filled
        if hasattr(tensor, "untyped_storage") and str(tensor.layout) == "torch.strided" and not tensor.is_meta:
            storage = tensor.untyped_storage().data_ptr()
            if storage:  # that of an empty tensor, or of a distributed one, tells nothing
                return (str(tensor.device), storage, tensor.storage_offset(), tuple(tensor.shape))
    return id(tensor)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(repr(str(name)[:80]) for name in listed[:NAMED])
    return shown + (", …" if len(listed) > NAMED else "")
