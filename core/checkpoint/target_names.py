"""The names of a checkpoint's tensors in a target: renamed, paired with its names, and why they do not fit.

A prefix is removed, then modules are renamed. Pure.

Refuses a prefix that no name begins with, a key of `rename` that matches no name, and the same new name for two
tensors: each would fill fewer targets than the caller expects. Refuses a name without a partner if `strict`, and in any
case a checkpoint without a single pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from streamer.core.errors import TargetError, UnknownTensorError, UsageError
from streamer.core.quoting import quoted
from streamer.core.tensors.named_targets import is_extra_state
from streamer.core.tensors.shared_memory import covered_names

RenameOption: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None] | None

SHOWN = 5  # names shown in a message


class Renaming:
    """The arguments ``prefix`` and ``rename`` of `streamer.load_into`.

    Example:
        >>> renaming = Renaming("model", {"layers": "blocks", "norm": None})
        >>> renaming.name_of("model.layers.0.weight")
        'blocks.0.weight'
        >>> [renaming.name_of(name) for name in ("model.norm.weight", "lm_head.weight")]
        [None, None]
        >>> Renaming(None, {"": "module"}).name_of("layers.0.weight")
        'module.layers.0.weight'
    """

    def __init__(self, prefix: str | None = None, rename: RenameOption = None) -> None:
        if prefix is not None and not isinstance(prefix, str):
            raise UsageError(f"prefix is text that names begin with, or None, not {type(prefix).__name__}")
        self._prefix = f"{prefix.rstrip('.')}." if prefix else ""
        self._callable = rename if callable(rename) else None
        self._new_by_key: dict[str, str | None] = {}
        if rename is not None and self._callable is None:
            self._new_by_key = _checked(rename)

    @property
    def changes_nothing(self) -> bool:
        """Whether every name stays as it is."""
        return not self._prefix and self._callable is None and not self._new_by_key

    def name_of(self, stored: str) -> str | None:
        """Return the name that a tensor of the checkpoint has in the target; None if it is left out."""
        if not stored.startswith(self._prefix):
            return None
        name = stored[len(self._prefix) :]
        new = self._callable(name) if self._callable is not None else self._mapped(name)
        if new is not None and not isinstance(new, str):
            raise UsageError(f"rename returned {type(new).__name__} for {quoted(name)}: a new name is text, or None")
        if new == "":
            raise UsageError(f"nothing is left of the name {quoted(stored)}", hint="Give it a new one with rename=")
        return new

    def names_of(self, stored: Iterable[str]) -> dict[str, str]:
        """Return stored name to new name, without the tensors that are left out."""
        renamed: dict[str, str] = {}
        first: dict[str, str] = {}
        for name in stored:
            new = self.name_of(name)
            if new is None:
                continue
            other = first.setdefault(new, name)
            if other != name:
                raise TargetError(
                    f"the tensors {quoted(other)} and {quoted(name)} of the checkpoint would both be {quoted(new)}",
                    hint="Leave one out: rename it to None, or choose with names=",
                )
            renamed[name] = new
        return renamed

    def check_fits(self, held: Collection[str]) -> None:
        """Check that the checkpoint has names for the prefix and for each key."""
        inside = [name[len(self._prefix) :] for name in held if name.startswith(self._prefix)]
        if held and not inside:
            roots = list(dict.fromkeys(name.partition(".")[0] for name in held))
            begin = ", ".join(map(quoted, roots[:SHOWN])) + (", …" if len(roots) > SHOWN else "")
            raise UnknownTensorError(
                f"no name in the checkpoint begins with the prefix {quoted(self._prefix)}: they begin with {begin}",
                hint=f"rename={{'': {self._prefix[:-1][:80]!r}}} puts it before them, where the target's names have it",
            )
        unused = set(self._new_by_key) - {""} - {self._key_of(name) for name in inside}
        if held and unused:
            key = min(unused)
            is_twice = bool(self._prefix) and f"{key}.".startswith(self._prefix)
            raise UnknownTensorError(
                f"rename has {quoted(key)}, but the checkpoint has no tensor or module of this name",
                hint=f"prefix= has taken {quoted(self._prefix)} off before" if is_twice else "Check its spelling",
            )

    def _mapped(self, name: str) -> str | None:
        key = self._key_of(name)
        if key is None:
            return name
        new = self._new_by_key[key]
        if new is None:
            return None
        return ".".join(part for part in (new, name[len(key) :].removeprefix(".")) if part)

    def _key_of(self, name: str) -> str | None:
        if not self._new_by_key:
            return None
        key = name
        while key and key not in self._new_by_key:
            key = key.rpartition(".")[0]
        return key if key in self._new_by_key else None


def _checked(rename: object) -> dict[str, str | None]:
    if not isinstance(rename, Mapping):
        raise UsageError(f"rename is a mapping of names, a function of a name, or None, not {type(rename).__name__}")
    for key, new in rename.items():
        if not isinstance(key, str) or not (new is None or isinstance(new, str)):
            wrong = new if isinstance(key, str) else key
            raise UsageError(f"rename maps a name to a new name, or to None to drop it, not {type(wrong).__name__}")
    return {key.rstrip("."): new if new is None else new.rstrip(".") for key, new in rename.items()}


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
                counts[prefix] += bool(prefix)  # a name may begin with the dot
                break
            head, _, rest = rest.partition(".")
            prefix = f"{prefix}.{head}"
    if not counts:
        return None
    prefix, count = counts.most_common(1)[0]
    return prefix if 2 * count > len(compared) and prefix else None


MOST_SHOWN = 5  # names shown in a message


@dataclass(frozen=True)
class PairedNames:
    """The pairs of a checkpoint's tensors and their targets."""

    targets: Mapping[str, str]  # name in the checkpoint to name of the target, in the checkpoint's order
    # Targets for which the checkpoint has no tensor. A target needs none if others fill all its memory. Targets whose
    # tensor the caller left out do not count.
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()  # chosen tensors without a target, by their names in the checkpoint


def pair_names(
    chosen: Sequence[str], held: Sequence[str], tensors: Mapping[str, Any], renaming: Renaming, *, strict: bool
) -> PairedNames:
    """Pair the names of a checkpoint's tensors with those of the targets."""
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
