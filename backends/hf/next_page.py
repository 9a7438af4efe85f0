"""Finds the next page of a listing of the Hub in the ``Link`` header of an answer (RFC 8288). Pure.

Guarantees: the next page is requested from the endpoint that the user named. A mirror may pass on the original link,
which names another host: if it leads to the same listing there, only its query is used. Refuses any other link to
another server; the error names both servers. Refuses a ``Link`` that cannot be parsed: it is not taken for the end of
the listing.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote, urljoin, urlsplit

from httplink import parse_link_header

from streamer.backends.client.redirects import origin_of
from streamer.core.errors import StorageError

__all__ = ["next_page"]

_NEXT = "next"


def next_page(links: Iterable[str], url: str, endpoint: str, uri: str) -> str | None:
    """Return the URL of the page after the one at `url`; None for the last page.

    Args:
        links: The values of all ``Link`` headers of the answer.
        url: URL of the page, below `endpoint`.
        endpoint: URL of the Hub, or of its mirror.
        uri: URL of the folder, without secrets.

    Raises:
        StorageError: a link cannot be parsed, there are several next pages, or the next one is on another server.
    """
    targets = {target for value in links for target in _next_targets(value, uri)}
    if not targets:
        return None
    if len(targets) > 1:
        raise StorageError("The Hub's listing goes on at several pages at once", uri=uri, hint="Check the endpoint")
    listing = urlsplit(url)
    try:
        target = urljoin(url, targets.pop())
        following, origin = urlsplit(target), origin_of(target)
    except ValueError:  # a malformed port or address
        raise _leads_elsewhere("a malformed address", endpoint, uri) from None
    api_path = unquote(listing.path.removeprefix(urlsplit(endpoint).path))
    if following.scheme in ("http", "https") and unquote(following.path).endswith(api_path):
        return listing._replace(query=following.query).geturl()
    if origin != origin_of(url):
        raise _leads_elsewhere(f"{origin[0]}://{origin[1]}:{origin[2]}", endpoint, uri)
    return target


def _next_targets(value: str, uri: str) -> list[str]:
    """Return the targets of the links whose relation is ``next`` in one header."""
    try:
        links = parse_link_header(value).links
    except ValueError:
        hint = "Check the endpoint, and the proxies on the way to it: RFC 8288 defines this header"
        raise StorageError(
            "The Hub's listing has a Link header that cannot be parsed, so that a page may be missing",
            uri=uri,
            hint=hint,
        ) from None
    return [link.target for link in links if _NEXT in _relations(link.attributes)]


def _relations(attributes: Iterable[tuple[str, str]]) -> set[str]:
    """Return the relations of a link: the first ``rel`` counts, and some proxies write it in single quotes."""
    relation = next((value for name, value in attributes if name.lower() == "rel"), "")
    return set(relation.strip("'").lower().split())


def _leads_elsewhere(where: str, endpoint: str, uri: str) -> StorageError:
    return StorageError(
        f"The listing of {endpoint} leads to another server, {where}, which is not asked",
        uri=uri,
        hint="Set HF_ENDPOINT (or the option endpoint) to a Hub that lists all pages itself, or name the index or the "
        "files: hf://owner/name/model.safetensors.index.json",
    )
