"""Paths of files on disks: their names as text, the path that a ``file://`` URL names, and links in its last part.

A URL is taken literally, as by fsspec. Percent codes (``%20`` for a space, RFC 8089) are decoded only if there is no
file of the literal name. The host ``localhost`` is dropped, unless only a folder of that name has the file. The kernel
follows all links but one in the last part.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from glob import glob
from pathlib import Path
from urllib.parse import unquote

from streamer.core.errors import UsageError
from streamer.core.secrets.redact import redact

PREFIXES = ("file://", "local://", "file:", "local:")  # fsspec's local file system strips the same prefixes
_UNUSUAL = re.compile(r"//|/\.?(?:/|\Z)")  # in an absolute path

MOST_LINKS = 40  # the kernel's limit


def absolute_path(uri: str) -> str:
    """Return the absolute path of a URL or path; ``..`` is left to the kernel, which alone resolves links.

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
                hint="Change to a directory that exists, or give an absolute path",
            ) from None
    is_plain = os.path.isabs(path) and _UNUSUAL.search(path) is None
    return path if is_plain else str(Path(path).absolute())  # it takes 5 us, for each of a thousand shards


def _is_encoded(path: str) -> bool:
    """Say whether only the decoded path exists; for a pattern or missing file, whether only its decoded folder does."""
    decoded = _decoded(path)
    for written, meant in ((path, decoded), (os.path.dirname(path), os.path.dirname(decoded))):
        if _is_there(written):
            return False
        if _is_there(meant):
            return True
    return False


def _decoded(path: str) -> str:
    """Decode percent codes to the bytes of a name on the disk, the encoding of `Path.as_uri`."""
    return unquote(path, encoding=sys.getfilesystemencoding(), errors="surrogateescape")


def _is_there(path: str) -> bool:
    return os.path.lexists(path) or bool(glob(path))  # the characters of a pattern may also be part of a name


def _prefix_of(uri: str) -> str:
    """Return the prefix before the path, in lower case; ``FILE:`` in upper case is a prefix only with both slashes."""
    if ":" not in uri:
        return ""
    scheme, mark, _ = uri.partition("://")
    spelled = scheme.lower() + mark if mark else uri
    return next((prefix for prefix in PREFIXES if spelled.startswith(prefix)), "")


def is_replaceable(path: str) -> bool:
    """Say whether a rename to a path replaces nothing, or a regular file; never a device, a FIFO, a socket or a link.

    Example:
        >>> is_replaceable("/dev/null"), is_replaceable("/etc/hostname")
        (False, True)
    """
    return not os.path.lexists(path) or (os.path.isfile(path) and not os.path.islink(path))


def followed(path: str) -> str:
    """Return the path of the file that a link, or a link to a link, leads to; return any other path unchanged.

    Folders of the path are not resolved, because the text of a link such as ``/proc/PID/root`` does not lead to its
    target. A link whose text names another file than the kernel opens (``/proc/PID/fd/3``) is returned unchanged, too.

    Example:
        >>> followed("/etc/../etc/hostname")
        '/etc/../etc/hostname'
    """
    target = path
    for _ in range(MOST_LINKS):
        try:
            target = os.path.join(os.path.dirname(target), os.readlink(target))
        except OSError:  # not a link, or no such file
            break
    try:
        is_same = os.path.samefile(path, target)
    except OSError:  # one of them is not there, or not any more
        is_same = not os.path.exists(path)
    return target if is_same else path


_IS_UTF8 = sys.getfilesystemencoding() == "utf-8"


def disk_name(text: str) -> str:
    """Return the path for Python's file functions.

    Example:
        >>> disk_name("model.safetensors")
        'model.safetensors'
    """
    return text if _IS_UTF8 or text.isascii() else os.fsdecode(text.encode("utf-8", "surrogateescape"))


def text_of(name: str) -> str:
    """Return a path of Python's file functions as text.

    If the locale cannot encode a path, it cannot come from the disk, so it is already text.
    """
    if _IS_UTF8 or name.isascii():
        return name
    try:
        return os.fsencode(name).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
NO_ROOM_NAMES = frozenset(errno.errorcode[number] for number in NO_ROOM)
