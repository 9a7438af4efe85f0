"""The S3 client follows no redirect: its HTTP library would take the session token, a header of its own, to any host.

Nor does it read an answer without end (`bounded_answers`).

aiohttp leaves only ``Authorization`` and cookies behind, and what the other host answers would count as S3's. A bucket
of another region is found all the same: S3 names the region in an error, and botocore asks that region's own host.
Private attributes are the only way to say so: ``tests/security/test_who_gets_credentials.py`` tells when a new version
has others.
"""

from __future__ import annotations

from typing import Any

from streamer.backends.client.bounded_answers import bind

__all__ = ["follow_no_redirects"]


def follow_no_redirects(http_session: Any) -> None:
    """Have the HTTP session of an aiobotocore client give redirects back as answers; one of httpx does so itself."""
    plain = getattr(http_session, "_get_session", None)
    if plain is None or isinstance(plain, _Sessions):
        return
    http_session._get_session = _Sessions(plain)


class _Sessions:
    """Gives the session for a proxy, as aiobotocore asks for one before each request."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    async def __call__(self, *arguments: Any) -> _Session:
        session = await self._plain(*arguments)
        bind(session)
        return _Session(session)


class _Session:
    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def request(self, *arguments: Any, **named: Any) -> Any:
        """Send a request as `aiohttp.ClientSession` does."""
        return self._plain.request(*arguments, **named, allow_redirects=False)
