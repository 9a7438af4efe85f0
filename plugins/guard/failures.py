"""Translates an exception of a plug-in into an error of this package that names the plug-in and the called method.

Guarantees: faults of an exception's class (a ``__str__`` that raises, a property of a common name) raise nothing here.
Errors of this package that the plug-in itself raises stay unchanged.
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

SHOWN_CHARACTERS = 300  # of an exception's text: enough for a sentence, not for a page of HTML
HOOK = "streamer_open_store"

# Python's own classes with a clear meaning; docs/write-a-plugin.md lists them.
_BUILTIN_ERRORS: tuple[tuple[tuple[type[BaseException], ...], type[StorageError], str], ...] = (
    ((FileNotFoundError, NotADirectoryError, IsADirectoryError), ObjectNotFoundError, "There is no such object"),
    ((PermissionError,), AccessDeniedError, "The storage refuses access"),
    ((TimeoutError,), TransferTimeoutError, "The storage did not answer in time"),
    ((ConnectionError,), ConnectError, "No connection to the storage"),
)


def is_own(error: BaseException) -> bool:
    """Say whether an exception is a valid error of this package, which passes through."""
    if not issubclass(type(error), StreamerError):
        return False
    try:
        return isinstance(vars(error)["message"], str) and isinstance(str(error), str)
    except (Exception, SystemExit, GeneratorExit):  # a subclass whose `__init__` does not call ours
        return False


def may_be_cause(error: BaseException) -> bool:
    """Say whether Python can print a traceback with this exception: printing evaluates its class."""
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
    """Translate an exception of a plug-in.

    Args:
        error: The exception.
        plugin: The plug-in that raised it.
        method: The method that was called.
        uri: The object or folder of the call, without secrets.
        byte_range: Half-open range that was read, or None.
        hides_text: Leave out its text, which may hold a secret of the URL.
    """
    if issubclass(type(error), BrokenContractError):
        return plugin.error(f"broke its contract: {method} {_text_of(error)}", method=method, uri=uri)
    name, text = kind_of(error), "" if hides_text else _text_of(error)
    where = f"{name} in {method} of {plugin.label}"
    if issubclass(type(error), MemoryError):
        return OutOfMemoryError(f"no memory left: {where}", uri=uri, hint=text or None)
    meaning = _meaning(error, method)
    if meaning is not None:
        cls, words, status = meaning
        return cls(f"{words}: {where}", uri=uri, hint=text or None, byte_range=byte_range, status=status)
    said = f": {text}" if text else ""
    return plugin.error(f"raised {name} in {method}{said}", method=method, uri=uri)


def description_of(error: BaseException) -> str:
    """Return class and text of an exception."""
    text = _text_of(error)
    return f"{kind_of(error)}: {text}" if text else kind_of(error)


def _meaning(error: BaseException, method: str) -> tuple[type[StorageError], str, int | None] | None:
    """Return our class, the message and the HTTP status for an exception with a clear meaning; None for any other."""
    for classes, own, words in _BUILTIN_ERRORS:
        if issubclass(type(error), classes):
            # Before a store is open no object was requested, so the missing file belongs to the plug-in.
            return None if own is ObjectNotFoundError and method == HOOK else (own, words, None)
    try:
        if not is_transient(error):
            return None
        statuses = [getattr(error, name, None) for name in ("status", "status_code")]
        status = next((int(each) for each in statuses if each in STATUSES), None)
    except Exception:  # raised by a property of its class
        return None
    if status is not None:
        return HttpStatusError, "The server could not answer", status
    return ConnectError, "The connection to the storage failed", None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:SHOWN_CHARACTERS].strip()
    except (Exception, SystemExit, GeneratorExit):
        return ""
