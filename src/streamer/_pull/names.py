"""Checks the relative names of files: which of them are wanted, and which may be written to a disk. Pure.

A storage may list any name. Refused are names that leave the folder, names that a disk cannot store, a name that is
both a file and a folder, and names under which a pull keeps its own state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from streamer.core.checkpoint.half_pulled import INCOMPLETE
from streamer.core.errors import FormatError
from streamer.core.quoting import quoted

__all__ = ["STATE", "check_names", "is_safe", "is_selected"]

STATE = ".streamer-pull"  # the sub-folder with the pull's own state
LONGEST_SEGMENT_BYTES = 255  # NAME_MAX of Linux


def is_selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a file is wanted: it matches a pattern of `include`, if there are any, and none of `exclude`.

    Patterns are those of ``hf download``: they match the whole relative name, ``*`` also matches slashes, and a slash
    at the end means all files below.

    Example:
        >>> [is_selected(name, ["*.json", "vae/"], ["vae/b*"]) for name in ("a.json", "vae/c.bin", "vae/b.json", "d")]
        [True, True, False, False]
    """
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def is_safe(name: str) -> bool:
    r"""Whether a relative name stays in its folder, and a disk can store it.

    Example:
        >>> [is_safe(name) for name in ("vae/model.bin", "../a", "/a", "a//b", "", "a/.", "a\0", ".streamer-pull/b")]
        [True, False, False, False, False, False, False, False]
    """
    segments = name.split("/")
    if segments[0] in (STATE, INCOMPLETE) or "\0" in name:
        return False
    try:
        lengths = [len(each.encode("utf-8", "surrogateescape")) for each in segments]
    except UnicodeEncodeError:  # lone surrogates
        return False
    return max(lengths) <= LONGEST_SEGMENT_BYTES and not {"", ".", ".."}.intersection(segments)


def check_names(names: Iterable[str], uri: str) -> None:
    """Check names before anything is written.

    Args:
        names: Names relative to the folder.
        uri: The URI of the folder, without secrets.

    Raises:
        FormatError: a name cannot be the name of a file in the folder.
    """
    files = set(names)
    for name in sorted(files):
        if not is_safe(name):
            raise _refused(f"the storage lists {quoted(name)}, which is no name of a file in this folder", uri)
        folder = next((str(each) for each in PurePosixPath(name).parents if str(each) in files), None)
        if folder is not None:
            raise _refused(f"the storage lists {quoted(folder)} as a file, and as the folder of {quoted(name)}", uri)


def _refused(message: str, uri: str) -> FormatError:
    return FormatError(message, uri=uri, hint="Nothing was pulled. Leave it out with --exclude, or rename it there")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, each + "*" if each.endswith("/") else each) for each in patterns)
