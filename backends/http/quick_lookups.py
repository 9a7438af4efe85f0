"""The usual requests to a web server, over the engine's own connections: the first byte of a file, a folder's page.

To import aiohttp takes a fifth of a second, which is most of what a small load takes, and a good part of what a process
waits in which a large one is the first.

Guarantees: redirects follow the rules of `client/redirects.py`. An answer within a second and a half counts if it is a
success or a refusal. Otherwise `lookups` asks again: there was no answer, it was one that passes (503), or it did not
tell the size.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.control_requests import Answer, ask
from streamer.backends.client.demanded_pause import LONGEST_PAUSE_S, demanded_pause_s
from streamer.backends.client.encodings import is_plain
from streamer.backends.client.redirects import MAX_REDIRECTS, REDIRECTS, Hop, next_hop, too_many_redirects
from streamer.backends.http.access import Access
from streamer.backends.http.listing import is_page, is_whole
from streamer.backends.http.probe import FIRST_BYTE, Probe, check_kind, probe_of, size_of
from streamer.core.errors import StorageError
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import STATUSES
from streamer.core.secrets.urls import hidden_uri
from streamer.core.store.sources import HttpSource

__all__ = ["QuickLookups"]

ERROR_BODY_BYTES = 8 << 10  # an <Error> document is a few hundred bytes; of a file, its first byte is enough
PAGE_BYTES = 1 << 20  # 5 000 links; of anything but a page, the rest is not read
NO_SUCH_RANGE = 416  # of an empty file


class QuickLookups:
    """Sends each request once, with one `Access`.

    Args:
        access: Certificates and proxy. Its headers are not used here: each `Hop` has its own.
        limits: Bounds of the answers.
    """

    def __init__(self, access: Access, limits: Limits) -> None:
        self._access = access
        self._times = answer_times(limits)

    def probe(self, start: Hop, uri: str) -> Probe | None:
        """Request the first byte of a file; None if the answer did not tell all of it.

        Raises:
            RedirectError: as for `next_hop`.
            StorageError: the server refuses the request, or demands a pause of more than a second.
        """
        found = self._follow(start, FIRST_BYTE, ERROR_BODY_BYTES, uri)
        if found is None:
            return None
        answer, hop = found
        try:
            check_kind(answer.headers, urlsplit(start.url).path, uri)
            size_bytes, has_ranges = size_of(answer.status, answer.headers, uri)
        except StorageError:
            return None
        return None if size_bytes is None else probe_of(hop, answer.headers, size_bytes, has_ranges=has_ranges)

    def page(self, folder: Hop, uri: str) -> tuple[bytes, str] | None:
        """Request the index page of a folder; return it, or nothing if the answer is no page, and its URL.

        Returns None if a page may not be whole.

        Args:
            folder: URL of the folder with a slash at the end, and the headers for its host.
            uri: The URL for messages, without secrets.

        Raises:
            StorageError: as for `probe`.
        """
        found = self._follow(folder, {}, PAGE_BYTES, uri)
        if found is None:
            return None
        answer, hop = found
        if not is_plain(answer.headers):
            return None
        if not is_page(answer.headers, answer.body):
            return b"", hop.url
        is_all = len(answer.body) < PAGE_BYTES and is_whole(answer.headers, answer.body)
        return (answer.body, hop.url) if is_all else None

    def _follow(self, hop: Hop, extra: Mapping[str, str], most_bytes: int, uri: str) -> tuple[Answer, Hop] | None:
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._ask(hop, extra, most_bytes)
            if answer is None:
                return None
            if answer.status not in REDIRECTS:
                return (answer, hop) if self._is_success(answer, uri) else None
            location = hidden_uri(answer.headers.get("location", ""))
            del answer  # its text shows the URL, and a traceback shows the values of local names
            hop = next_hop(hop, location, uri, may_be_local=self._access.may_redirect_to_local)
        raise too_many_redirects(uri)

    def _ask(self, hop: Hop, extra: Mapping[str, str], most_bytes: int) -> Answer | None:
        access = self._access
        return ask(
            HttpSource(hop.url, {**hop.headers, **extra}, ca_file=access.ca_file, proxy=access.proxy),
            most_bytes=most_bytes,
            may_be_cut=True,
            times=self._times,
        )

    def _is_success(self, answer: Answer, uri: str) -> bool:
        """Tell whether an answer counts; raise what is final. If it is neither, wait as long as the server demands."""
        if answer.status < 300:
            return True
        pause_s = demanded_pause_s(answer.status, answer.headers)
        if answer.status == NO_SUCH_RANGE or (answer.status in STATUSES and pause_s <= LONGEST_PAUSE_S):
            time.sleep(pause_s)
            return False
        from streamer.backends.http.errors import refusal  # noqa: PLC0415  it imports aiohttp

        refused = refusal(answer.status, answer.headers, answer.body, uri)
        refused.retry_after_s = pause_s
        raise refused
