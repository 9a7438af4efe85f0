"""Finds tensors that share memory, and chooses which of them a file keeps, as ``safetensors.torch`` does.

Guarantees: for contiguous tensors, the groups and the kept names are those of safetensors 0.8, which refuses others.
https://huggingface.co/docs/safetensors/torch_shared_tensors
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from streamer.core.errors import UsageError
from streamer.core.quoting import quoted

__all__ = ["names_to_drop", "refuse_shared", "refuse_shared_arrays", "shared_groups"]


def shared_groups(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Return the names of tensors with overlapping memory, in groups, sorted.

    Args:
        tensors: Tensors of torch that have memory.
    """
    by_storage: defaultdict[tuple[Any, int, int], list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.nbytes():
            by_storage[tensor.device, storage.data_ptr(), storage.nbytes()].append(name)
    groups = [group for names in by_storage.values() for group in _overlapping(names, tensors)]
    return sorted(sorted(group) for group in groups if len(group) > 1)


def names_to_drop(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Choose the tensors to leave out because another one holds their memory; return dropped name to kept name.

    Raises:
        UsageError: no tensor of a group covers the whole of the memory that they share.
    """
    dropped: dict[str, str] = {}
    for group in shared_groups(tensors):
        complete = [name for name in group if _is_complete(tensors[name])]
        if not complete:
            raise UsageError(
                f"the tensors {_listed(group)} share memory, and none of them covers it all",
                hint="Save clones of them, which have memory of their own: {name: tensor.clone()}",
            )
        dropped |= {name: complete[0] for name in group if name != complete[0]}
    return dropped


def refuse_shared(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that share memory: each would be written in full, and would be separate when loaded again.

    Raises:
        UsageError: two or more share memory; the message names them.
    """
    groups = shared_groups(tensors)
    if groups:
        hint = "save_model writes one of each group; or give clones of them, {name: tensor.clone()}"
        raise UsageError(f"tensors share memory: {'; '.join(map(_listed, groups))}", hint=hint)


def refuse_shared_arrays(arrays: Mapping[str, Any]) -> None:
    """Refuse numpy arrays that share memory, as `refuse_shared` does for tensors of torch.

    Raises:
        UsageError: two or more share memory; the message names them.
    """
    groups = sorted(sorted(group) for group in _grouped(_area_of(*each) for each in arrays.items()) if len(group) > 1)
    if groups:
        hint = "Give copies of them, which have memory of their own: {name: array.copy()}"
        raise UsageError(f"arrays share memory: {'; '.join(map(_listed, groups))}", hint=hint)


def _area_of(name: str, array: Any) -> tuple[int, int, str]:
    """Return where the memory of an array begins and ends; strides may be negative."""
    begin: int = array.__array_interface__["data"][0]
    if not array.size:
        return begin, begin, name
    reaches = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    first, last = sum(each for each in reaches if each < 0), sum(each for each in reaches if each > 0)
    return begin + first, begin + last + array.itemsize, name


def _overlapping(names: list[str], tensors: Mapping[str, Any]) -> list[list[str]]:
    """Group the tensors of one storage: a tensor that begins before the end of the previous one joins its group."""
    return _grouped((tensors[name].data_ptr(), _end_of(tensors[name]), name) for name in names)


def _grouped(unsorted: Iterable[tuple[int, int, str]]) -> list[list[str]]:
    areas = sorted(unsorted)
    groups: list[list[str]] = []
    last_end = 0
    for begin, end, name in areas:
        if groups and begin < last_end:
            groups[-1].append(name)
        else:
            groups.append([name])
        last_end = end  # the end of this tensor, as in safetensors, although an earlier tensor may reach further
    return groups


def _end_of(tensor: Any) -> int:
    begin: int = tensor.data_ptr()
    if not tensor.numel():
        return begin
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end: int = begin + (last + 1) * tensor.element_size()
    return end


def _is_complete(tensor: Any) -> bool:
    storage = tensor.untyped_storage()
    size_bytes = tensor.numel() * tensor.element_size()
    return bool(tensor.data_ptr() == storage.data_ptr() and size_bytes == storage.nbytes())


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(quoted, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
