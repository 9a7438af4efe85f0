"""Finds tensors that share memory, and chooses which of them a file keeps.

Guarantees: tensors share memory if they have a byte in common; a tensor is left out only if the one that is kept covers
all of its bytes. What ``safetensors.torch.save_model`` accepts is written as it writes it.
https://huggingface.co/docs/safetensors/torch_shared_tensors
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

from streamer.core.errors import UsageError
from streamer.core.quoting import quoted
from streamer.core.tensors.memory_ranges import Elements, MemoryRanges

__all__ = ["SharedGroup", "names_to_drop", "refuse_shared", "shared_groups"]


class SharedGroup(NamedTuple):
    """Tensors that share memory, directly or through others.

    Attributes:
        names: Their names, sorted.
        complete: The names of those that cover all bytes of the group, sorted; first those that show no byte twice.
    """

    names: list[str]
    complete: list[str]


def shared_groups(tensors: Mapping[str, Any]) -> list[SharedGroup]:
    """Return the groups of tensors that share memory."""
    spans = sorted((*Elements.of(tensor).span(), name) for name, tensor in tensors.items())
    groups: list[SharedGroup] = []
    run: list[str] = []
    on, reach = "", 0
    for device, begin, end, name in spans:
        if begin == end:
            continue
        if run and (device != on or begin >= reach):
            groups += _groups_of(run, tensors)
            run = []
        reach = max(reach, end) if run else end
        on = device
        run.append(name)
    return sorted([*groups, *_groups_of(run, tensors)])


def names_to_drop(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Choose the tensors to leave out because another one holds their memory; return dropped name to kept name."""
    dropped: dict[str, str] = {}
    for names, complete in shared_groups(tensors):
        if not complete:
            raise UsageError(
                f"the tensors {_listed(names)} share memory, and none of them covers it all",
                hint="Save clones of them, which have memory of their own: {name: tensor.clone()}",
            )
        dropped |= {name: complete[0] for name in names if name != complete[0]}
    for name in tensors.keys() - dropped.keys():
        if Elements.of(tensors[name]).meet():
            raise UsageError(
                f"tensor {quoted(name)} shows the same memory in several elements, and so could not be filled again",
                hint="Give the module its clone(); or use save, which writes each element",
            )
    return dropped


def refuse_shared(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that share memory: each would be written in full, and would be separate when loaded again."""
    groups = shared_groups(tensors)
    if groups:
        shared = [tensors[name] for group in groups for name in group.names]
        is_torch = all(hasattr(each, "data_ptr") for each in shared)
        what, copied = ("tensors", "tensor.clone()") if is_torch else ("arrays", "array.copy()")
        hint = f"ive copies of them, which have memory of their own: {{name: {copied}}}"
        has_way = is_torch and all(group.complete for group in groups)
        hint = f"save_model writes one of each group; or g{hint}" if has_way else f"G{hint}"
        raise UsageError(f"{what} share memory: {'; '.join(_listed(group.names) for group in groups)}", hint=hint)


def _groups_of(run: list[str], tensors: Mapping[str, Any]) -> list[SharedGroup]:
    """Divide tensors whose spans overlap: the columns of a matrix share no byte."""
    if len(run) < 2:
        return []
    ranges = {name: _ranges_of(name, tensors[name]) for name in run}
    groups: list[tuple[list[str], MemoryRanges]] = []
    for name, own in ranges.items():
        met = [group for group in groups if group[1].meets(own)]
        groups = [group for group in groups if not group[1].meets(own)]
        names = [name, *(each for group in met for each in group[0])]
        groups.append((names, reduce(MemoryRanges.joined, (group[1] for group in met), own)))
    found = []
    for names, joined in groups:
        complete = sorted(name for name in names if ranges[name].size_bytes == joined.size_bytes)
        complete.sort(key=lambda name: Elements.of(tensors[name]).meet())
        found.append(SharedGroup(sorted(names), complete))
    return [group for group in found if len(group.names) > 1]


def _ranges_of(name: str, tensor: Any) -> MemoryRanges:
    ranges = Elements.of(tensor).ranges()
    if ranges is None:
        hint = "Give its clone(), or its copy()"
        raise UsageError(f"tensor {quoted(name)} is in too many pieces to see which memory it shares", hint=hint)
    return ranges


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(quoted, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
