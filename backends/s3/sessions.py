"""Sessions of botocore, whose credentials sign requests.

Guarantees: loads with the same profile share one session, so that temporary credentials are fetched once, as long as
the environment and the user's files do not change. If the user passes a session of aiobotocore (the option ``session``
of s3fs), it is not changed; its configuration and its credentials are used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

from botocore.credentials import Credentials
from botocore.session import Session

from streamer.backends.aws_sessions import EnvironmentSession
from streamer.backends.login_state import login_state
from streamer.backends.s3.errors import LoginError

__all__ = ["KEPT", "UsersSession", "keys_in", "shared_session"]

KEPT = 8  # a job reads with a few logins in turn


def keys_in(session: Session) -> Any:
    """Return the frozen credentials of a session, which renews them before they expire; None if it has none.

    Raises:
        LoginError: the credentials could not be fetched.
    """
    try:
        credentials = session.get_credentials()
        return None if credentials is None else credentials.get_frozen_credentials()
    except Exception as error:
        raise LoginError from error


def shared_session(profile: str | None) -> EnvironmentSession:
    """Return the session of a profile and the current environment; None is the environment's or the default profile."""
    return _session(profile, login_state())


@lru_cache(maxsize=KEPT)
def _session(profile: str | None, login: Hashable) -> EnvironmentSession:
    del login  # only a part of the cache's key
    return EnvironmentSession({} if profile is None else {"profile": profile})


class UsersSession(Session):  # type: ignore[misc]  # botocore has no types
    """A session of botocore with the configuration and credentials of the user's session.

    Args:
        session: Session of aiobotocore or botocore.
    """

    def __init__(self, session: Any) -> None:
        super().__init__(profile=session.profile)
        self._users_session = session
        self.register_component("config_store", session.get_component("config_store"))

    def get_credentials(self) -> Credentials | None:
        """Return the user's credentials, which may be renewed before each signature; None if there are none."""
        credentials = _result(self._users_session.get_credentials)
        return None if credentials is None else _UsersCredentials(credentials)


class _UsersCredentials(Credentials):  # type: ignore[misc]  # as above
    def __init__(self, credentials: Any) -> None:
        super().__init__("", "")
        self._users_credentials = credentials

    def get_frozen_credentials(self) -> Any:
        return _result(self._users_credentials.get_frozen_credentials)


def _result(function: Callable[[], Any]) -> Any:
    """Call a method that may be a coroutine, on fsspec's event loop, as s3fs does."""
    from fsspec.asyn import get_loop, sync  # noqa: PLC0415 (only users' sessions need it)

    async def call() -> Any:
        result = function()
        return await result if inspect.isawaitable(result) else result

    return sync(get_loop(), call)
