"""The catalog of a checkpoint in another format than safetensors.

The format's index is checked as strictly as a header: names, dtypes, shapes, and that the bytes of each tensor lie in
its file. A tensor whose bytes no file holds as they are becomes an object of its own, which Python threads read. Two
tensors that share bytes are read from two views of their file, so that each owns its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from streamer.core.checkpoint.catalog import Catalog, ShardTensor, check_index
from streamer.core.encryption.keys import LEAVE_OUT, KeySource
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.python_readers import LastAttemptError
from streamer.core.errors import FormatError, PluginError, StreamerError, TamperedError
from streamer.core.format.dtypes import byte_length
from streamer.core.format.header_entries import TensorEntry, differing_keys
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.other_formats.interface import (
    CheckpointFile,
    CheckpointIndex,
    EngineFile,
    Format,
    Reader,
    TensorPlace,
)
from streamer.core.outages.counters import PackedBytes
from streamer.core.quoting import counted, printable, quoted
from streamer.core.shards.shards import ShardChoice, duplicate_tensor
from streamer.core.store.sources import PythonSource

MOST_VIEWS = 1000  # per file, for tensors that share bytes; each view opens the file
MOST_NAME_CHARACTERS = 1 << 16  # as for an entry in a header of safetensors
_log = OwnLogger()
_HINT = "It is damaged, or of a program that writes another dialect: save the checkpoint again"


def read_format_catalog(
    format_: Format,
    objects: Sequence[SourceObject],
    names: Sequence[str],
    settings: Settings,
    choice: ShardChoice,
    *,
    key: KeySource | None = None,
) -> Catalog:
    """Read the index of a checkpoint, and check it; `choice` also says which files are one checkpoint."""
    files = [EngineFile(name, each, settings) for name, each in zip(names, objects, strict=True)]
    placing = _Placing(files, settings, choice)
    of_checkpoints: list[Mapping[str, str]] = []
    differing: set[str] = set()
    remarks: list[str] = []
    read_index = _index_reader(format_, files, key)
    for group in _checkpoints(files, choice.checkpoint_of):
        index = read_index(group)
        for tensor in index.tensors:
            placing.add(tensor)
        of_checkpoints.append(index.metadata)
        differing |= {*index.differing}
        remarks += index.remarks
        for remark in index.remarks:  # a caller of load() sees no report
            _log.warning("%s: %s", printable(group[0].uri), printable(remark))
    settings.earlier.packed.clear()
    metadata = {key: value for each in of_checkpoints for key, value in each.items()}
    catalog = placing.catalog(metadata, format_.name)
    remarks += choice.remarks_on(placing.files_of_tensors())
    return catalog._replace(remarks=tuple(remarks), differing=differing | differing_keys(of_checkpoints))


def _index_reader(
    format_: Format, files: Sequence[EngineFile], key: KeySource | None
) -> Callable[[Sequence[CheckpointFile]], CheckpointIndex]:
    if key is None:
        return format_.read_index
    read_encrypted = getattr(format_, "read_encrypted_index", None)
    if read_encrypted is None:
        raise TamperedError("a key is given, and the file is not encrypted", uri=files[0].uri, hint=LEAVE_OUT)
    return partial(read_encrypted, key=key)


def _checkpoints(files: Sequence[EngineFile], numbers: Sequence[int]) -> list[list[EngineFile]]:
    if not numbers:
        return [list(files)]
    return [
        [file for file, each in zip(files, numbers, strict=True) if each == number] for number in sorted({*numbers})
    ]


class _Placed(NamedTuple):
    """A tensor, and the number of its file."""

    file: int
    entry: TensorEntry
    reader: Reader | None
    crc32: int | None


class _Placing:
    """Collects the tensors of a checkpoint."""

    def __init__(self, files: Sequence[EngineFile], settings: Settings, choice: ShardChoice) -> None:
        self._files, self._choice, self._max_rank = files, choice, settings.max_rank
        self._packed = settings.earlier.packed
        self._number_of: dict[CheckpointFile, int] = {file: number for number, file in enumerate(files)}
        self._placed: dict[str, _Placed] = {}
        self._overruled: set[int] = set()

    def add(self, tensor: TensorPlace) -> None:
        """Check a tensor, and add it unless the index takes it from another file."""
        number = self._number_of.get(tensor.file)
        if number is None:
            raise PluginError("the format placed a tensor in a file that is not one of the checkpoint's")
        file = self._files[number]
        try:
            entry = self._checked(tensor)
        except FormatError as error:
            error.uri, error.hint = error.uri or file.uri, error.hint or _HINT
            raise
        if self._choice.overrules(entry.name, number):
            self._overruled.add(number)
            return
        if entry.name in self._placed:
            first = self._files[self._placed[entry.name].file].uri
            if first == file.uri:
                raise FormatError(f"tensor {quoted(entry.name)} occurs twice", uri=file.uri, hint=_HINT)
            raise duplicate_tensor(entry.name, first, file.uri)
        self._placed[entry.name] = _Placed(number, entry, tensor.reader, tensor.crc32)

    def files_of_tensors(self) -> list[tuple[str, int]]:
        """Return the name of each tensor that was added, with the number of its file."""
        return [(name, each.file) for name, each in self._placed.items()]

    def catalog(self, metadata: dict[str, str], format_name: str) -> Catalog:
        """Return the catalog of all tensors that were added."""
        objects = [file.source_object for file in self._files]
        views = _Views(objects)
        computed: list[_Placed] = []
        tensors: list[ShardTensor] = []
        for placed in sorted(self._placed.values(), key=lambda each: (each.file, each.entry.begin, each.entry.end)):
            if placed.reader is None or placed.entry.begin == placed.entry.end:
                tensors.append(ShardTensor(views.shard_of(placed), placed.entry))
            else:
                computed.append(placed)
        shards = views.objects
        remark = f"Python unpacks {counted(len(computed), 'tensor')} that {format_name} does not hold as plain bytes"
        for each in computed:
            size_bytes = each.entry.end - each.entry.begin
            tensors.append(ShardTensor(len(shards), each.entry._replace(begin=0, end=size_bytes)))
            shards.append(_computed(objects[each.file], each, remark, self._packed))
        tensors.sort(key=lambda each: each.shard)  # keeps the order in each shard
        check_index(self._placed, self._choice, objects)
        return Catalog(
            shards,
            {each.entry.name: each for each in tensors},
            metadata,
            [b""] * len(shards),
            self._overruled,
            header_metadata=[{}] * len(shards),  # what its metadata say of encryption is not ours
            checksums={
                name: each.crc32
                for name, each in self._placed.items()
                if each.reader is None and each.crc32 is not None
            },
        )

    def _checked(self, tensor: TensorPlace) -> TensorEntry:
        name, dtype, shape, file, begin, reader, crc32 = tensor
        if not isinstance(name, str) or len(name) > MOST_NAME_CHARACTERS:
            raise FormatError("a tensor has a name that is too long, or no text")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise FormatError(f"the name of tensor {quoted(name)} holds a lone surrogate") from None
        if crc32 is not None and not (type(crc32) is int and 0 <= crc32 < 1 << 32):
            raise PluginError(f"the format gave tensor {quoted(name)} a CRC-32 that is no number of 32 bits")
        if len(shape) > self._max_rank or not all(type(each) is int and each >= 0 for each in (*shape, begin)):
            raise FormatError(f"tensor {quoted(name)} has an impossible shape or place")
        try:
            end = begin + byte_length(shape, dtype)
        except FormatError as error:
            error.message = f"tensor {quoted(name)}: {error.message}"
            raise
        size_bytes = file.size_bytes if reader is None else reader.size_bytes
        if end > size_bytes and end > begin:
            raise FormatError(f"tensor {quoted(name)} ends at byte {end} of {size_bytes}")
        return (
            TensorEntry(name, dtype, tuple(shape), begin, end)
            if end > begin
            else TensorEntry(name, dtype, tuple(shape), 0, 0)
        )


class _Views:
    """The objects of the engine for the files; tensors of one object do not overlap.

    Attributes:
        objects: The files, followed by further views of files.
    """

    def __init__(self, objects: Sequence[SourceObject]) -> None:
        self.objects = list(objects)
        self._ends: dict[int, dict[int, int]] = {number: {number: 0} for number in range(len(objects))}

    def shard_of(self, placed: _Placed) -> int:
        """Return the number of a view whose last tensor ends before this tensor begins; call it in file order."""
        entry, ends = placed.entry, self._ends[placed.file]
        shard = next((shard for shard, end in ends.items() if end <= entry.begin), None)
        if shard is None:
            if len(ends) == MOST_VIEWS:
                uri = self.objects[placed.file].uri
                raise FormatError(f"more than {MOST_VIEWS} tensors share their bytes", uri=uri, hint=_HINT)
            shard = len(self.objects)
            self.objects.append(self.objects[placed.file])
        ends[shard] = max(entry.end, ends.get(shard, 0))
        return shard


def _computed(file: SourceObject, placed: _Placed, remark: str, packed: PackedBytes) -> SourceObject:
    entry, reader = placed.entry, placed.reader
    assert reader is not None

    def read_into(buffer: memoryview, offset: int) -> int:
        """Fill the engine's buffer; an error is final, because the reads below were retried already."""
        try:
            reader.read_into(buffer, entry.begin + offset)
        except StreamerError as error:
            error.uri = error.uri or file.uri
            raise LastAttemptError(error) from error
        packed.add_unpacked(buffer.nbytes)
        return buffer.nbytes

    source = PythonSource(read_into, remark=remark)
    return replace(
        file, source=source, size_bytes=entry.end - entry.begin, version="", cache=None, compares_answers=False
    )
