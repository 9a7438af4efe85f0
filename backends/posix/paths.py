"""Which path a ``file://`` URL means.

A URL is taken literally, as by fsspec; only where no such file exists, percent codes are decoded (RFC 8089): ``%20``
for a space. The host ``localhost`` is dropped, but where only a folder of that name has the file.
"""

from __future__ import annotations

import os
import re
import sys
from glob import glob
from pathlib import Path
from urllib.parse import unquote

from streamer.core.errors import UsageError
from streamer.core.secrets.redact import redact

__all__ = ["absolute_path"]

PREFIXES = ("file://", "local://", "file:", "local:")  # those that fsspec's local file system strips
_UNUSUAL = re.compile(r"//|/\.?(?:/|\Z)")  # in an absolute path


def absolute_path(uri: str) -> str:
    """Return the absolute path of a URL or path; ``..`` is left to the kernel, which alone resolves links.

    Raises:
        UsageError: the path has a NUL in it, the URL a login, or the working directory does not exist any more.

    Example:
        >>> absolute_path("file://localhost/models/llama")
        '/models/llama'
    """
    if "\0" in uri:
        raise UsageError(f"A path cannot hold a NUL: {redact(uri)!r}")
    prefix = _prefix_of(uri)
    path = os.path.expanduser(uri[len(prefix) :])
    beginning = path.partition("/")[0]
    if prefix.endswith("//") and "@" in beginning and not os.path.lexists(beginning):
        raise UsageError("A file:// URL has no login and no host", uri=redact(uri), hint="Expected file:///folder/file")
    if prefix.endswith("//") and beginning == "localhost":
        meant = path.removeprefix("localhost") or "/"
        path = path if os.path.lexists(path) and not os.path.lexists(meant) else meant
    if prefix and "%" in path and _is_encoded(path):
        path = _decoded(path)
    if not os.path.isabs(path):
        try:
            os.getcwd()
        except OSError:
            raise UsageError(
                "The working directory does not exist any more",
                uri=redact(uri),
                hint="Change into one that does, or give an absolute path",
            ) from None
    is_plain = os.path.isabs(path) and _UNUSUAL.search(path) is None
    return path if is_plain else str(Path(path).absolute())  # which takes 5 us, for each of a thousand shards


def _is_encoded(path: str) -> bool:
    """Tell whether only the decoded path exists; of a pattern, or of a file that is missing, only its folder."""
    decoded = _decoded(path)
    for written, meant in ((path, decoded), (os.path.dirname(path), os.path.dirname(decoded))):
        if _is_there(written):
            return False
        if _is_there(meant):
            return True
    return False


def _decoded(path: str) -> str:
    """Decode percent codes to the bytes of a name on the disk: `Path.as_uri` writes them so."""
    return unquote(path, encoding=sys.getfilesystemencoding(), errors="surrogateescape")


def _is_there(path: str) -> bool:
    return os.path.lexists(path) or bool(glob(path))  # marks of a pattern are letters of names, too


def _prefix_of(uri: str) -> str:
    """Return what comes before the path, in small letters; ``FILE:`` is one only with both slashes."""
    if ":" not in uri:
        return ""
    scheme, mark, _ = uri.partition("://")
    spelled = scheme.lower() + mark if mark else uri
    return next((prefix for prefix in PREFIXES if spelled.startswith(prefix)), "")
