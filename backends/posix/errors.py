"""Translates errors of the operating system about files into this package's errors, and says why a path is missing.

It reads at most `LOOKED_AT` names of one folder, and opens no file.
"""

from __future__ import annotations

import errno
import os
import re
from itertools import islice

from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from streamer.core.folders.paths import NO_ROOM
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import redact
from streamer.core.store.presence import near_names

LOOKED_AT = 5000  # names of one folder

_USUAL = "Check the path, and that its disk is mounted"
# The form of a repository on the Hub; a path of a file has more parts, or a suffix.
_REPOSITORY = r"(?!.*(?:--|\.\.))\w[\w.-]{0,95}/\w[\w.-]{0,95}(@[\w./-]+)?"
_SUFFIX = r"\.(safetensors|json|bin|pt|pth|gguf)\Z"
_AROUND = " \t\r\n'\""
_VARIABLE = r"\$\w+|\$\{\w+\}"
_BRACES = r"\{[^{}/]*,[^{}/]*\}"
_ONE_COLON = r"(abfss?|az|gc?s|hf|https?|nfs|s3a?):(?![/:])"


def storage_error(error: OSError, path: str) -> StorageError:
    """Return this package's error for an error of the operating system about the file or folder at `path`."""
    code = errno.errorcode.get(error.errno or 0)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ObjectNotFoundError(
            "No such file or folder", uri=redact(path), hint="Check the path, and that its disk is mounted", code=code
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "Check the permissions of it, and of the folders above it"
        return AccessDeniedError("The file system refuses access", uri=redact(path), hint=hint, code=code)
    if error.errno == errno.EROFS:
        hint = "It is mounted read-only: write to another disk"
    elif error.errno == errno.EFBIG:
        hint = "Raise the limit of the process (ulimit -f), or write to a disk that takes files of this size"
    elif error.errno in NO_ROOM:
        hint = "Free some space, or write to another disk"
    else:
        hint = "Check the path and the disk; the kernel's log (dmesg) may tell more"
    return StorageError(f"The file system failed: {error.strerror}", uri=redact(path), hint=hint, code=code)


def hint_for_missing(path: str, text: str) -> str:
    """Say what to do about a path that does not exist."""
    if os.path.islink(path):
        return f"It is a link to {_target(path)}, which leads nowhere: was that moved, deleted, or never downloaded?"
    if (mistake := _mistake_in(text)) is not None:
        return mistake
    parent, name = _first_missing(path)
    if os.path.isfile(parent):
        return f"{quoted(os.path.basename(parent))} is a file, not a folder"
    nearby = near_names(name, _names_in(parent))
    is_near = nearby.startswith("Near")
    if re.fullmatch(_REPOSITORY, text, re.ASCII) and not re.search(_SUFFIX, text, re.IGNORECASE):
        near = f". {nearby}" if is_near else ""
        return f"A model of the Hugging Face Hub is hf://{text}; otherwise check the path{near}"
    if is_near:
        return f"{quoted(name)} does not exist. {nearby}"
    return f"{_USUAL}. {nearby}" if nearby and parent == os.path.dirname(path) else _USUAL


def _mistake_in(text: str) -> str | None:
    """Say what is wrong with the text of a path; None if nothing is."""
    if scheme := re.match(_ONE_COLON, text, re.IGNORECASE):
        return f"A URL has two slashes after its scheme: {scheme[0]}//…"
    if text != text.strip(_AROUND):
        return "There is a space, a quote or a line end around it: strip that"
    if variable := re.search(_VARIABLE, text):
        return f"{variable[0]} is not replaced by its value here: os.path.expandvars does that"
    if re.search(_BRACES, text):
        return "Braces are no pattern here: use *, ? or [...] in the last part, or give a list of the files"
    if text.startswith("file://") and not text.startswith("file:///"):
        return "A file:// URL has an absolute path: file:///folder/file"
    return None


def _target(link: str) -> str:
    try:
        return quoted(os.readlink(link))
    except OSError:
        return "another place"


def _first_missing(path: str) -> tuple[str, str]:
    """Return the last folder of the path that exists, and the name that is missing in it."""
    parent, name = os.path.split(path)
    while name and not os.path.lexists(parent):
        parent, name = os.path.split(parent)
    return parent, name


def _names_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, LOOKED_AT))
    except OSError:
        return []
