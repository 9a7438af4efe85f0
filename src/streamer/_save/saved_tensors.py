"""The tensors to save, and their shards: tensors in memory, or of other checkpoints and read while they are saved.

Guarantees: names, kinds, dtypes and shared memory are checked before a byte is written. A tensor of another checkpoint
is in memory only while its bytes are sent, and beside it what a cast makes of it. If both are larger than
`MOST_READ_BYTES`, it is read by rows. Its checkpoint's metadata are kept; values that differ are refused. Names and
contents of shards and of their index are those of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from streamer import _native
from streamer.core.checkpoint.catalog import SHARDING_INFO
from streamer.core.checkpoint.lazy_tensor import TensorSlice
from streamer.core.encryption.keys import KeySource
from streamer.core.errors import ChangedError, OptionError, UsageError
from streamer.core.format.dtypes import byte_length
from streamer.core.format.header_writer import TensorLayout
from streamer.core.format.manifest import ALGORITHM
from streamer.core.format.shard_names import USUAL_SHARD
from streamer.core.options.switches_and_sizes import parsed_bytes
from streamer.core.other_formats.gguf import TYPES_KEY
from streamer.core.quoting import names_text, quoted
from streamer.core.tensors.shared_memory import refuse_shared
from streamer.core.tensors.tensor_bytes import bytes_of, dtype_name, flat_bytes, is_array, is_torch_tensor, layout_of
from streamer.core.tensors.torch_private_names import changes_in_place

MOST_READ_BYTES = 256 << 20  # enough for full speed; smaller tensors are read whole, as rows have no digest
SAMPLED_BYTES = 1 << 20  # of a tensor that is compared between ranks, and before and after their save
SAMPLES = 16  # of a larger one


class SavedTensors:
    """Named tensors, in the order in which they are saved.

    Attributes:
        layouts: The tensors as a header describes them.
        metadata: The metadata of the checkpoints whose tensors are saved.
        samples: By name, digests of bytes of the tensors at the beginning, or of where they are read from; empty if
            none were asked for.
    """

    def __init__(self, tensors: Mapping[str, Any], replaced: Container[str] = (), *, is_sampled: bool = False) -> None:
        self._tensors = {_name(each): tensors[each] for each in tensors}
        self.layouts = [_layout(name, tensor) for name, tensor in self._tensors.items()]
        self.metadata = _joined_metadata(self._tensors, replaced)
        self._changes = self._counted_changes()
        refuse_shared({name: each for name, each in self._tensors.items() if not isinstance(each, TensorSlice)})
        self._sampled = [*self.layouts] if is_sampled else []
        self.samples = {each.name: self._sample(each) for each in self._sampled}

    def check_unchanged(self) -> None:
        """Compare torch's counters of changes in place, and samples, with those of the beginning.

        NumPy's arrays have no counters, and optimizers do not count what they change in DTensors.
        """
        found = self._counted_changes()
        changed = [name for name, count in self._changes.items() if found[name] != count]
        changed = changed or [each.name for each in self._sampled if self._sample(each) != self.samples[each.name]]
        if changed:
            hint = "Do not change tensors while they are saved, or save copies: {name: tensor.clone()}"
            raise ChangedError(f"tensors were changed while they were saved: {names_text(changed)}", hint=hint)

    def _counted_changes(self) -> dict[str, int | None]:
        return {name: changes_in_place(each) for name, each in self._tensors.items() if is_torch_tensor(each)}

    def _sample(self, layout: TensorLayout) -> int:
        """Compute the digest of a small tensor, or of some bytes of a large one, its last ones among them."""
        tensor = self._tensors[layout.name]
        if isinstance(tensor, TensorSlice) and tensor.origin:
            return _native.crc(ALGORITHM, tensor.origin.encode())
        digest, size_bytes, step = 0, layout.size_bytes, SAMPLED_BYTES // SAMPLES
        count = min(SAMPLES, -(-size_bytes // step))
        for number in range(count):
            end = size_bytes * (number + 1) // count
            digest = _native.crc(ALGORITHM, self.bytes_between(layout, max(0, end - step), end), digest)
        return digest

    def remarks(self) -> tuple[str, ...]:
        """Return remarks on the checkpoints that are copied, and on attributes of tensors that no file holds."""
        own = {
            name: getattr(tensor, "__dict__", {}) for name, tensor in self._tensors.items() if is_torch_tensor(tensor)
        }
        names = [
            f"{name}.{key}" for name, each in own.items() for key in each if key[:1] != "_" and key != "persistent"
        ]
        copied = [each.remarks for each in self._tensors.values() if isinstance(each, TensorSlice)]
        of_copied = tuple(dict.fromkeys(remark for remarks in copied for remark in remarks))
        return (*of_copied, f"attributes of tensors are not saved: {names_text(names)}") if names else of_copied

    def lost_protection(self, key: KeySource | None, *, hides_names: bool) -> tuple[str, ...]:
        """Return remarks on what protects the encrypted checkpoints that are copied, and not the one that is saved."""
        copied = [each.sealed for each in self._tensors.values() if isinstance(each, TensorSlice)]
        sealed = [each for each in copied if each is not None]
        if sealed and key is None:
            return ("the copied checkpoint is encrypted, and this one is not: pass key= to encrypt it",)
        lost = ["the copied checkpoint hides its names, and this one shows them: pass hide_names=True"]
        if hides_names or not any(each.hides_names for each in sealed):
            lost.clear()
        for context in sorted({each.context for each in sealed} - {"", (key and key.context) or ""}):
            lost.append(
                f"the copied checkpoint is bound to the context {quoted(context)}, this one is not: pass context="
            )
        return tuple(lost)

    def held_bytes(self, layout: TensorLayout) -> int:
        """Return the bytes that `pieces` allocates beside the tensors' own memory; 0 if it yields only views."""
        tensor = self._tensors[layout.name]
        if isinstance(tensor, TensorSlice):
            count = tensor.shape[0] if tensor.shape else 1
            return -(-tensor.read_bytes * _rows_at_a_time(tensor) // max(1, count))
        if is_torch_tensor(tensor):
            return 0 if tensor.device.type == "cpu" and tensor.is_contiguous() else layout.size_bytes
        return 0 if tensor.flags.c_contiguous else layout.size_bytes

    def bytes_between(self, layout: TensorLayout, begin: int, end: int) -> memoryview:
        """Return some bytes of one tensor; of one that needs a copy, or is read, only the rows with these bytes are."""
        tensor, size_bytes = self._tensors[layout.name], layout.size_bytes
        while not _is_flat(tensor) and tensor.shape and not size_bytes % tensor.shape[0]:
            row_bytes = size_bytes // tensor.shape[0]
            first, stop = begin // row_bytes, -(-end // row_bytes)
            tensor = tensor[first:stop]
            begin, end, size_bytes = begin - first * row_bytes, end - first * row_bytes, (stop - first) * row_bytes
            if stop - first > 1:
                break
            tensor = tensor[0]
        tensor = tensor[...] if isinstance(tensor, TensorSlice) else tensor
        return bytes_of(flat_bytes(tensor)[begin:end]) if is_torch_tensor(tensor) else bytes_of(tensor)[begin:end]

    def pieces(self, layout: TensorLayout) -> Iterator[memoryview]:
        """Yield the bytes of one tensor, in one or more pieces."""
        tensor = self._tensors[layout.name]
        if not layout.size_bytes:
            return
        if isinstance(tensor, TensorSlice):
            for rows in _rows(tensor):
                yield bytes_of(rows)
        else:
            yield bytes_of(tensor)


def _is_flat(tensor: Any) -> bool:
    """Say whether the bytes of a tensor lie in memory as a file has them."""
    if isinstance(tensor, TensorSlice):
        return False
    if is_torch_tensor(tensor):
        return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())
    return not hasattr(tensor, "flags") or bool(tensor.flags.c_contiguous)  # arrays of JAX have no flags


def _rows_at_a_time(tensor: TensorSlice[Any]) -> int:
    """Return how many rows are read at a time, so that they and what a cast makes of them are `MOST_READ_BYTES`."""
    count = tensor.shape[0] if tensor.shape else 1
    if tensor.is_cut or tensor.read_bytes <= MOST_READ_BYTES:
        return count
    return max(1, count * MOST_READ_BYTES // tensor.read_bytes)


def _rows(tensor: TensorSlice[Any]) -> Iterator[Any]:
    count, step = tensor.shape[0] if tensor.shape else 1, _rows_at_a_time(tensor)
    if step >= count:
        yield tensor[...]
        return
    for first in range(0, count, step):
        yield tensor[first : first + step]


def _joined_metadata(tensors: Mapping[str, Any], replaced: Container[str]) -> dict[str, str]:
    slices = {name: each for name, each in tensors.items() if isinstance(each, TensorSlice)}
    sources = {id(each.metadata): each.metadata for each in slices.values()}
    types = _types_by_name(slices, sources)
    joined: dict[str, str] = {} if types is None else {TYPES_KEY: types}
    differing = {key for each in slices.values() for key in each.differing}
    for key, value in (item for source in sources.values() for item in source.items() if item[0] != SHARDING_INFO):
        if joined.setdefault(key, value) != value:
            differing.add(key)
    differing = {key for key in differing if key not in replaced and (types is None or key != TYPES_KEY)}
    if differing:
        names = [quoted(key) for key in sorted(differing)]
        hint = f"Pass the values that the new checkpoint shall have: metadata={{{names[0]}: …}}"
        raise UsageError(f"the checkpoints, or their shards, differ in their metadata {names_text(names)}", hint=hint)
    return joined


def _types_by_name(slices: Mapping[str, TensorSlice[Any]], sources: Mapping[int, Mapping[str, str]]) -> str | None:
    """Return the types of blocks under the names by which these tensors are saved; None if no source says them."""
    try:
        found = {number: json.loads(source[TYPES_KEY]) for number, source in sources.items() if TYPES_KEY in source}
        types = {
            name: found[id(each.metadata)][each.stored_name]
            for name, each in slices.items()
            if each.stored_name in found.get(id(each.metadata), ())
        }
    except (ValueError, TypeError, RecursionError):  # another program wrote a value under this name
        return None
    return json.dumps(types) if found else None


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise UsageError(f"the name of a tensor is a text, not {repr(name)[:80]}")
    return name


def _layout(name: str, tensor: Any) -> TensorLayout:
    if isinstance(tensor, TensorSlice):
        return _layout_of_slice(name, tensor)
    if not (is_torch_tensor(tensor) or is_array(tensor)):
        hint = "Save torch tensors, numpy arrays, or tensors of streamer.open; leave everything else out"
        raise UsageError(f"{quoted(name)} is no tensor but {type(tensor).__name__}", hint=hint)
    return layout_of(name, tensor)


def _layout_of_slice(name: str, tensor: TensorSlice[Any]) -> TensorLayout:
    """Describe a tensor that is not read yet, after the cast that was requested from `streamer.open`."""
    dtype = dtype_name(name, tensor.dtype)
    shape = tuple(tensor.get_shape())
    return TensorLayout(name, dtype, shape, byte_length(shape, dtype))


def most_shard_bytes(value: int | str) -> int:
    """Parse the maximum size of a shard: a number of bytes, or a text with a unit such as ``"5GB"`` (5 * 10^9)."""
    size_bytes = parsed_bytes(value) if isinstance(value, str) else value
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 1:
        hint = 'Write a number, or one with a unit: "5GB", "512MiB"'
        raise OptionError(f"max_shard_bytes is not a number of bytes: {str(value)[:80]!r}", hint=hint)
    return size_bytes


def divided(tensors: Sequence[TensorLayout], most_bytes: int) -> list[list[TensorLayout]]:
    """Divide tensors into shards, in order; a tensor that is larger than `most_bytes` gets a shard of its own.

    Example:
        >>> tensors = [TensorLayout(str(size), "U8", (size,), size) for size in (2, 2, 9, 1)]
        >>> [[each.size_bytes for each in shard] for shard in divided(tensors, 4)]
        [[9], [2, 2], [1]]
    """
    shards: list[list[TensorLayout]] = []
    current: list[TensorLayout] = []
    current_bytes = 0
    for each in tensors:
        if each.size_bytes > most_bytes:
            shards.append([each])
            continue
        if current and current_bytes + each.size_bytes > most_bytes:
            shards.append(current)
            current, current_bytes = [], 0
        current.append(each)
        current_bytes += each.size_bytes
    return [*shards, current] if current or not shards else shards


def shard_names(count: int, *, has_index: bool, save_id: str = "") -> list[str]:
    """Return the file names of the shards of a checkpoint.

    Example:
        >>> shard_names(1, has_index=False), shard_names(2, has_index=True)[1]
        (['model.safetensors'], 'model-00002-of-00002.safetensors')
    """
    if not has_index:
        return [USUAL_SHARD]
    stem = f"model-{save_id}" if save_id else "model"
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def index_text(shards: Mapping[str, Sequence[TensorLayout]]) -> bytes:
    """Return the text of the index.

    Example:
        >>> index_text({"a.safetensors": [TensorLayout("w", "U8", (2,), 2)]}).splitlines()[2]
        b'    "total_size": 2'
    """
    weight_map = {each.name: shard for shard, tensors in shards.items() for each in tensors}
    total_size = sum(each.size_bytes for tensors in shards.values() for each in tensors)
    document = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
