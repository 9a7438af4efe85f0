"""PyTorch's own files, as ``torch.save`` writes them: ``pytorch_model.bin``, ``*.pt``, ``*.pth``.

The file is a zip archive: a pickle that describes the tensors, and a member for the bytes of each storage. Guarantees:
no code of the pickle is run, and no class of it is imported; the result equals that of
``torch.load(weights_only=True)``, except that each tensor has memory of its own. Tensors in nested containers are named
by their path: ``state_dict.layer.weight``. Values that are no tensors become metadata. Attributes of tensors are not
read, which is remarked.

Refuses with FormatError: pickles that name anything but tensors and the values that ``torch.load(weights_only=True)``
allows, tensors that are not dense, and files of PyTorch before 1.6, which are no zip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from streamer.core.errors import FormatError
from streamer.core.format.dtypes import DTYPES_BY_TORCH_NAME, bits_of
from streamer.core.format.header_entries import differing_keys
from streamer.core.format.plain_pickle import GlobalName, Record, read_plain, same
from streamer.core.format.shard_names import is_consolidated, is_of_training, series_of
from streamer.core.format.torch_archive import STORAGES, TORCH_NAMES
from streamer.core.other_formats.interface import (
    CheckpointFile,
    CheckpointIndex,
    Format,
    Reader,
    TensorPlace,
    about,
    not_of,
)
from streamer.core.other_formats.nested import flattened
from streamer.core.other_formats.readers import Laid, Strided, Swapped, is_contiguous, span_elements
from streamer.core.other_formats.zip_directory import ZIP_HEAD, ZipMember, read_members, reader_of
from streamer.core.quoting import names_text, quoted
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import hookimpl

# Names of whole models; a folder may also hold the states of optimizers and random generators, which nobody loads.
_MODEL = re.compile(
    r"(?:pytorch_model|diffusion_pytorch_model|adapter_model|model|consolidated)(?:[.-][^/]*)?\.(?:bin|pt|pth|ckpt)"
)
_BEFORE_1_6 = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # the pickle of a magic number
MOST_PICKLE_BYTES = 16 << 20  # 80 000 tensors; a hostile pickle takes 130 times as much memory
_ONLY_TENSORS = (
    "It holds more than dense tensors. If you trust who wrote it, load it with torch, and save its tensors alone: "
    "torch.save(model.state_dict(), file)"
)
_SAVE_AGAIN = "Save it again: torch.save(torch.load(file, weights_only=True), file) with PyTorch 1.6 or newer"
_REBUILD = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"}
_PARAMETER = {"_rebuild_parameter", "_rebuild_parameter_with_state"}
_SUBCLASS = "_rebuild_from_type_v2"
_UNREAD_STORAGES = {"ComplexDoubleStorage": "complex128"}  # known, so that the error names the tensor
_UNREAD_DTYPES = ("complex128", "complex32", "float4_e2m1fn_x2", "qint32", "qint8", "quint8", *_UNREAD_STORAGES)
_OF_BUFFERS = ("persistent", "_is_buffer")  # attributes that torch.nn.Buffer has
_RECORDS: frozenset[GlobalName] = frozenset(
    {*(("torch._utils", name) for name in (*_REBUILD, *_PARAMETER)), ("torch._tensor", _SUBCLASS)}
)


class _StateDict(dict[Any, Any]):
    """Stands for the OrderedDict of a module's state, which has ``_metadata`` as an attribute: versions of modules."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Ignore the attributes."""


class _OrderedDict:
    __slots__ = ()

    def __call__(self, items: Any = ()) -> _StateDict:
        return _StateDict(items)


class _Value:
    """Calls one function of this module for the values that ``torch.load`` allows beside tensors; immutable."""

    __slots__ = ("_made",)

    _made: Callable[..., Any]

    def __init__(self, made: Callable[..., Any]) -> None:
        object.__setattr__(self, "_made", made)

    def __call__(self, *arguments: Any) -> Any:
        return self._made(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


def _device(kind: str, *index: int) -> str:
    return ":".join(map(str, (kind, *index)))


def _bytes(value: Any = b"", encoding: str = "latin1") -> bytes:
    """Return bytes as the protocol of ``torch.save`` describes them: a text, or bytes; never so many zeros."""
    if type(value) is bytes:
        return value
    if type(value) is not str or encoding != "latin1":
        raise TypeError(type(value).__name__)
    return value.encode(encoding)


_BUILTINS: dict[GlobalName, Any] = {
    **{("torch", name): name for name in _UNREAD_DTYPES},
    **TORCH_NAMES,
    ("torch", "Size"): same(tuple),
    ("torch", "device"): _Value(_device),
    ("torch", "Tensor"): "Tensor",
    ("torch.nn.parameter", "Parameter"): "Parameter",
    ("torch.nn.parameter", "Buffer"): "Buffer",
    ("torch.serialization", "_get_layout"): same(str),
    ("collections", "OrderedDict"): _OrderedDict(),
    ("collections", "Counter"): _OrderedDict(),
    ("_codecs", "encode"): _Value(_bytes),
    **{
        (module, name): made
        for module in ("builtins", "__builtin__")  # the second in the protocol that torch.save uses
        for name, made in {
            "bytes": _Value(_bytes),
            "bytearray": _Value(_bytes),
            "set": same(list),
            "complex": _Value(complex),
        }.items()
    },
}


class _Storage(NamedTuple):
    kind: str
    key: str
    numel: int


class TorchZip:
    """The format; see the module's docstring."""

    name = "PyTorch"
    suffixes: tuple[str, ...] = (".bin", ".pt", ".pth", ".ckpt")

    def files_of(self, names: Sequence[str]) -> Sequence[str]:
        """Choose the files of a model; see `Format.files_of`."""
        own = [name for name in names if not is_of_training(name)]
        models = [name for name in own if _MODEL.fullmatch(name)]
        if not models and len({series_of(name) or name for name in own}) > 1:
            what = f"the folder holds {len(own)} files of PyTorch: {names_text(own)}"
            raise FormatError(what, hint="Name the one to load")
        if len(models) > 1 and all(map(is_consolidated, models)):  # each holds a slice of every tensor
            what = f"the folder holds a model in Meta's layout, cut for {len(models)} ranks: {names_text(models)}"
            raise FormatError(what, hint="Load each by its name, or convert the model")
        stems = {re.split(r"[.-]", name)[0] for name in models}
        if len(stems) > 1:
            raise FormatError(f"the folder holds several models: {names_text(models)}", hint="Name the one to load")
        return models or own

    def is_format(self, head: bytes) -> bool:
        """Recognise a zip archive, and the files of PyTorch before 1.6; see `Format.is_format`."""
        return head.startswith((ZIP_HEAD, _BEFORE_1_6))

    def read_index(self, files: Sequence[CheckpointFile]) -> CheckpointIndex:
        """Find the tensors; see `Format.read_index`."""
        found = in_parallel(_read_file, files, role="index")
        metadata = {name: value for index in found for name, value in index.metadata.items()}
        tensors, remarks = [*chain(*(each.tensors for each in found))], [*chain(*(each.remarks for each in found))]
        return CheckpointIndex(tensors, metadata, remarks, differing_keys(index.metadata for index in found))


@hookimpl
def streamer_format() -> Format:
    """Return the format."""
    return TorchZip()


def _read_file(file: CheckpointFile) -> CheckpointIndex:
    with about(file):
        _check_kind(file)
        members = read_members(file)
        folder = _folder_of(members)
        if f"{folder}constants.pkl" in members:
            what = "this is a TorchScript archive, which holds code"
            raise FormatError(what, hint="Save its weights: torch.save(torch.jit.load(file).state_dict(), file)")
        pickled = _content(file, members[f"{folder}data.pkl"])
        order = members.get(f"{folder}byteorder")
        is_big = order is not None and _content(file, order) == b"big"
        root = _unpickled(pickled)
        archive = _Archive(file, folder, members, is_big)
        leaves, metadata = flattened(root, lambda value: isinstance(value, (Record, _Storage)))
        tensors = [archive.place(name, value) for name, value in leaves]
        return CheckpointIndex(tensors, metadata, archive.remarks())


def _unpickled(data: bytes) -> Any:
    try:
        return read_plain(data, _RECORDS, _BUILTINS, _storage)
    except FormatError as error:  # usually it holds a whole model, or tensors of a kind that safetensors lacks
        error.hint = _ONLY_TENSORS
        raise


def _check_kind(file: CheckpointFile) -> None:
    head = file.read(0, min(file.size_bytes, len(_BEFORE_1_6)))
    if head == _BEFORE_1_6:
        raise FormatError("this file was saved by PyTorch before 1.6, and is no zip archive", hint=_SAVE_AGAIN)
    if not head.startswith(ZIP_HEAD):
        raise not_of("zip archive, as torch.save writes it", head, _SAVE_AGAIN)


def _folder_of(members: Mapping[str, ZipMember]) -> str:
    folders = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(folders) != 1:
        hint = "torch.save writes one data.pkl in one folder of the archive"
        raise FormatError(f"this zip archive has {len(folders)} pickles of PyTorch, not one", hint=hint)
    return folders[0]


def _content(file: CheckpointFile, member: ZipMember) -> bytes:
    reader = reader_of(file, member)
    if member.size_bytes > MOST_PICKLE_BYTES:
        raise FormatError(f"member {quoted(member.name)} has {member.size_bytes} bytes")
    if reader is None:
        return file.read(member.begin, member.begin + member.stored_bytes)
    content = bytearray(member.size_bytes)
    reader.read_into(memoryview(content), 0)
    return bytes(content)


def _storage(pid: Any) -> _Storage:
    if not isinstance(pid, tuple) or len(pid) != 5:
        raise FormatError("the pickle refers to objects outside of it")
    kind, storage, key, _, count = pid
    if (
        kind != "storage"
        or storage not in {**STORAGES, **_UNREAD_STORAGES}
        or not isinstance(key, str)
        or type(count) is not int
    ):
        raise FormatError("the pickle refers to something that is no storage of PyTorch")
    return _Storage(storage, key, count)


class _Archive:
    """One file, whose directory and pickle were read."""

    def __init__(self, file: CheckpointFile, folder: str, members: Mapping[str, ZipMember], is_big: bool) -> None:
        self._file, self._folder, self._members, self._is_big = file, folder, members, is_big
        self._laid = Laid()
        self._readers: dict[str, Reader | None] = {}
        self._attributes: dict[str, Any] = {}

    def remarks(self) -> list[str]:
        """Return a remark if tensors had attributes of their own."""
        if not self._attributes:
            return []
        return [f"{self._file.name}: attributes of tensors are not read: {names_text([*self._attributes])}"]

    def place(self, name: str, rebuilt: Record | _Storage) -> TensorPlace:
        """Return the place of a tensor."""
        rebuilt = self._without_attributes(name, rebuilt)
        if rebuilt.kind in _PARAMETER:
            rebuilt = self._without_attributes(name, rebuilt.arguments[0] if rebuilt.arguments else rebuilt)
            if rebuilt.kind not in _REBUILD:
                raise FormatError(f"parameter {quoted(name)} is not made of a tensor")
        storage, dtype, offset, shape, strides = _described(name, rebuilt)
        item_bytes = bits_of(dtype) // 8
        member = self._member(name, storage, storage.numel if storage.kind == "UntypedStorage" else None, item_bytes)
        count = member.size_bytes // item_bytes
        if offset + span_elements(shape, strides) > count and 0 not in shape:
            raise FormatError(f"tensor {quoted(name)} does not lie in its storage of {count} elements")
        make = partial(TensorPlace, name, dtype, shape, self._file)
        if 0 in shape:
            return make()
        reader, begin = self._bytes_of(member, item_bytes // 2 if dtype == "C64" else item_bytes)
        begin += offset * item_bytes
        if is_contiguous(shape, strides):
            return make(begin, reader)
        return make(0, Strided(reader or self._file, begin, shape, strides, item_bytes=item_bytes, laid=self._laid))

    def _without_attributes(self, name: str, rebuilt: Any) -> Record:
        """Return the call that makes the tensor alone, and note which attributes it has."""
        state = None
        if isinstance(rebuilt, _Storage):
            raise FormatError(f"{quoted(name)} is a storage, not a tensor", hint="Save a tensor of its values")
        if isinstance(rebuilt, Record) and rebuilt.kind == _SUBCLASS:
            function, _, arguments, state = rebuilt.arguments
            rebuilt = function(*arguments) if isinstance(function, type) else None
        elif isinstance(rebuilt, Record) and rebuilt.kind == "_rebuild_parameter_with_state":
            state = rebuilt.arguments[3]
        if not isinstance(rebuilt, Record):
            raise FormatError(f"tensor {quoted(name)} is not described as PyTorch does it")
        attributes, *slots = state if isinstance(state, tuple) else (state,)
        for each in (attributes, *slots):
            if isinstance(each, dict):
                self._attributes.update(dict.fromkeys(f"{name}.{key}" for key in each if key not in _OF_BUFFERS))
        return rebuilt

    def _member(self, name: str, storage: _Storage, size_bytes: int | None, item_bytes: int) -> ZipMember:
        member = self._members.get(f"{self._folder}data/{storage.key}")
        if member is None:
            raise FormatError(f"the archive lacks storage {quoted(storage.key)} of tensor {quoted(name)}")
        expected = storage.numel * item_bytes if size_bytes is None else size_bytes
        if member.size_bytes != expected:
            what = f"storage {quoted(storage.key)} has {member.size_bytes} bytes, the pickle says {expected}"
            raise FormatError(what)
        return member

    def _bytes_of(self, member: ZipMember, item_bytes: int) -> tuple[Reader | None, int]:
        """Return the reader of a member's content (None for the file itself), and the offset of the content in it."""
        if member.name not in self._readers:
            self._readers[member.name] = reader_of(self._file, member)
        reader = self._readers[member.name]
        begin = member.begin if reader is None else 0
        if self._is_big and item_bytes > 1:
            return Swapped(reader or self._file, begin, member.size_bytes, item_bytes), 0
        return reader, begin


def _described(name: str, rebuilt: Record) -> tuple[_Storage, str, int, tuple[int, ...], tuple[int, ...]]:
    """Return storage, dtype, offset in elements, shape and strides of a tensor."""
    arguments = rebuilt.arguments
    is_v3 = rebuilt.kind == "_rebuild_tensor_v3"
    if len(arguments) < (7 if is_v3 else 4) or not isinstance(arguments[0], _Storage):
        raise FormatError(f"tensor {quoted(name)} is not described as PyTorch does it")
    storage, offset, shape, strides, *others = arguments
    stored = others[2] if is_v3 else {**STORAGES, **_UNREAD_STORAGES}[storage.kind]
    dtype = DTYPES_BY_TORCH_NAME.get(stored, "") if is_v3 and isinstance(stored, str) else stored
    if dtype not in DTYPES_BY_TORCH_NAME.values():
        what = f"tensor {quoted(name)} has the dtype {quoted(stored)}, which is not read"
        raise FormatError(what, hint="Cast it, and save it again")
    more = others[3:] if is_v3 else others[2:]
    if more and more[0]:
        hint = "Save it again after .resolve_conj().resolve_neg()"
        raise FormatError(f"tensor {quoted(name)} is a conjugated or negated view", hint=hint)
    is_shaped = all(isinstance(each, (tuple, list)) for each in (shape, strides)) and len(shape) == len(strides)
    if not is_shaped or not all(type(each) is int and 0 <= each < 1 << 63 for each in (offset, *shape, *strides)):
        raise FormatError(f"tensor {quoted(name)} has an impossible shape or place")
    return storage, dtype, offset, tuple(shape), tuple(strides)
