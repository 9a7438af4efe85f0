"""What a caller gives to the public functions: that each argument is of a kind it can be, before anything is asked.

Messages say what was expected and of which type the other was. They never show it: it may hold a secret.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamer.core.errors import OptionError, UsageError
from streamer.core.secrets.redact import redact

__all__ = [
    "check_file_system",
    "check_letters",
    "check_name",
    "check_options",
    "check_progress",
    "check_storage_options",
    "check_switch",
    "check_uri",
    "check_uris",
]


def check_uris(given: Any) -> None:
    """Refuse what is neither a URI, nor several.

    Raises:
        UsageError: it is not.
    """
    is_one = isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable)
    try:
        listed = [given] if is_one else list(given)
    except TypeError:  # a tensor of no dimension says that it is iterable
        raise UsageError(f"a URI is text or a path, not {type(given).__name__}") from None
    if not listed:
        raise UsageError("no URI given")
    for each in listed:
        check_uri(each)


def check_uri(given: Any) -> None:
    """Refuse what is no URI.

    Raises:
        UsageError: it is neither text nor a path, or it is empty, or has letters that no name has.
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text:
        kind = "bytes" if isinstance(text, bytes) else "an empty one" if text == "" else type(given).__name__
        raise UsageError(f"a URI is non-empty text or a path, not {kind}", hint="Give one, or a list of them")
    check_letters(text, may_be_bytes=True)


def check_letters(uri: str, *, may_be_bytes: bool) -> None:
    r"""Refuse half a character, which no storage can be asked for.

    Args:
        uri: Or a part of one.
        may_be_bytes: It may hold what Python makes of a file's name that is not of UTF-8 (``\udcff``).

    Raises:
        UsageError: it holds one.
    """
    try:
        uri.encode(errors="surrogateescape" if may_be_bytes else "strict")
    except UnicodeEncodeError:
        raise UsageError(
            "The URI holds half a character, which no name can have",
            uri=redact(uri),
            hint="It was cut, or decoded wrongly: write it in UTF-8, or percent-encode it",
        ) from None


def check_options(given: Any, kind: type) -> None:
    """Refuse all but None and an instance of `kind`.

    Raises:
        OptionError: it is neither.
    """
    if given is not None and not isinstance(given, kind):
        raise OptionError(
            f"options is streamer.Options(…) or None, not {type(given).__name__}",
            hint="What is for the storage goes into storage_options",
        )


def check_storage_options(given: Any) -> None:
    """Refuse all but None, a mapping of names to values, and a sequence of these.

    Raises:
        OptionError: it is another.
    """
    is_several = isinstance(given, Sequence) and not isinstance(given, (str, bytes, bytearray))
    for each in given if is_several else [given]:
        if each is not None and not isinstance(each, Mapping):
            kind = type(each).__name__
            raise OptionError(
                f"storage_options is a mapping of names to values, not {kind}",
                hint="Give one for all URIs, or a list with one, or None, for each",
            )
        for name in each or ():
            check_name(name, "a name in storage_options")


def check_file_system(given: Any) -> None:
    """Refuse all but None and a file system of fsspec, which is imported where there is one.

    Raises:
        OptionError: it is another.
    """
    fsspec = sys.modules.get("fsspec")
    if given is not None and not (fsspec and isinstance(given, fsspec.AbstractFileSystem)):
        raise OptionError(
            f"fs is a file system of fsspec, not {type(given).__name__}", hint="As fsspec.filesystem(…) gives one"
        )


def check_progress(given: Any) -> None:
    """Refuse all but None, True, False and what can be called.

    Raises:
        OptionError: it is another.
    """
    if given is not None and not isinstance(given, bool) and not callable(given):
        kind = type(given).__name__
        raise OptionError(f"progress is True, False, None or a function of (bytes done, bytes in all), not {kind}")


def check_switch(name: str, given: Any) -> None:
    """Refuse all but True and False.

    Raises:
        OptionError: it is another.
    """
    if not isinstance(given, bool):
        raise OptionError(f"{name} is True or False, not {type(given).__name__}")


def check_name(given: Any, what: str) -> None:
    """Refuse what is no text.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(given, str):
        raise UsageError(f"{what} is text, not {type(given).__name__}")
