"""What an exception of a plug-in becomes: an error of this package that names the plug-in and what was called.

Guarantees: nothing that an exception's class does (a ``__str__`` that raises, a property of a common name) gets out of
here. Refuses nothing: errors of this package that the plug-in raises itself stay as they are.
"""

from __future__ import annotations

from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    HttpStatusError,
    ObjectNotFoundError,
    OutOfMemoryError,
    StorageError,
    StreamerError,
    TransferTimeoutError,
)
from streamer.core.outages.transient import STATUSES, is_transient
from streamer.plugins.guard.plugin import BrokenContractError, Plugin, kind_of

__all__ = ["HOOK", "description_of", "error_of", "is_own", "may_be_cause"]

SHOWN_CHARACTERS = 300  # of an exception's text: a sentence, and not a page of HTML
HOOK = "streamer_open_store"

# Python's own classes with a plain meaning; docs/write-a-plugin.md lists them.
_KNOWN: tuple[tuple[tuple[type[BaseException], ...], type[StorageError], str], ...] = (
    ((FileNotFoundError, NotADirectoryError, IsADirectoryError), ObjectNotFoundError, "There is no such object"),
    ((PermissionError,), AccessDeniedError, "The storage refuses access"),
    ((TimeoutError,), TransferTimeoutError, "The storage did not answer in time"),
    ((ConnectionError,), ConnectError, "No connection to the storage"),
)


def is_own(error: BaseException) -> bool:
    """Say whether an exception is a sound error of this package, which passes through."""
    if not issubclass(type(error), StreamerError):
        return False
    try:
        return isinstance(vars(error)["message"], str) and isinstance(str(error), str)
    except (Exception, SystemExit, GeneratorExit):  # a subclass whose `__init__` does not call ours
        return False


def may_be_cause(error: BaseException) -> bool:
    """Say whether Python can print a traceback with this exception: it asks each for its class."""
    try:
        isinstance(error, SyntaxError)
    except (Exception, SystemExit, GeneratorExit):
        return False
    return True


def error_of(
    error: BaseException,
    plugin: Plugin,
    method: str,
    uri: str | None,
    *,
    byte_range: tuple[int, int] | None = None,
    hides_text: bool = False,
) -> StreamerError:
    """Translate what a plug-in raised.

    Args:
        error: The exception.
        plugin: Who raised it.
        method: What was called.
        uri: What it was called for, without secrets.
        byte_range: Half-open range that was read, or None.
        hides_text: Leave out its text, which may hold a secret of the URL.
    """
    if issubclass(type(error), BrokenContractError):
        return plugin.error(f"broke its contract: {method} {_text_of(error)}", method=method, uri=uri)
    name, text = kind_of(error), "" if hides_text else _text_of(error)
    where = f"{name} in {method} of {plugin.label}"
    if issubclass(type(error), MemoryError):
        return OutOfMemoryError(f"no memory left: {where}", uri=uri, hint=text or None)
    known = _known(error, method)
    if known is not None:
        cls, words, status = known
        return cls(f"{words}: {where}", uri=uri, hint=text or None, byte_range=byte_range, status=status)
    said = f": {text}" if text else ""
    return plugin.error(f"raised {name} in {method}{said}", method=method, uri=uri)


def description_of(error: BaseException) -> str:
    """Give class and text of an exception."""
    text = _text_of(error)
    return f"{kind_of(error)}: {text}" if text else kind_of(error)


def _known(error: BaseException, method: str) -> tuple[type[StorageError], str, int | None] | None:
    """Find the class for an exception with a plain meaning, the words for it, and its HTTP status."""
    for classes, own, words in _KNOWN:
        if issubclass(type(error), classes):
            # Before a store is open no object was asked for: the file that is missing is one of the plug-in's.
            return None if own is ObjectNotFoundError and method == HOOK else (own, words, None)
    try:
        if not is_transient(error):
            return None
        statuses = [getattr(error, name, None) for name in ("status", "status_code")]
        status = next((int(each) for each in statuses if each in STATUSES), None)
    except Exception:  # of a property of its class
        return None
    if status is not None:
        return HttpStatusError, "The server could not answer", status
    return ConnectError, "The connection to the storage failed", None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:SHOWN_CHARACTERS].strip()
    except (Exception, SystemExit, GeneratorExit):
        return ""
