"""Lists a folder of a web server by the links of its index page.

Guarantees: only links to files directly in the folder count. One to another host, scheme, folder or sub-folder, or with
a query (such as a column to sort by), is ignored, so that no page leads to a host which the user did not name. Refuses
a page of more than 16 MiB, one with more links than a folder may have entries, one that may be cut, and one that is no
HTML to Python's parser.
"""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

import aiohttp

from streamer.backends.client.bounded_answers import body_of
from streamer.backends.client.redirects import Hop, origin_of, quoted
from streamer.backends.http.client import HttpClient
from streamer.backends.http.errors import raise_connection_error
from streamer.core.errors import StorageError
from streamer.core.format.shard_names import is_of_checkpoint
from streamer.core.options.limits import Limits, ListingCount

__all__ = ["list_folder", "may_be_shard", "names_in"]

MAX_PAGE_BYTES = 16 << 20  # a hundred thousand links
_NAME_THE_INDEX = "Name the file, or the index …/model.safetensors.index.json"
_PAGES = ("text/html", "application/xhtml+xml", "")  # some servers send no type


def list_folder(client: HttpClient, folder: Hop, uri: str, limits: Limits, *, has_folders: bool = False) -> list[str]:
    """Return the quoted names of the files in a folder, from its index page; empty where the answer is no page.

    Args:
        client: Sends the request.
        folder: URL of the folder with a slash at the end, and the headers for its host.
        uri: The URL for messages, without secrets.
        limits: Bounds of the listing.
        has_folders: As for `names_in`.

    Raises:
        StorageError: the server or the network failed, or the page is too large.
    """
    page, url = client.run(_page, client, folder, uri)  # parsed on this thread: all requests share the loop
    try:
        return names_in(page.decode(errors="replace"), url, limits, has_folders=has_folders)
    except StorageError as error:
        error.uri = uri
        raise


def names_in(page: str, url: str, limits: Limits, *, has_folders: bool = False) -> list[str]:
    """Return the quoted names of the files directly in a folder that its page links to, sorted.

    Args:
        page: HTML.
        url: URL of the page, to which links are relative.
        limits: Bounds of the listing.
        has_folders: Return those of sub-folders, too, with a slash at their end.

    Raises:
        StorageError: it has too many links, or is not HTML.
    """
    links = _Links(limits)
    try:
        links.feed(page)
    except AssertionError:  # Python 3.10 to 3.13 raise it for some declarations
        raise StorageError("The index page of the folder is not HTML", hint="Name the file or the index") from None
    folder = urlsplit(url).path.rpartition("/")[0] + "/"
    names = set()
    for link in links.targets:
        try:
            target = urljoin(url, quoted(link))
            parts = urlsplit(target)
            is_same_server = origin_of(target) == origin_of(url)
        except ValueError:
            continue
        name = parts.path.removeprefix(folder)
        is_direct = "/" not in (name.removesuffix("/") if has_folders else name)
        if is_same_server and not parts.query and name and name != parts.path and is_direct:
            names.add(name)
    return sorted(names)


def may_be_shard(name: str) -> bool:
    """Say whether a quoted name may be one of a shard or an index."""
    return is_of_checkpoint(unquote(name))


async def _page(client: HttpClient, folder: Hop, uri: str) -> tuple[bytes, str]:
    answer = await client.open(folder, uri, {})
    content_type = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    try:
        page = await body_of(answer.response, MAX_PAGE_BYTES) if content_type in _PAGES else b""
    except StorageError:
        if not content_type:  # not a page
            return b"", answer.hop.url
        raise StorageError("The index page of the folder has no end", uri=uri, hint=_NAME_THE_INDEX) from None
    except Exception as error:
        raise_connection_error(error, uri)
    finally:
        answer.response.close()
    if not content_type and page.lstrip()[:1] != b"<":
        return b"", answer.hop.url
    if _may_be_cut(answer.response, page):
        what = "The index page of the folder may be cut: neither a length nor </html> tells where it ends"
        raise StorageError(what, uri=uri, hint=_NAME_THE_INDEX)
    return page, answer.hop.url


def _may_be_cut(response: aiohttp.ClientResponse, page: bytes) -> bool:
    """Say whether a page ended with its connection, which may have broken off, and not with its own end."""
    is_framed = (
        response.content_length is not None or "chunked" in response.headers.get("Transfer-Encoding", "").lower()
    )
    return bool(page) and not is_framed and b"</html>" not in page.lower()


class _Links(HTMLParser):
    """Collects the targets of the links of a page."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.targets: list[str] = []
        self._count = ListingCount(limits, "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the target of a link."""
        if tag == "a":
            self._count.add(1)
            self.targets += [value.strip() for name, value in attrs if name == "href" and value]
