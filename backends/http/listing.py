"""Which files the index page of a web server names: links to direct children of that very folder, and nothing else.

Guarantees: a link to another host, another scheme, another folder or a sub-folder, or one with a query (a column to
sort by), is left out, so that a page can contact no host the user did not name. Refuses a page of more than 16 MiB, one
with more links than a folder may have entries, and one that Python's parser of HTML gives up.
"""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

from streamer.backends.client.bounded_answers import body_of
from streamer.backends.client.redirects import Hop, origin_of, quoted
from streamer.backends.http.client import HttpClient
from streamer.backends.http.errors import raise_connection_error
from streamer.core.errors import StorageError
from streamer.core.format.shard_names import is_of_checkpoint
from streamer.core.options.limits import Limits, ListingCount

__all__ = ["list_folder", "may_be_shard", "names_in"]

MAX_PAGE_BYTES = 16 << 20  # a hundred thousand links
_PAGES = ("text/html", "application/xhtml+xml", "")  # some servers tell no type


def list_folder(client: HttpClient, folder: Hop, uri: str, limits: Limits) -> list[str]:
    """Read the index page of a folder, and return the quoted names of its files; an answer that is no page has none.

    Args:
        client: Whose session to use.
        folder: The folder's URL with its last slash, and the headers for its host.
        uri: The same for messages, without secrets.
        limits: Of its links.

    Raises:
        StorageError: the server or the network failed, or the page is too large.
    """
    page, url = client.run(_page, client, folder, uri)  # parsed here: the loop serves everybody
    try:
        return names_in(page.decode(errors="replace"), url, limits)
    except StorageError as error:
        error.uri = uri
        raise


def names_in(page: str, url: str, limits: Limits) -> list[str]:
    """Return the quoted names of the files directly in a folder that its page links to, sorted.

    Args:
        page: HTML.
        url: Where the page is; links are relative to it.
        limits: Of its links.

    Raises:
        StorageError: it has more links, or is not HTML.
    """
    links = _Links(limits)
    try:
        links.feed(page)
    except AssertionError:  # by which Python 3.10 to 3.13 refuse some declarations
        raise StorageError("The index page of the folder is not HTML", hint="Name the file or the index") from None
    folder = urlsplit(url).path.rpartition("/")[0] + "/"
    found = set()
    for link in links.found:
        try:
            target = urljoin(url, quoted(link))
            parts = urlsplit(target)
            is_near = origin_of(target) == origin_of(url)
        except ValueError:
            continue
        name = parts.path.removeprefix(folder)
        if is_near and not parts.query and name and name != parts.path and "/" not in name:
            found.add(name)
    return sorted(found)


def may_be_shard(name: str) -> bool:
    """Say whether a quoted name is worth a question about its file: those of shards and their indexes are."""
    return is_of_checkpoint(unquote(name))


async def _page(client: HttpClient, folder: Hop, uri: str) -> tuple[bytes, str]:
    answer = await client.opened(folder, uri, {})
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    try:
        page = await body_of(answer.response, MAX_PAGE_BYTES) if kind in _PAGES else b""
        is_page = bool(kind) or page.lstrip()[:1] == b"<"
        return page if is_page else b"", answer.hop.url
    except StorageError:
        if not kind:  # whatever it is, it is no page
            return b"", answer.hop.url
        raise StorageError(
            "The index page of the folder has no end",
            uri=uri,
            hint="Name the file, or the index …/model.safetensors.index.json",
        ) from None
    except Exception as error:
        raise_connection_error(error, uri)
    finally:
        answer.response.close()


class _Links(HTMLParser):
    """Collects where the anchors of a page lead."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.found: list[str] = []
        self._count = ListingCount(limits, "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the link of an anchor."""
        if tag == "a":
            self._count.add(1)
            self.found += [value.strip() for name, value in attrs if name == "href" and value]
