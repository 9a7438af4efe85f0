"""Lists the files of a folder in any storage, for Run:ai's interfaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import fsspec

from streamer._locate_shards import opened_store
from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.fsspec.foreign_file_systems import with_guarded_links
from streamer.backends.private_names.fsspec import path_of
from streamer.core.errors import ObjectNotFoundError, OptionError, StreamerError
from streamer.core.options.settings import resolve
from streamer.core.secrets.hidden_arguments import hidden_uri, plain
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.names import scheme_of
from streamer.plugins.registry import refuse_accidental_file_systems

__all__ = ["listed_files"]


def listed_files(
    folder: str, options: Mapping[str, object], *, is_recursive: bool, allowed: Sequence[str], ignored: Sequence[str]
) -> list[tuple[str, int]]:
    """List a folder.

    Args:
        folder: Path or URL.
        options: The storage options.
        is_recursive: Also list its sub-folders.
        allowed: Patterns of whole paths; a file must match one, unless there are none.
        ignored: Patterns of whole paths; a file must match none.

    Returns:
        Path and size of each file, sorted; the paths begin with `folder`.

    Raises:
        ObjectNotFoundError: there is no such folder.
        OptionError: `folder` is empty, or its storage cannot list recursively.
        StorageError: or a subclass.

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
    uri = hidden_uri(folder)
    with SecretTexts(uri, options).masking_errors():
        try:
            fs = fsspec.filesystem(scheme, **plain(with_guarded_links(f"{scheme}://", options)))
            root = str(path_of(fs, folder)).rstrip("/")
            fs.invalidate_cache(root)
            found = fs.find(root, detail=True, maxdepth=None if is_recursive else 1)
            if root in found or (not found and not fs.isdir(root)):
                raise ObjectNotFoundError("there is no such folder", uri=redact(uri), hint="Check its name")
        except StreamerError:
            raise
        except Exception as error:
            raise_storage_error(error, redact(uri), hides_cause=redact(uri) != uri)
    for path, entry in found.items():
        yield path.removeprefix(root).lstrip("/"), int(entry.get("size") or 0)


def _with_store(folder: str, options: Mapping[str, object], is_recursive: bool) -> Iterator[tuple[str, int]]:
    if is_recursive:
        raise OptionError(f"{scheme_of(folder)}:// lists one folder at a time", hint="List it without is_recursive")
    with opened_store(hidden_uri(folder), options, None, resolve(None)) as store:
        for info in store.find(store.root):
            size = store.info(info.path).size_bytes if info.size_bytes is None else info.size_bytes
            yield info.path.rpartition("/")[2], size or 0
