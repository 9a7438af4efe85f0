"""The interface of a format, which chooses the files of a checkpoint and finds the tensors in them.

A format only parses. It reads a few small ranges of its files, and returns an index: names, dtypes, shapes, and the
place of the bytes of each tensor. The engine then reads the bytes, with all features of a load: parallel requests,
retries, parts of tensors, a memory limit. Bytes that are stored as one plain range are read natively. For all other
bytes (compressed, strided, in pieces) the format returns a `Reader`, which Python threads call.

Guarantees: the result of a format is checked before it is used, and a read never leaves its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from streamer.core.errors import FormatError, TruncatedError
from streamer.core.format.foreign_formats import foreign_format
from streamer.core.quoting import names_text
from streamer.core.store.sources import hookspec

if TYPE_CHECKING:  # the engine imports numpy, and `streamer.plugins` is imported without it
    from streamer.core.encryption.keys import KeySource
    from streamer.core.engine.native_session import SourceObject
    from streamer.core.options.settings import Settings

HEAD_BYTES = 512  # the beginning of a file that `Format.is_format` gets: a zip archive names its first member there
MOST_READ_BYTES = 64 << 20  # in all ranges of one read; an index of a million tensors is this large


@runtime_checkable
class Reader(Protocol):
    """Bytes that Python produces, at any offset. Thread-safe.

    Attributes:
        size_bytes: Number of its bytes.
    """

    size_bytes: int

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the whole buffer with the bytes from an offset on; keep no reference to the buffer."""


class CheckpointFile(ABC):
    """One file of a checkpoint, read by ranges. It is a `Reader`.

    Attributes:
        name: Its name in its folder.
        uri: Its URL without secrets, for messages.
        size_bytes: Its size.
    """

    def __init__(self, name: str, uri: str, size_bytes: int) -> None:
        self.name, self.uri, self.size_bytes = name, uri, size_bytes

    def read(self, begin: int, end: int) -> bytes:
        """Read one range; see `read_ranges`."""
        return self.read_ranges([(begin, end)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read small ranges, at the same time.

        Args:
            ranges: First byte, and the byte after the last, of each range, in any order.

        Raises:
            FormatError: the ranges are too large for an index.
            TruncatedError: a range does not lie in the file.
            StorageError: and its kinds, from the storage.
        """
        for begin, end in ranges:
            if not 0 <= begin <= end <= self.size_bytes:
                raise TruncatedError(
                    f"bytes {begin}-{end - 1} belong to the file's index, but the file has {self.size_bytes}",
                    uri=self.uri,
                    hint="It was cut short, or is damaged: upload or download it again",
                )
        if sum(end - begin for begin, end in ranges) > MOST_READ_BYTES:
            what = f"the file's index takes more than {MOST_READ_BYTES >> 20} MiB, the limit for an index"
            raise FormatError(what, uri=self.uri, hint="It is damaged, or no checkpoint")
        return self._read(ranges)

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer; see `Reader.read_into`."""

    @abstractmethod
    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges that lie in the file."""


class EngineFile(CheckpointFile):
    """A file in a storage, read by the engine.

    Attributes:
        source_object: The file, with the version of the bytes that were read: a later read of another version fails.
    """

    def __init__(self, name: str, source_object: SourceObject, settings: Settings) -> None:
        super().__init__(name, source_object.uri, source_object.size_bytes)
        self.source_object, self._settings = source_object, settings

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer; raises as a load does."""
        from streamer.core.engine.byte_reads import read_into  # noqa: PLC0415 (imports numpy)

        def count(stats: Mapping[str, int]) -> None:
            self._settings.earlier.packed.add_packed(buffer.nbytes, stats["cached_bytes"])

        if buffer.nbytes:
            read_into(self.source_object, offset, buffer, self._settings, count)

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        from streamer.core.engine.byte_reads import read_bytes  # noqa: PLC0415 (imports numpy)

        found, (self.source_object,) = read_bytes(
            [self.source_object], [(0, begin, end) for begin, end in ranges], self._settings
        )
        return found


class BytesFile(CheckpointFile):
    """A file in memory, for tests of a format."""

    def __init__(self, data: bytes, name: str = "file", uri: str = "memory://file") -> None:
        super().__init__(name, uri, len(data))
        self._data = data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer."""
        buffer.cast("B")[:] = self._data[offset : offset + buffer.nbytes]

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._data[begin:end] for begin, end in ranges]


class TensorPlace(NamedTuple):
    """One tensor, and where its bytes are: row by row, in little-endian order.

    Attributes:
        name: Its name; each name once in a checkpoint.
        dtype: A key of `streamer.core.format.dtypes.DTYPE_BITS`.
        shape: Dimensions; empty for a scalar.
        file: The file that holds it, or one of them.
        begin: Offset of its first byte in the file, or in `reader`.
        reader: The reader of its bytes; None if the file holds them as they are. Tensors may share bytes.
        crc32: CRC-32 of its bytes, if the file has it. It is compared when the whole tensor is read from the file as it
            is; a `reader` compares what it reads itself.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: CheckpointFile
    begin: int = 0
    reader: Reader | None = None
    crc32: int | None = None


@dataclass(frozen=True)
class CheckpointIndex:
    """All tensors of a checkpoint.

    Attributes:
        tensors: The tensors.
        metadata: Other values of the files, as text.
        remarks: What is in the files and is neither a tensor nor among the metadata; for the report of a load.
        differing: The keys of the metadata for which the files have different values.
    """

    tensors: Sequence[TensorPlace]
    metadata: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    differing: Collection[str] = ()


class Format(Protocol):
    """A format of checkpoints. Thread-safe; it keeps nothing between two calls.

    Attributes:
        name: What users call it: ``"GGUF"``.
        suffixes: Ends of the names of its files: ``(".gguf",)``. An index like transformers' own is named after a
            suffix: ``*.bin.index.json``.
    """

    name: str
    suffixes: tuple[str, ...]

    def files_of(self, names: Sequence[str]) -> Sequence[str]:
        """Choose the files of a folder that are one checkpoint; return none if the folder has no files of this format.

        Args:
            names: Names of the files in the folder that end with a suffix; a hidden file only if its whole name is a
                suffix.

        Raises:
            FormatError: there are several checkpoints, or a checkpoint is incomplete.
        """

    def is_format(self, head: bytes) -> bool:
        """Say whether a file that begins with these `HEAD_BYTES` bytes (fewer of a shorter file) is of this format."""

    def read_index(self, files: Sequence[CheckpointFile]) -> CheckpointIndex:
        """Find the tensors.

        Args:
            files: The files of one checkpoint: chosen by `files_of`, listed in an index, or one file that the user
                named.

        Raises:
            FormatError: they are malformed; no other error, whatever the bytes are.
            EncryptionKeyError: they are encrypted.
            TruncatedError: a file ends too early.
            StorageError: and its kinds: raised by the files.
        """


class EncryptedFormat(Format, Protocol):
    """A format of this package whose files another library may have encrypted."""

    def read_encrypted_index(self, files: Sequence[CheckpointFile], key: KeySource) -> CheckpointIndex:
        """Find the tensors of encrypted files; each must have a `Reader` that authenticates its bytes.

        Args:
            files: As for `Format.read_index`.
            key: The key, or what it is derived from.

        Raises:
            EncryptionKeyError: the key cannot be used for these files.
            TamperedError: a file is not encrypted, or not as it was saved.
            StreamerError: and as `Format.read_index`.
        """


class FormatHooks:
    """The hook specification that every format, ours included, implements."""

    @hookspec(firstresult=True)
    def streamer_format(self) -> Format | None:
        """Return the format of the entry point."""


def only_file(names: Sequence[str], what: str) -> Sequence[str]:
    """Return the names if there is at most one: the `Format.files_of` of a format whose checkpoints are one file."""
    if len(names) > 1:
        hint = "Name the one to load"
        raise FormatError(f"the folder holds {len(names)} {what}: {names_text(names)}", hint=hint)
    return names


def not_of(what: str, head: bytes, hint: str) -> FormatError:
    """Return the error for a file that is of another format than its name says: a web page, a pointer of Git LFS, …."""
    foreign = foreign_format(head[:8])
    if foreign is None:
        return FormatError(f"this is no {what}", hint=hint)
    return FormatError(f"this is no {what}, but {foreign.what}", hint=foreign.hint)


@contextmanager
def about(file: CheckpointFile, hint: str | None = None) -> Iterator[None]:
    """Name a file in the errors of a ``with`` block; `hint` is added to errors without one."""
    try:
        yield
    except FormatError as error:
        error.uri, error.hint = error.uri or file.uri, error.hint or hint
        raise
