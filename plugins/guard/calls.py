"""Calls the functions of a plug-in: an exception becomes an error that names the plug-in, and every call ends in time.

Guarantees: faults of an exception's class (a ``__str__`` that raises, a property of a common name) raise nothing here.
Errors of this package that the plug-in itself raises stay unchanged.

Guarantees: a call returns an answer, or raises an error of this package or the user's interrupt. Python raises the
interrupt on the main thread. `Calls.ask` does not call a plug-in on that thread, so a KeyboardInterrupt of a plug-in is
not taken for the user's. No error shows a secret of the URL or its options.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

from streamer.core.discovery.entry_points import DISABLED
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    HttpStatusError,
    ObjectNotFoundError,
    OutOfMemoryError,
    PluginError,
    StorageError,
    StreamerError,
    TransferTimeoutError,
)
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import STATUSES, is_transient
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.parallel import AnswerTimeoutError, in_parallel

__all__ = [
    "HOOK",
    "BrokenContractError",
    "Calls",
    "Plugin",
    "description_of",
    "error_of",
    "is_own",
    "kind_of",
    "may_be_cause",
]

_NAME_OF_TYPE: Any = vars(type)["__name__"]

SHOWN_CHARACTERS = 300  # of an exception's text: enough for a sentence, not for a page of HTML
HOOK = "streamer_open_store"

# Python's own classes with a clear meaning; docs/write-a-plugin.md lists them.
_BUILTIN_ERRORS: tuple[tuple[tuple[type[BaseException], ...], type[StorageError], str], ...] = (
    ((FileNotFoundError, NotADirectoryError, IsADirectoryError), ObjectNotFoundError, "There is no such object"),
    ((PermissionError,), AccessDeniedError, "The storage refuses access"),
    ((TimeoutError,), TransferTimeoutError, "The storage did not answer in time"),
    ((ConnectionError,), ConnectError, "No connection to the storage"),
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

Answer = TypeVar("Answer")


class Plugin(NamedTuple):
    """One entry point of a distribution.

    Attributes:
        scheme: The URL scheme that it serves.
        entry_point: Its entry point, as declared.
        distribution: Name of the distribution that contains it.
        version: Version of that distribution.
    """

    scheme: str
    entry_point: str
    distribution: str
    version: str

    @property
    def label(self) -> str:
        """Name and version of the distribution."""
        return f"{self.distribution} {self.version}".rstrip()

    def error(self, what: str, *, method: str | None = None, uri: str | None = None) -> PluginError:
        """Make the error for a fault of the plug-in."""
        return PluginError(
            f"The backend {self.entry_point} of {self.label} {what}",
            uri=uri,
            hint=f"Update or uninstall it, or name it in {DISABLED}",
            scheme=self.scheme,
            distribution=self.distribution,
            version=self.version,
            method=method,
        )


class BrokenContractError(Exception):
    """An answer of a plug-in is not allowed by docs/write-a-plugin.md."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def kind_of(value: object) -> str:
    """Return the name of an answer's type. No attribute of the class is used, because it may be a property that fails.

    Example:
        >>> [kind_of(value) for value in (None, 7, [])]
        ['None', 'int', 'list']
    """
    return "None" if value is None else str(_NAME_OF_TYPE.__get__(type(value)))


def is_own(error: BaseException) -> bool:
    """Return whether an exception is a valid error of this package, which is raised unchanged."""
    if not issubclass(type(error), StreamerError):
        return False
    try:
        return isinstance(vars(error)["message"], str) and isinstance(str(error), str)
    except (Exception, SystemExit, GeneratorExit):  # a subclass whose `__init__` does not call ours
        return False


def may_be_cause(error: BaseException) -> bool:
    """Return whether Python can print a traceback with this exception: printing evaluates its class."""
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
        if isinstance(error, OSError) and error.errno in _FULL:
            return StorageError, "The storage is full, or cannot be written", None
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


class Calls:
    """Calls functions of one plug-in, for one URL.

    Attributes:
        plugin: The plug-in.
        limits: Bounds of the load.
        uri: The URL, without secrets.
    """

    def __init__(self, plugin: Plugin, uri: str, options: Mapping[str, Any], limits: Limits) -> None:
        self.plugin, self.limits, self.uri = plugin, limits, redact(uri)
        self._secrets = SecretTexts(uri, options)
        self._hides_causes = self.uri != uri

    def ask(
        self, method: str, function: Callable[[], Answer], uri: str | None = None, *, limit_s: float | None = None
    ) -> Answer:
        """Call a function on a separate thread, with the caller's context variables."""
        limit_s = self.limits.block_deadline_s if limit_s is None else limit_s
        uri = self.uri if uri is None else uri
        with self._secrets.masking_errors():
            question = partial(copy_context().run, partial(self._call, method, function, uri))
            give_up_at = time.monotonic() + limit_s
            try:
                return in_parallel(lambda asked: asked(), [question], role="plugin", give_up_at=give_up_at)[0]
            except AnswerTimeoutError:
                raise TransferTimeoutError(
                    f"{method} of {self.plugin.label} did not return within {limit_s:g} s",
                    uri=uri,
                    hint="Raise block_deadline_s in Options if the storage is this slow; else the plug-in hangs",
                ) from None

    def call(
        self,
        method: str,
        function: Callable[..., Answer],
        *arguments: Any,
        uri: str,
        byte_range: tuple[int, int] | None = None,
    ) -> Answer:
        """Call a function on this thread, which is one of the engine's."""
        with self._secrets.masking_errors():
            return self._call(method, partial(function, *arguments), uri, byte_range)

    def _call(
        self, method: str, function: Callable[[], Answer], uri: str, byte_range: tuple[int, int] | None = None
    ) -> Answer:
        try:
            return function()
        except BaseException as error:
            if is_own(error) or _is_of_user(error):
                raise
            failure = error_of(error, self.plugin, method, uri, byte_range=byte_range, hides_text=self._hides_causes)
            failure.__cause__ = error if may_be_cause(error) and not self._hides_causes else None
        raise failure  # outside of the block, where the exception would become its context


def _is_of_user(error: BaseException) -> bool:
    """Return whether an exception is the user's interrupt, which Python only raises on the main thread."""
    return issubclass(type(error), KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
