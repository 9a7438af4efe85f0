"""Calls the functions of a plug-in: whatever they raise becomes an error that names it, and every call ends in time.

Guarantees: what leaves is an answer, an error of this package, or an interrupt of the user's: that comes to the main
thread, where a plug-in is not called (`Calls.ask`), and nothing that it raises there by itself is taken for one. No
error shows a secret of the URL or its options.
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
        plugin: Whose functions.
        uri: The URL.
        options: Its storage options.
        limits: Of the load.

    Attributes:
        plugin: Whose functions.
        limits: Of the load.
        uri: The URL, without secrets.
    """

    def __init__(self, plugin: Plugin, uri: str, options: Mapping[str, Any], limits: Limits) -> None:
        self.plugin, self.limits, self.uri = plugin, limits, redact(uri)
        self._secrets = SecretTexts(uri, options)
        self._hides_causes = self.uri != uri

    def ask(
        self, method: str, function: Callable[[], Answer], uri: str | None = None, *, limit_s: float | None = None
    ) -> Answer:
        """Call a function on a thread of its own, with the caller's context variables.

        Args:
            method: Its name in errors.
            function: Called once. What it does with the plug-in's answer is timed, too.
            uri: What it is called for, without secrets; None: the URL.
            limit_s: How long it may take; None: `Limits.block_deadline_s`.

        Raises:
            TransferTimeoutError: it did not return in time; its thread is left behind.
            StreamerError: as `call`.
        """
        limit_s = self.limits.block_deadline_s if limit_s is None else limit_s
        uri = self.uri if uri is None else uri
        with self._secrets.kept_out():
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
            method: Its name in errors.
            function: Called once, with `arguments`.
            arguments: For it.
            uri: What it is called for, without secrets.
            byte_range: Half-open range that it reads, or None.

        Raises:
            StreamerError: what it raised itself, or what that becomes (`failures.py`).
        """
        with self._secrets.kept_out():
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
        raise failure  # out of the block, as it would become the context there


def _is_of_user(error: BaseException) -> bool:
    """Say whether it is an interrupt of the user's: Python raises those on the main thread alone."""
    return issubclass(type(error), KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
