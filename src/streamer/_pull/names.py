"""The names of the files of a folder, relative to it: which of them are wanted, and whether a disk may have them. Pure.

A storage may list anything. Refused: a name that leaves the folder, one that no disk can have, one that is a file and
a folder at the same time, and those under which a pull keeps its own state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from streamer.core.checkpoint.half_pulled import INCOMPLETE
from streamer.core.errors import FormatError
from streamer.core.quoting import quoted

__all__ = ["STATE", "check_names", "is_safe", "is_selected"]

STATE = ".streamer-pull"  # the folder of a pull's own state, in the folder that it fills
LONGEST_SEGMENT_BYTES = 255  # NAME_MAX of Linux


def is_selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a file is wanted: it matches one of `include`, if there are any, and none of `exclude`.

    Patterns are those of ``hf download``: of the whole relative name, ``*`` matches slashes, too, and a slash at the
    end means all that is below.

    Example:
        >>> [is_selected(name, ["*.json", "vae/"], ["vae/b*"]) for name in ("a.json", "vae/c.bin", "vae/b.json", "d")]
        [True, True, False, False]
    """
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def is_safe(name: str) -> bool:
    r"""Whether a relative name stays in its folder, and a disk can have it.

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
        names: Relative to the folder.
        uri: Of the folder, without secrets.

    Raises:
        FormatError: one of them cannot be the name of a file in the folder.
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
