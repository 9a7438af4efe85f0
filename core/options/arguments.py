"""Checks that each argument of the public functions has a valid type, before any request is made.

Messages name the expected type and the actual one. They never show the value: it may hold a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamer.core.causes import raise_from
from streamer.core.errors import OptionError, UsageError
from streamer.core.imported import if_imported
from streamer.core.path_objects import is_path_object, text_of
from streamer.core.secrets.environment import variable
from streamer.core.secrets.redact import redact

# URLs that were damaged so that they look like paths: in quotes, with a slash that `Path` removed, without a colon, or
# with something before the scheme. As paths, they would be shown with password and signature, and saved to a disk.
_SCHEMES = "(abfss?|az|gc?s|hf|https?|nfs|s3a?|wasbs?)"
_MANGLED = re.compile(
    rf"""[\s"'<(]+[a-z][a-z0-9+.-]*:/|//[^/]*@|[^/:@\s]+:[^/@\s]+@[^/\s]+/|{_SCHEMES}(:/(?!/)|//|:\s+//|:\\)"""
    r"""|(?![.~])[^/]*[^/a-z0-9+._:-][^/]*://|[a-z][a-z0-9+.-]*:(?!:)[a-z0-9+.-]+://""",
    re.IGNORECASE,
)

# What nobody means as a path: a scheme without slashes, a variable that no shell has replaced, the text of no value.
_NO_PATH = re.compile(rf"((?i:{_SCHEMES}):)(?!//|:)|(\$[{{A-Za-z_])|None(?=/|\Z)")


def checked_uris(uris: Any) -> Any:
    """Check one URI, or an iterable of them, and return it, or a list: some can be iterated only once."""
    if isinstance(uris, (str, bytes, os.PathLike)) or not isinstance(uris, Iterable) or is_path_object(uris):
        check_uri(uris)
        return uris
    try:
        listed = list(uris)
    except TypeError:  # a tensor without dimensions has __iter__, but cannot be iterated
        raise UsageError(f"a URI is text or a path, not {type(uris).__name__}") from None
    if not listed:
        raise UsageError("no URI given")
    for each in listed:
        check_uri(each)
    return listed


def check_uri(uri: Any) -> None:
    """Check one URI."""
    text = text_of(uri)
    if not isinstance(text, str) or not text:
        kind = "bytes" if isinstance(text, bytes) else "an empty one" if text == "" else type(uri).__name__
        raise UsageError(f"a URI is non-empty text or a path, not {kind}", hint="Give one, or a list of them")
    check_letters(text, may_be_bytes=True)
    if _MANGLED.match(text):
        raise UsageError(
            "The URI is a damaged URL",
            hint="Pass the URL as plain text: without quotes or spaces around it, with its scheme, and not as a Path, "
            "which takes one of two slashes away",
        )


def check_destination(text: str) -> None:
    """Refuse to write to what is a mistake rather than a path, unless a file or folder of this name exists."""
    found = _NO_PATH.match(text)
    if found is None or os.path.lexists(text.partition("/")[0]):
        return
    if found[1]:
        what, hint = "The URI has a scheme, but no slashes after it", f"Write {found[1]}//… (a path: ./{found[1]}…)"
    elif found[3]:
        what, hint = "The URI begins with a variable that no shell has replaced", "Pass its value"
    else:
        what, hint = "The URI is the text of None", "Pass the URL or path, which a variable seems to lack"
    raise UsageError(what, uri=redact(text), hint=hint)


def check_letters(uri: str, *, may_be_bytes: bool) -> None:
    r"""Refuse half a character (a lone surrogate), which no request to a storage can hold."""
    try:
        uri.encode(errors="surrogateescape" if may_be_bytes else "strict")
    except UnicodeEncodeError:
        what = "The URI holds half a character, which no name can have"
        hint = "It was cut, or decoded wrongly: write it in UTF-8, or percent-encode it"
        raise_from(UsageError(what, uri=redact(uri), hint=hint), None)


def check_options(options: Any, kind: type) -> None:
    """Check for None or an instance of `kind`."""
    if options is not None and not isinstance(options, kind):
        raise OptionError(
            f"options is streamer.Options(…) or None, not {type(options).__name__}",
            hint="Options of the storage go into storage_options",
        )


def check_storage_options(storage_options: Any) -> None:
    """Check for None, a mapping of names to values, or a sequence of these."""
    is_several = isinstance(storage_options, Sequence) and not isinstance(storage_options, (str, bytes, bytearray))
    for each in storage_options if is_several else [storage_options]:
        if each is not None and not isinstance(each, Mapping):
            kind = type(each).__name__
            raise OptionError(
                f"storage_options is a mapping of names to values, not {kind}",
                hint="Give one mapping for all URIs, or a list with a mapping or None for each",
            )
        for name in each or ():
            check_name(name, "a name in storage_options")


def check_file_system(fs: Any) -> None:
    """Check for None or a file system of fsspec; a caller that has one has already imported fsspec."""
    fsspec = if_imported("fsspec")
    if fs is not None and not (fsspec and isinstance(fs, fsspec.AbstractFileSystem)):
        raise OptionError(
            f"fs is a file system of fsspec, not {type(fs).__name__}", hint="Pass the result of fsspec.filesystem(…)"
        )


def chosen_verification(verify: Any, environment: Mapping[str, str] | None = None) -> str:
    """Return ``"auto"``, ``"manifest"`` or ``"off"``: the argument, else ``STREAMER_VERIFY``, else ``"off"``.

    Example:
        >>> chosen_verification(None, {"STREAMER_VERIFY": "manifest"})
        'manifest'
    """
    word: Any = variable("STREAMER_VERIFY", environment) or "off" if verify is None else verify
    if not isinstance(word, str) or word not in ("auto", "manifest", "off"):
        name = "STREAMER_VERIFY" if verify is None else "verify"
        raise OptionError(f'{name} is "auto", "manifest" or "off", not {word!r}')
    return word


def check_progress(progress: Any) -> None:
    """Check for None, True, False or a callable."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        kind = type(progress).__name__
        raise OptionError(f"progress is True, False, None or a function of (bytes done, bytes in all), not {kind}")


def check_group(group: Any) -> None:
    """Check for None or a process group of torch that this process is in."""
    if group is None or is_group(group):
        return
    members = getattr(_distributed(), "GroupMember", None)
    is_outside = members is not None and group is members.NON_GROUP_MEMBER
    what = "of which this process is no member" if is_outside else f"not {type(group).__name__}"
    hint = "Pass what torch.distributed.new_group() returns, mesh.get_group(), or torch.distributed.group.WORLD"
    raise OptionError(f"group is a ProcessGroup of torch.distributed, {what}", hint=hint)


def is_group(group: Any) -> bool:
    """Say whether a value is a process group of torch; torch is not imported for it."""
    kind = getattr(_distributed(), "ProcessGroup", None)
    return kind is not None and isinstance(group, kind)


def check_switch(name: str, value: Any) -> None:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} is True or False, not {type(value).__name__}")


def check_name(name: Any, what: str) -> None:
    """Check for text."""
    if not isinstance(name, str):
        raise UsageError(f"{what} is text, not {type(name).__name__}")


def _distributed() -> Any:
    return getattr(if_imported("torch"), "distributed", None)
