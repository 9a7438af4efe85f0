"""Collects the secret texts of a URL, its storage options and the environment, and masks them in errors.

If a client finds credentials in other places (files, metadata servers, logins), it adds them.

Every option is secret, however deeply nested, unless `OPEN_NAMES` lists its name: passwords in a chain of URLs, signed
URLs, logins. Texts shorter than `SHORTEST` are not masked: "anon" and "default" are words of our own messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from streamer import _native
from streamer.core.causes import forget_locals, with_causes
from streamer.core.errors import ConnectError, StorageError, StreamerError
from streamer.core.secrets.environment import secrets_of_environment

SHORTEST = 8  # characters
# These options say where and how an object is read; the reader of a message needs them.
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
        "connection_verify",
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


_current: ContextVar[SecretTexts | None] = ContextVar("current", default=None)


def note_credential(text: str | None) -> None:
    """Mask a credential that a client uses in the errors of the current call."""
    texts = _current.get()
    if texts is not None and text:
        texts.add(text)


class SecretTexts:
    """The secrets of one URL, of its options, and of the environment for clients of storages."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        texts = [*_texts_in(options or {}), *map(_sendable, secrets_of_environment())]
        self._urls = [part for text in (_sendable(uri), *texts) if _URL.match(text) for part in text.split("::")]
        self._texts = [piece for text in texts if not _URL.match(text) for piece in _pieces_of(text)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def add(self, text: str) -> None:
        """Add a secret text."""
        self._texts += [piece for piece in _pieces_of(_sendable(text)) if piece not in self._texts]

    def masked(self, text: str) -> str:
        """Replace each secret by ``***``; native/http/secrets.h says which spellings are recognized."""
        # Lone surrogates, of file names that are not UTF-8, cannot be encoded.
        return _native.masked(_sendable(text), self._texts, self._urls)

    def are_shown_by(self, error: BaseException) -> bool:
        """Say whether a traceback of `error`, with its causes, would show a secret, or unprintable characters."""
        return any(self._is_unfit(text) for each in with_causes(error) for text in _texts_of(each))

    @contextmanager
    def masking_errors(self) -> Iterator[None]:
        """Mask the secrets in an error that leaves the block, and drop its causes if they show a secret.

        Its frames, which often refer to the error, drop their local variables: stores and files would live in a circle.
        """
        token = _current.set(self)
        try:
            yield
        except StreamerError as error:
            self._clean(error)
            forget_locals(error)
            raise
        except Exception as error:
            forget_locals(error)
            if not self.are_shown_by(error):
                raise
            from streamer.core.outages.transient import is_transient  # noqa: PLC0415 (an error)

            raise (ConnectError if is_transient(error) else StorageError)(
                f"the storage failed with {type(error).__name__}",
                hint="Its text is not shown, as it holds a secret of the URL, of storage_options or of the environment",
            ) from None
        finally:
            _current.reset(token)

    def _clean(self, error: StreamerError) -> None:
        for name in ("message", "hint", "code", "request_id"):
            text = getattr(error, name, None)
            if isinstance(text, str):
                setattr(error, name, self.masked(text))
        error.args = tuple(self.masked(each) if isinstance(each, str) else each for each in error.args)
        if any(self.are_shown_by(cause) for cause in (error.__cause__, error.__context__) if cause is not None):
            error.__cause__ = error.__context__ = None

    def _is_unfit(self, text: str) -> bool:
        is_unprintable = not text.replace("\n", "").replace("\t", "").isprintable()
        return is_unprintable or self.masked(text) != _sendable(text)


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
    """Split a header or a connection string into words, because an error may repeat a single word."""
    for part in [text] if ";" not in text else text.split(";"):
        if _OPEN_PARTS.match(part):
            continue
        _, has_name, value = part.partition("=")
        words = [*part.split(), value if has_name else ""]
        yield from (word for word in {part, *words} if len(word) >= SHORTEST)


def _sendable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _texts_of(error: BaseException) -> list[str]:
    return [_shown(error, show) for show in (str, repr, _notes)]


def _notes(error: object) -> str:
    return "\n".join(map(str, getattr(error, "__notes__", ())))


def _shown(error: BaseException, show: Callable[[object], str]) -> str:
    try:
        return show(error)
    except (Exception, SystemExit, GeneratorExit):  # an exception whose text cannot be made shows nothing
        return ""
