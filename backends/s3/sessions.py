"""Sessions of botocore: whose credentials sign.

Guarantees: loads with the same profile share one session, so that temporary credentials are fetched once, for as long
as the environment and the user's files say the same. A session of aiobotocore that the user made (the option
``session`` of s3fs) is not changed; its configuration and its credentials are used.
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
        LoginError: they could not be found.
    """
    try:
        found = session.get_credentials()
        return None if found is None else found.get_frozen_credentials()
    except Exception as error:
        raise LoginError from error


def shared_session(profile: str | None) -> EnvironmentSession:
    """Return the session of a profile at this moment; None is the environment's, or the usual one."""
    return _session(profile, login_state())


@lru_cache(maxsize=KEPT)
def _session(profile: str | None, login: Hashable) -> EnvironmentSession:
    del login  # it is what another session is needed for
    return EnvironmentSession({} if profile is None else {"profile": profile})


class UsersSession(Session):  # type: ignore[misc]  # botocore has no types
    """A session like another one.

    Args:
        given: Session of aiobotocore or botocore.
    """

    def __init__(self, given: Any) -> None:
        super().__init__(profile=given.profile)
        self._given = given
        self.register_component("config_store", given.get_component("config_store"))

    def get_credentials(self) -> Credentials | None:
        """Return the user's credentials, which may be renewed before each signature; None if there are none."""
        found = _result(self._given.get_credentials)
        return None if found is None else _UsersCredentials(found)


class _UsersCredentials(Credentials):  # type: ignore[misc]  # as above
    def __init__(self, given: Any) -> None:
        super().__init__("", "")
        self._given = given

    def get_frozen_credentials(self) -> Any:
        return _result(self._given.get_frozen_credentials)


def _result(function: Callable[[], Any]) -> Any:
    """Call a method that may be a coroutine, on fsspec's loop, where s3fs would."""
    from fsspec.asyn import get_loop, sync  # noqa: PLC0415 (only this kind needs it)

    async def call() -> Any:
        result = function()
        return await result if inspect.isawaitable(result) else result

    return sync(get_loop(), call)
