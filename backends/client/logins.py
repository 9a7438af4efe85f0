"""Logins as users of aiohttp write them: ``aiohttp.BasicAuth``, or a pair of user and password. Pure."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

__all__ = ["basic_authorization", "login_of"]


def login_of(value: Any) -> tuple[str, str] | None:
    """Read ``aiohttp.BasicAuth`` or a pair of user and password; None for anything else.

    Example:
        >>> [login_of(value) for value in (("user", "password"), ["user", "password"], "user:password")]
        [('user', 'password'), ('user', 'password'), None]
    """
    try:
        user, password = (value.login, value.password) if hasattr(value, "login") else value
    except (TypeError, ValueError):
        return None
    return str(user), str(password)


def basic_authorization(value: Any) -> str | None:
    """Return the value of the header ``Authorization`` for a login; None if the value is no login.

    Example:
        >>> basic_authorization(("user", "password"))
        'Basic dXNlcjpwYXNzd29yZA=='
    """
    login = login_of(value)
    if login is None:
        return None
    return "Basic " + b64encode(":".join(login).encode(getattr(value, "encoding", "utf-8"))).decode()
