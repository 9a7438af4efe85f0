"""The S3 client follows no redirect: its HTTP library would take the session token, a header of its own, to any host.

Nor does it read an answer without end (`bounded_answers`).

aiohttp leaves only ``Authorization`` and cookies behind, and what the other host answers would count as S3's. A bucket
of another region is found all the same: S3 names the region in an error, and botocore asks that region's own host.
"""

from __future__ import annotations

from typing import Any

from streamer.backends.client.bounded_answers import bind
from streamer.backends.private_names.botocore import replace_sessions

__all__ = ["follow_no_redirects"]


def follow_no_redirects(client: Any) -> None:
    """Have a client of aiobotocore give redirects back as answers; one that uses httpx does so itself."""
    replace_sessions(client, lambda plain: plain if isinstance(plain, _Sessions) else _Sessions(plain))


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
