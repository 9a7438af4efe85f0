"""Makes the S3 client follow no redirects, and keep to the bounds of `bounded_answers`.

At a redirect to another host aiohttp drops ``Authorization`` and cookies alone: it would send the session token, which
is in a header of its own, to any host, and that host's answer would count as S3's. A bucket in another region is found
all the same: S3 names the region in an error, and botocore sends the request to that region's own host.
"""

from __future__ import annotations

from typing import Any

from streamer.backends.client.bounded_answers import bind
from streamer.backends.private_names.botocore import replace_sessions

__all__ = ["follow_no_redirects"]


def follow_no_redirects(client: Any) -> None:
    """Make a client of aiobotocore return redirects as answers; one that uses httpx does so by itself."""
    replace_sessions(client, lambda plain: plain if isinstance(plain, _Sessions) else _Sessions(plain))


class _Sessions:
    """Wraps the function from which aiobotocore gets the session of a proxy before each request."""

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
        """Send a request as `aiohttp.ClientSession` does, and follow no redirect."""
        return self._plain.request(*arguments, **named, allow_redirects=False)
