"""Which part of each tensor a caller asks for: ``slices=`` by pattern, function, model's plan, or placements.

Guarantees: a pattern that decides about no tensor is an error, never a silently larger result; every part is checked
against its tensor's shape before a byte of data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.parallel_plans import Placements, TensorParallel
from streamer.core.checkpoint.selection import select
from streamer.core.checkpoint.tensor_parts import Slice, cut_out
from streamer.core.errors import StreamerError, UsageError
from streamer.core.quoting import quoted

SlicesOption: TypeAlias = (
    Mapping[str, Slice | None]
    | Callable[[str, tuple[int, ...], str], Slice | None]
    | TensorParallel
    | Placements
    | None
)
_Rule: TypeAlias = Callable[[str, tuple[int, ...], str], Any]


def checked_slices(slices: SlicesOption) -> SlicesOption:
    """Check the argument ``slices``; return a mapping as a dict of its own."""
    if (
        slices is None
        or isinstance(slices, (TensorParallel, Placements))
        or (callable(slices) and not isinstance(slices, type))
    ):
        return slices
    if not isinstance(slices, Mapping):
        what = "a mapping of patterns to Slice, a callable, a TensorParallel or Placements"
        hint = 'For all tensors: {"*": Slice(…)}' if isinstance(slices, Slice) else None
        raise UsageError(f"slices must be None, {what}, not {type(slices).__name__}", hint=hint)
    for pattern, part in slices.items():
        if not isinstance(pattern, str):
            raise UsageError(f"slices must have strings as keys, not {type(pattern).__name__}")
        _check_part(part, f"for pattern {quoted(pattern)}")
    return dict(slices)


def sliced(
    wanted: Sequence[ShardTensor], slices: SlicesOption, available: Sequence[str], uri: str | None = None
) -> list[ShardTensor]:
    """Narrow tensors to the parts that are asked for."""
    if slices is None:
        return list(wanted)
    try:
        rule = rule_of(slices, available)
        if isinstance(slices, Placements):
            return [_placed(each, slices, rule) for each in wanted]
        parts = [(each, asked(rule, each.entry.name, each.entry.shape, each.entry.dtype)) for each in wanted]
        return [each if part is None else part.of(each) for each, part in parts]
    except StreamerError as error:
        error.uri = error.uri or uri
        raise


def rule_of(slices: Any, available: Sequence[str]) -> _Rule:
    """Return a function that says which part of a tensor is meant, from its name, shape and dtype."""
    if isinstance(slices, TensorParallel):
        slices.check_fits(available)
        return lambda name, shape, _dtype: slices.slice_of(name, shape)
    patterns = slices.placements if isinstance(slices, Placements) else slices
    return _rule_of_patterns(patterns, available) if isinstance(patterns, Mapping) else patterns


def _rule_of_patterns(slices: Mapping[str, Any], available: Sequence[str]) -> _Rule:
    parts: dict[str, Any] = {}
    for pattern, part in slices.items():
        matched = select(pattern, available) or set()
        if matched <= parts.keys():
            raise UsageError(
                f"pattern {quoted(pattern)} of slices= decides about no tensor: earlier ones match all of its names",
                hint="The first pattern that matches a name counts: put it before the more general ones",
            )
        parts = {**dict.fromkeys(matched, part), **parts}
    return lambda name, _shape, _dtype: parts.get(name)


def asked(rule: _Rule, name: str, shape: tuple[int, ...], dtype: str) -> Slice | None:
    """Ask a rule for a `Slice`, and check the answer."""
    try:
        part: Slice | None = rule(name, shape, dtype)
    except StreamerError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
        raise UsageError(f"slices= raised for tensor {quoted(name)} of {list(shape)}: {said}") from error
    _check_part(part, f"for tensor {quoted(name)}")
    return part


def _placed(whole: ShardTensor, placements: Placements, rule: _Rule) -> ShardTensor:
    entry = whole.entry
    packed = 2 if entry.dtype == "F4" and entry.shape and not entry.shape[-1] % 2 else 1  # as torch has them
    shape = (*entry.shape[:-1], entry.shape[-1] // packed) if packed > 1 else entry.shape
    layout = placements.layout(entry.name, rule(entry.name, entry.shape, entry.dtype), shape)
    if layout is None:
        return whole
    box = list(layout.box)
    if packed > 1:
        box[-1] = slice(box[-1].start * packed, box[-1].stop * packed)
    read, cut = cut_out(entry, box)
    return ShardTensor(whole.shard, read, cut, layout)


def _check_part(part: Any, where: str) -> None:
    if part is not None and not isinstance(part, Slice):
        raise UsageError(
            f"slices must give a streamer.Slice or None {where}, not {type(part).__name__}",
            hint="Slice(dim=0, index=rank, count=ranks); None loads the whole tensor",
        )
