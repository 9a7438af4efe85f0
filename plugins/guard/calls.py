"""Calls the functions of a plug-in: an exception becomes an error that names the plug-in, and every call ends in time.

Guarantees: a call returns an answer, or raises an error of this package or the user's interrupt. Python raises the
interrupt on the main thread. `Calls.ask` does not call a plug-in on that thread, so a KeyboardInterrupt of a plug-in is
not taken for the user's. No error shows a secret of the URL or its options.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from streamer.core.errors import TransferTimeoutError
from streamer.core.options.limits import Limits
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.parallel import AnswerTimeoutError, in_parallel
from streamer.plugins.guard.failures import error_of, is_own, may_be_cause
from streamer.plugins.guard.plugin import Plugin

__all__ = ["Calls"]

Answer = TypeVar("Answer")


class Calls:
    """Calls functions of one plug-in, for one URL.

    Args:
        plugin: The plug-in.
        uri: The URL.
        options: Its storage options.
        limits: Bounds of the load.

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
        """Call a function on a separate thread, with the caller's context variables.

        Args:
            method: Name of the method in errors.
            function: Called once. Its checks of the plug-in's answer are timed, too.
            uri: The object or folder of the call, without secrets; None for the URL.
            limit_s: How long the call may take; None for `Limits.block_deadline_s`.

        Raises:
            TransferTimeoutError: the call did not return in time; its thread is abandoned.
            StreamerError: as `call`.
        """
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
        """Call a function on this thread, which is one of the engine's.

        Args:
            method: Name of the method in errors.
            function: Called once, with `arguments`.
            arguments: Arguments of the function.
            uri: The object of the call, without secrets.
            byte_range: Half-open range that it reads, or None.

        Raises:
            StreamerError: raised by the function itself, or translated from its exception (`failures.py`).
        """
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
    """Say whether an exception is the user's interrupt, which Python only raises on the main thread."""
    return issubclass(type(error), KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
