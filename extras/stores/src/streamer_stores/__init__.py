"""Storages for streamer that live outside of it, as anybody's plug-in: see the README of this distribution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streamer.plugins import AccessDeniedError, CredentialsError, OptionError, StorageError, note_credential


def check_texts(options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse options that are no text, which would be a fault of the program somewhere behind them."""
    for name in names:
        if not isinstance(options.get(name, ""), str):
            raise OptionError(f"{name} must be text")


def with_login_hint(error: StorageError, hint: str) -> StorageError:
    """Let a refusal say how this storage takes a login: the hint for web servers names options that it lacks."""
    if isinstance(error, AccessDeniedError) and error.status not in (None, 200):  # 200: a page, as of a proxy
        error.hint = hint
    return error


def checked_token(token: str, owner: str) -> str:
    """Return a token without the white space around it; raises if a header cannot hold it."""
    token = token.strip()
    if not token.isascii() or not token.isprintable():
        raise CredentialsError(f"The token of {owner} has characters that no token has", hint="Copy it again")
    note_credential(token)
    return token
