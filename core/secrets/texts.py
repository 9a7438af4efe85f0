"""Which texts are secret in a URL, its storage options and the environment, and how they are kept out of an error.

What is secret is everything but what an allow-list of names calls harmless, however deep in the options: passwords of a
chain's parts, URLs with a signature, logins. Texts shorter than `SHORTEST` are not looked for: "anon" and "default" are
words of our own messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from streamer import _native
from streamer.core.causes import with_causes
from streamer.core.errors import ConnectError, StorageError, StreamerError
from streamer.core.outages.transient import is_transient
from streamer.core.secrets.environment import secrets_of_environment

__all__ = ["SecretTexts"]

SHORTEST = 8  # characters
# They say where and how; whoever reads the message has to know.
OPEN_NAMES = frozenset(
    {
        "account_host",
        "account_name",
        "addressing_style",
        "branch",
        "cache_storage",
        "cache_type",
        "client_id",
        "compression",
        "container_name",
        "endpoint",
        "endpoint_url",
        "fo",
        "host",
        "hostname",
        "org",
        "profile",
        "project",
        "protocol",
        "ref",
        "region",
        "region_name",
        "repo",
        "requester_pays",
        "revision",
        "signature_version",
        "target_protocol",
        "tenant_id",
        "user",
        "user-agent",
        "username",
        "verify",
    }
)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::)")
_OPEN_PARTS = re.compile(r"\s*(?:\w*Endpoint|\w*Name|\w*Protocol|EndpointSuffix)\s*=", re.IGNORECASE)


class SecretTexts:
    """The secrets of one URL, its options, and those that the environment holds for clients of storages.

    Args:
        uri: The URL, chained or not.
        options: Its storage options.
    """

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        found = [*_texts_in(options or {}), *map(_sendable, secrets_of_environment())]
        self._urls = [part for text in (_sendable(uri), *found) if _URL.match(text) for part in text.split("::")]
        self._texts = [piece for text in found if not _URL.match(text) for piece in _pieces_of(text)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def masked(self, text: str) -> str:
        """Put ``***`` in the place of each; see native/http/secrets.h for what is recognized."""
        # Surrogates, of names that are no text, are none in UTF-8.
        return _native.masked(_sendable(text), self._texts, self._urls)

    def are_told_by(self, error: BaseException) -> bool:
        """Tell whether a traceback of `error`, with its causes, would show one, or what a terminal would obey."""
        return any(self._is_unfit(text) for each in with_causes(error) for text in _texts_of(each))

    @contextmanager
    def kept_out(self) -> Iterator[None]:
        """Take them out of the text of an error that passes, and take away its causes where they tell one.

        Raises:
            StorageError: in the place of an error that is not of this package and tells one; `ConnectError` where
                it may pass.
        """
        try:
            yield
        except StreamerError as error:
            self._clean(error)
            raise
        except Exception as error:
            if not self.are_told_by(error):
                raise
            raise (ConnectError if is_transient(error) else StorageError)(
                f"the storage failed with {type(error).__name__}",
                hint="Its text is not shown, as it holds a secret of the URL, of storage_options or of the environment",
            ) from None

    def _clean(self, error: StreamerError) -> None:
        for name in ("message", "hint", "code", "request_id"):
            text = getattr(error, name, None)
            if isinstance(text, str):
                setattr(error, name, self.masked(text))
        error.args = tuple(self.masked(each) if isinstance(each, str) else each for each in error.args)
        if any(self.are_told_by(cause) for cause in (error.__cause__, error.__context__) if cause is not None):
            error.__cause__ = error.__context__ = None

    def _is_unfit(self, text: str) -> bool:
        is_obeyed = not text.replace("\n", "").replace("\t", "").isprintable()
        return is_obeyed or self.masked(text) != _sendable(text)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            is_open = isinstance(each, str) and str(name).lower() in OPEN_NAMES and not _URL.match(each)
            yield from () if is_open else _texts_in(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _texts_in(each)
    elif isinstance(value, bytes):
        yield value.decode(errors="backslashreplace")
    elif isinstance(value, str):
        yield _sendable(value)


def _pieces_of(text: str) -> Iterator[str]:
    """Give the words of a header or a connection string, as each of them may be repeated alone."""
    for part in [text] if ";" not in text else text.split(";"):
        if _OPEN_PARTS.match(part):
            continue
        _, has_name, value = part.partition("=")
        words = [*part.split(), value if has_name else ""]
        yield from (word for word in {part, *words} if len(word) >= SHORTEST)


def _sendable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _texts_of(error: BaseException) -> list[str]:
    return [_shown(error, str), _shown(error, repr), *map(str, getattr(error, "__notes__", ()))]


def _shown(error: BaseException, show: Callable[[object], str]) -> str:
    try:
        return show(error)
    except Exception:  # what cannot be shown tells nothing
        return ""
