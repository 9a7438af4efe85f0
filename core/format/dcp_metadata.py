"""The ``.metadata`` of a checkpoint of torch.distributed.checkpoint: a pickle, which is read only as data.

Guarantees: every name is text, every shape and offset consists of whole unsigned numbers, every file lies in the
checkpoint's own folder. torch is not imported, and nothing that the pickle names is: of the classes below, the state is
read. Savers keep objects of other classes beside the tensors (Megatron the plans of all ranks); these are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamer.core.errors import FormatError
from streamer.core.format.plain_pickle import Foreign, GlobalName, Record, empty_dict, read_plain, same
from streamer.core.format.shard_names import why_not_inside
from streamer.core.quoting import quoted

_METADATA = "torch.distributed.checkpoint.metadata"
_BEFORE_2_3 = "torch.distributed._shard.sharded_tensor.metadata"
_RECORDS: frozenset[GlobalName] = frozenset(
    {
        (_METADATA, "BytesStorageMetadata"),
        (_METADATA, "ChunkStorageMetadata"),
        (_METADATA, "Metadata"),
        (_METADATA, "MetadataIndex"),
        (_METADATA, "StorageMeta"),
        (_METADATA, "TensorProperties"),
        (_METADATA, "TensorStorageMetadata"),
        (_BEFORE_2_3, "TensorProperties"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("pathlib._local", "PosixPath"),  # in Python 3.13
        ("pathlib._local", "WindowsPath"),
    }
)
_DTYPES = """
    bcomplex32 bfloat16 bool complex128 complex32 complex64 float16 float32 float64 float4_e2m1fn_x2 float8_e4m3fn
    float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int16 int32 int64 int8 qint32 qint8 quint8 uint16 uint32
    uint64 uint8
"""
_BUILTINS: Mapping[GlobalName, Any] = {
    ("torch", "Size"): same(tuple),
    ("torch.serialization", "_get_layout"): same(str),
    (_METADATA, "_MEM_FORMAT_ENCODING"): same(int),
    (_BEFORE_2_3, "MEM_FORMAT_ENCODING"): same(int),
    ("collections", "OrderedDict"): empty_dict,
    **{("torch", name): name for name in _DTYPES.split()},
}
_HINT = "It is damaged, or of another program: save the checkpoint again"


class SavedChunk(NamedTuple):
    """A block of a tensor that was saved as one item."""

    offsets: tuple[int, ...]  # offsets of its first element in the tensor
    sizes: tuple[int, ...]  # shape of the block


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of the checkpoint."""

    dtype: str  # torch's name of the dtype: ``"bfloat16"``
    size: tuple[int, ...]  # shape of the tensor
    chunks: list[SavedChunk]  # the blocks in which it was saved
    layout: str = "torch.strided"  # torch's name of the layout
    requires_grad: bool = False  # whether the saved tensor required a gradient
    memory_format: int = 0  # torch's number of the memory format
    # Strides of the saved tensor, if torch wrote them; the bytes of an item have their own strides
    strides: tuple[int, ...] | None = None


class SavedItem(NamedTuple):
    """The place of an item's bytes."""

    path: str  # the file, in the checkpoint's folder
    offset: int  # offset of its first byte in the file
    length: int  # number of its bytes
    transforms: tuple[str, ...] = ()  # names of the transforms of its bytes, such as compression or encryption


@dataclass(frozen=True)
class DcpMetadata:
    """The content of the pickle."""

    entries: Mapping[str, SavedTensor | None]  # entries by name, in their order; None for an entry that is no tensor
    # Items by name and, for a tensor, the offsets of the chunk
    items: Mapping[tuple[str, tuple[int, ...] | None], SavedItem]
    planner_data: Any = None  # data of the planner that saved the checkpoint: plain values; None if it has others
    save_id: str | None = None  # id of the save, or None
    version: str | None = None  # version of the format, or None


def parse_dcp_metadata(data: bytes | memoryview, *, uri: str) -> DcpMetadata:
    """Read a ``.metadata``."""
    try:
        root = _root(read_plain(data, _RECORDS, _BUILTINS, takes_foreign=True))
        entries = _typed(root.get("state_dict_metadata"), dict, "state_dict_metadata")
        items = _typed(root.get("storage_data"), dict, "storage_data")
        meta = root.get("storage_meta")
        save_id = _state(meta, "StorageMeta").get("save_id") if meta is not None else None
        version = root.get("version")
        return DcpMetadata(
            {_typed(name, str, "a name"): _tensor(entry) for name, entry in entries.items()},
            {_index(index): _item(info) for index, info in items.items()},
            _plain(root.get("planner_data")),
            save_id if isinstance(save_id, str) else None,
            version if isinstance(version, str) else None,
        )
    except FormatError as error:
        error.uri, error.hint = uri, error.hint or _HINT
        raise


def _root(record: Any) -> dict[str, Any]:
    """Return the state of torch's class, or of one that a saver derived from it."""
    if isinstance(record, Foreign) and isinstance(record.state, dict) and "state_dict_metadata" in record.state:
        return record.state
    return _state(record, "Metadata")


def _plain(value: Any) -> Any:
    """Return a value of plain containers; None if it holds an object of a class: no code of ours may meet those."""
    stack, seen = [value], set[int]()
    while stack:
        each = stack.pop()
        if isinstance(each, Record):
            return None
        if isinstance(each, (dict, list, tuple, set, frozenset)) and id(each) not in seen:
            seen.add(id(each))
            stack += [*each, *each.values()] if isinstance(each, dict) else each
    return value


def _tensor(record: Any) -> SavedTensor | None:
    if isinstance(record, Record) and record.kind == "BytesStorageMetadata":
        return None
    state = _state(record, "TensorStorageMetadata")
    # In the order of torch's __getstate__: dtype, layout, requires_grad, memory format, pinned; since 2.15, strides.
    properties = _state_of(state.get("properties"), "TensorProperties", tuple)
    if len(properties) not in (5, 6):
        raise FormatError(f"the properties of a tensor are {len(properties)} values, not 5 or 6")
    dtype, layout, requires_grad, memory_format, _, *strides = properties
    chunks = [_chunk(each) for each in _typed(state.get("chunks"), list, "chunks")]
    size = _numbers(state.get("size"), "a size")
    if any(len(chunk.sizes) != len(size) or len(chunk.offsets) != len(size) for chunk in chunks):
        raise FormatError("a chunk has other dimensions than its tensor")
    return SavedTensor(
        _typed(dtype, str, "a dtype"),
        size,
        chunks,
        _typed(layout, str, "a layout"),
        bool(requires_grad),
        _typed(memory_format, int, "a memory format"),
        _numbers(strides[0], "strides") if strides and strides[0] is not None else None,
    )


def _chunk(record: Any) -> SavedChunk:
    state = _state(record, "ChunkStorageMetadata")
    return SavedChunk(_numbers(state.get("offsets"), "offsets"), _numbers(state.get("sizes"), "sizes"))


def _index(record: Any) -> tuple[str, tuple[int, ...] | None]:
    state = _state(record, "MetadataIndex")
    offset = state.get("offset")
    return _typed(state.get("fqn"), str, "a name"), None if offset is None else _numbers(offset, "an offset")


def _item(record: Any) -> SavedItem:
    state = _state(record, "_StorageInfo")
    path = _typed(state.get("relative_path"), str, "a path")
    if reason := why_not_inside(path):
        raise FormatError(f"the file name {quoted(path)} {reason}", hint="Files lie in the checkpoint's own folder")
    (offset, length) = _numbers((state.get("offset"), state.get("length")), "a place in a file")
    transforms = state.get("transform_descriptors") or ()
    if not isinstance(transforms, (list, tuple)) or not all(isinstance(each, str) for each in transforms):
        raise FormatError("the transforms of an item are no list of names")
    return SavedItem(path, offset, length, tuple(transforms))


def _state(record: Any, kind: str) -> dict[str, Any]:
    state: dict[str, Any] = _state_of(record, kind, dict)
    return state


def _state_of(record: Any, kind: str, of: type) -> Any:
    if not isinstance(record, Record) or record.kind != kind:
        actual = record.kind if isinstance(record, Record) else type(record).__name__
        not_run = "; nothing of it was run" if isinstance(record, Foreign) else ""
        raise FormatError(f"there is a {actual[:80]} in place of a {kind}{not_run}")
    state = of() if record.state is None else record.state  # the pickle omits the state of a class without attributes
    return _typed(state, of, f"the state of {kind}")


def _typed(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise FormatError(f"{what} is of type {type(value).__name__}, not {kind.__name__}")
    return value


def _numbers(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or not all(type(each) is int and 0 <= each < 1 << 63 for each in values):
        raise FormatError(f"{what} is not of whole unsigned numbers")
    return tuple(values)
