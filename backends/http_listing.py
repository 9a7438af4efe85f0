"""Which files the index page of a web server names: links to direct children of that very folder, and nothing else.

Guarantees: a link to another host, another scheme, another folder or a sub-folder, or one with a query (a column to
sort by), is left out, so that a page can contact no host the user did not name. Refuses a page of more than 16 MiB.
"""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

from streamer.backends.http_client import HttpClient
from streamer.backends.http_errors import raise_connection_error
from streamer.backends.http_redirects import Hop, origin_of, quoted
from streamer.core.errors import StorageError

__all__ = ["list_folder", "names_in"]

MAX_PAGE_BYTES = 16 << 20  # a hundred thousand links


async def list_folder(client: HttpClient, folder: Hop, uri: str) -> list[str]:
    """Read the index page of a folder, and return the quoted names of its files; an answer that is no page has none.

    Args:
        client: Whose session to use.
        folder: The folder's URL with its last slash, and the headers for its host.
        uri: The same for messages, without secrets.

    Raises:
        StorageError: the server or the network failed, or the page is too large.
    """
    answer = await client.opened(folder, uri, {})
    try:
        if answer.response.content_type != "text/html":
            return []
        page = bytearray()
        while chunk := await answer.response.content.readany():
            page += chunk
            if len(page) > MAX_PAGE_BYTES:
                raise StorageError("The index page of the folder has no end", uri=uri)
    except StorageError:
        raise
    except Exception as error:
        raise_connection_error(error, uri)
    finally:
        answer.response.close()
    return names_in(page.decode(errors="replace"), answer.hop.url)


def names_in(page: str, url: str) -> list[str]:
    """Return the quoted names of the files directly in a folder that its page links to, sorted.

    Args:
        page: HTML.
        url: Where the page is; links are relative to it.
    """
    links = _Links()
    links.feed(page)
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


class _Links(HTMLParser):
    """Collects where the anchors of a page lead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the link of an anchor."""
        if tag == "a":
            self.found += [value.strip() for name, value in attrs if name == "href" and value]
