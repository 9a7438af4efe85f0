"""The values that cross Run:ai's C interface: requests for ranges of files, the files of a streamer, and error codes.

Each file is looked up once, and all reads until the streamer's end have one version. Folders in any storage are listed
for all of Run:ai's interfaces. The codes are those of ``native/runai/codes.h``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

import fsspec

from streamer._locate_shards import opened_store
from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.fsspec.foreign_file_systems import with_guarded_links
from streamer.backends.private_names.fsspec import path_of
from streamer.compat.runai.variables import storage_options_for
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import (
    LoadCancelledError,
    ObjectNotFoundError,
    OptionError,
    OutOfMemoryError,
    PluginError,
    RangeResponseError,
    StorageError,
    StreamerError,
    TruncatedError,
    UnknownSchemeError,
    UsageError,
)
from streamer.core.options.settings import Settings, resolve
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.shards.shards import source_object
from streamer.core.store.names import scheme_of
from streamer.core.store.parallel import in_parallel
from streamer.plugins.registry import enabled, refuse_accidental_file_systems

__all__ = ["Code", "FileLookup", "Range", "code_of", "listed_files", "ranges_at", "texts_at"]


class Code(IntEnum):
    """The result of a call or a range."""

    SUCCESS = 0
    FINISHED = 1
    FILE_ACCESS = 2
    END_OF_FILE = 3
    INVALID_PARAMETER = 7
    UNKNOWN = 11
    NO_BACKEND = 12
    WRONG_ANSWER = 15
    OTHER_CREDENTIALS = 18
    OUT_OF_MEMORY = 26


_CODES: tuple[tuple[type[StreamerError], Code], ...] = (  # the first matching class counts
    (LoadCancelledError, Code.FINISHED),
    (TruncatedError, Code.END_OF_FILE),
    (RangeResponseError, Code.WRONG_ANSWER),
    (StorageError, Code.FILE_ACCESS),
    (OutOfMemoryError, Code.OUT_OF_MEMORY),
    (UnknownSchemeError, Code.NO_BACKEND),
    (PluginError, Code.NO_BACKEND),
    (UsageError, Code.INVALID_PARAMETER),
)


def code_of(error: BaseException) -> Code:
    """Return the code of an error.

    Example:
        >>> code_of(TruncatedError("the file is shorter than before"))
        <Code.END_OF_FILE: 3>
    """
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.UNKNOWN)


class Range(NamedTuple):
    """One requested range."""

    submission: int  # the number of its request
    file: int  # the position of its file in the request
    position: int  # the position of the range among those of its file
    path: str  # path or URL of the file
    begin: int  # first byte
    end: int  # byte after the last
    target: int  # address of the caller's memory


def texts_at(address: int, count: int) -> list[str]:
    """Copy an array of C strings; names of files may not be valid UTF-8."""
    texts = (ctypes.c_char_p * count).from_address(address) if count else ()
    return [(each or b"").decode("utf-8", "surrogateescape") for each in texts]


def numbers_at(address: int, count: int, kind: type[ctypes.c_uint32] | type[ctypes.c_uint64]) -> list[int]:
    """Copy an array of integers."""
    return list((kind * count).from_address(address)) if count else []


def ranges_at(  # noqa: PLR0917  the tables of C
    submission: int, file_count: int, paths: int, range_counts: int, offsets: int, sizes: int, targets: int
) -> list[Range]:
    """Copy the tables of a request from their addresses: the caller may reuse the tables when the call returns."""
    counts = numbers_at(range_counts, file_count, ctypes.c_uint32)
    tables = [numbers_at(each, sum(counts), ctypes.c_uint64) for each in (offsets, sizes, targets)]
    rows = zip(*tables, strict=True)
    return list(_ranges(submission, list(zip(texts_at(paths, file_count), counts, strict=True)), rows))


def _ranges(submission: int, files: list[tuple[str, int]], rows: Iterator[tuple[int, int, int]]) -> Iterator[Range]:
    for file, (path, count) in enumerate(files):
        for index in range(count):
            offset, size, target = next(rows)
            yield Range(submission, file, index, path, offset, offset + size, target)


class FileLookup:
    """Looks up files once. Thread-safe: two threads may look up the same file at the same time.

    Attributes:
        credentials: As for `storage_options_for`.
    """

    def __init__(self) -> None:
        self.credentials: Mapping[str, str] = {}
        self._found: dict[str, SourceObject] = {}

    def found(self, paths: Iterable[str], settings: Settings) -> dict[str, SourceObject | StreamerError]:
        """Return the file, or the error of its storage, for each path."""
        distinct = list(dict.fromkeys(paths))
        missing = [path for path in distinct if path not in self._found]
        looked_up: dict[str, SourceObject | StreamerError] = {}
        if missing:
            backends = enabled(uris=missing)

            def look_up(path: str) -> SourceObject | StreamerError:
                try:
                    refuse_accidental_file_systems([path])
                    options = storage_options_for(path, self.credentials)
                    with opened_store(path, options, None, settings, backends) as store:
                        return source_object(store, store.info(store.root))
                except StreamerError as error:
                    return error

            looked_up = dict(zip(missing, in_parallel(look_up, missing, role="open"), strict=True))
        self._found.update({path: each for path, each in looked_up.items() if isinstance(each, SourceObject)})
        return {path: self._found.get(path) or looked_up[path] for path in distinct}

    def pin(self, paths: Iterable[str], pinned: Iterable[SourceObject]) -> None:
        """Keep the versions of a read, which later reads must have, too."""
        self._found.update(zip(paths, pinned, strict=True))


def listed_files(
    folder: str, options: Mapping[str, object], *, is_recursive: bool, allowed: Sequence[str], ignored: Sequence[str]
) -> list[tuple[str, int]]:
    """List a folder.

    Returns:
        Path and size of each file, sorted; the paths begin with `folder`.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/listed/a.txt": b"abc", "/listed/in/b.bin": b""})
        >>> listed_files("memory://listed", {}, is_recursive=True, allowed=["*.txt"], ignored=[])
        [('memory://listed/a.txt', 3)]
    """
    if not folder:
        raise OptionError("the name of the folder is empty", hint='The working directory is "."')
    refuse_accidental_file_systems([folder])
    scheme = scheme_of(folder)
    if scheme in fsspec.available_protocols():
        found = _with_fsspec(folder, scheme, options, is_recursive)
    else:
        found = _with_store(folder, options, is_recursive)
    base = folder.rstrip("/")
    named = ((f"{base}/{name}", size) for name, size in found)
    return sorted((path, size) for path, size in named if _is_wanted(path, allowed, ignored))


def _is_wanted(path: str, allowed: Sequence[str], ignored: Sequence[str]) -> bool:
    is_allowed = not allowed or any(fnmatchcase(path, pattern) for pattern in allowed)
    return is_allowed and not any(fnmatchcase(path, pattern) for pattern in ignored)


def _with_fsspec(
    folder: str, scheme: str, options: Mapping[str, object], is_recursive: bool
) -> Iterator[tuple[str, int]]:
    with SecretTexts(folder, options).masking_errors():
        try:
            fs = fsspec.filesystem(scheme, **with_guarded_links(f"{scheme}://", options))
            root = str(path_of(fs, folder)).rstrip("/")
            fs.invalidate_cache(root)
            found = fs.find(root, detail=True, maxdepth=None if is_recursive else 1)
            if root in found or (not found and not fs.isdir(root)):
                raise ObjectNotFoundError("there is no such folder", uri=redact(folder), hint="Check its name")
        except StreamerError:
            raise
        except Exception as error:
            raise_storage_error(error, redact(folder), hides_cause=redact(folder) != folder)
    for path, entry in found.items():
        yield path.removeprefix(root).lstrip("/"), int(entry.get("size") or 0)


def _with_store(folder: str, options: Mapping[str, object], is_recursive: bool) -> Iterator[tuple[str, int]]:
    if is_recursive:
        raise OptionError(f"{scheme_of(folder)}:// lists one folder at a time", hint="List it without is_recursive")
    with opened_store(folder, options, None, resolve(None)) as store:
        for info in store.find(store.root):
            size = store.info(info.path).size_bytes if info.size_bytes is None else info.size_bytes
            yield info.path.rpartition("/")[2], size or 0
