"""Lists a folder of a web server by the links of its index page.

Guarantees: only links to files directly in the folder count. A link to another host, scheme, folder or sub-folder, or
with a query (such as a column to sort by), is ignored. So no page leads to a host that the user did not name. Refuses a
page of more than 16 MiB, a page with more links than a folder may have entries, and a page that may be truncated. Also
refuses a page that Python's parser does not accept as HTML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

from streamer.backends.client.answer_values import FOREIGN, described, quoted_start
from streamer.backends.client.exchange import Response
from streamer.backends.client.redirects import Hop, origin_of, quoted
from streamer.backends.http.client import HttpClient
from streamer.core.errors import CredentialsError, StorageError, TruncatedError
from streamer.core.format.shard_names import is_of_checkpoint
from streamer.core.options.limits import Limits, ListingCount

MAX_PAGE_BYTES = 16 << 20  # a hundred thousand links
NAME_THE_INDEX = "Name the file, or the index …/model.safetensors.index.json"
_HOLDERS = (b"body", b"pre", b"table", b"ul")  # of all links, in the pages of common servers
_WHOLE_RANGE = re.compile(r"bytes\s+0-([0-9]{1,18})/([0-9]{1,18})", re.IGNORECASE)
PARTIAL = 206
PAGES = ("text/html", "application/xhtml+xml", "")  # some servers send no type


def names_in(page: str, url: str, limits: Limits, *, has_folders: bool = False) -> list[str]:
    """Return the quoted names of the files directly in a folder that its page links to, sorted."""
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
        is_direct = name != "/" and "/" not in (name.removesuffix("/") if has_folders else name)
        if is_same_server and not parts.query and name and name != parts.path and is_direct:
            names.add(name)
    return sorted(names)


def may_be_shard(name: str) -> bool:
    """Say whether a quoted name may be the name of a shard or an index."""
    return is_of_checkpoint(unquote(name))


def media_type(headers: Mapping[str, str]) -> str:
    """Return the type that an answer states, in lower case and without parameters; empty if it states none.

    Example:
        >>> media_type({"content-type": "Text/HTML; charset=utf-8"})
        'text/html'
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_page(headers: Mapping[str, str], body: bytes) -> bool:
    """Say whether an answer is an index page; without a type it is one if its body begins like HTML."""
    stated = media_type(headers)
    return stated in PAGES and (bool(stated) or body.lstrip()[:1] == b"<")


def is_whole(headers: Mapping[str, str], page: bytes) -> bool:
    """Say whether a page is complete: what holds its links must be closed, and without a length also ``<html>``."""
    is_framed = "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()
    lower = page.lower()
    if any(b"<" + name in lower and b"</" + name not in lower for name in _HOLDERS):
        return False
    return is_framed or not page or b"</html>" in lower


def is_listing(page: str, url: str, limits: Limits) -> bool:
    """Say whether a page without names may be that of an empty folder: its title or a link to its parent says so."""
    links = _Links(limits)
    links.feed(page)
    if page and not re.sub(r"<[^>]*>", "", page).strip():  # nothing to read, as a login page has
        return True
    parent = urlsplit(url).path.rstrip("/").rpartition("/")[0] + "/"
    titled = re.search(r"<(?:title|h1)[^>]*>\s*(?:index|listing|directory|files|contents)\b", page, re.IGNORECASE)
    return titled is not None or any(urlsplit(urljoin(url, quoted(each))).path == parent for each in links.targets)


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


def index_page(client: HttpClient, folder: Hop, uri: str) -> tuple[bytes, str]:
    """Request the index page of a folder; return the page and its URL. A page that breaks off is requested again."""

    def receive(response: Response) -> None:
        page = response.read_up_to(MAX_PAGE_BYTES + 1)
        if is_page(response.headers, page) and len(page) <= MAX_PAGE_BYTES and not is_whole(response.headers, page):
            what = "The index page of the folder may be truncated: it lacks </html>, or a length"
            raise TruncatedError(what, hint=NAME_THE_INDEX)

    answer = client.open(folder, uri, {}, receive)
    page = answer.response.body
    if not is_page(answer.headers, page):
        raise no_listing(uri, described(answer.headers), page)
    if answer.response.status == PARTIAL and not covers_all(answer.headers):
        what = "The server sends a part of the folder's index page, though all of it was asked for"
        raise StorageError(what, uri=uri, status=PARTIAL, hint=NAME_THE_INDEX)
    if len(page) > MAX_PAGE_BYTES:
        raise StorageError("The index page of the folder has no end", uri=uri, hint=NAME_THE_INDEX)
    return page, answer.hop.url


def no_listing(uri: str, what: str, body: bytes) -> CredentialsError:
    """Make the error for an answer that lists no folder; like a refusal, it says nothing about the files there."""
    quote = f" that begins {quoted_start(body)}" if body.strip() else ""
    return CredentialsError(
        f"The answer to the request for the folder is no listing, but {what}{quote}",
        uri=uri,
        hint=f"{FOREIGN} (a login: storage_options headers or auth), or the server lists no folders. {NAME_THE_INDEX}",
    )


def covers_all(headers: Mapping[str, str]) -> bool:
    """Say whether the ``Content-Range`` of an answer covers the whole object.

    Example:
        >>> [covers_all({"content-range": value}) for value in ("bytes 0-9/10", "bytes 0-8/10", "bytes 0-9/*")]
        [True, False, False]
    """
    stated = _WHOLE_RANGE.fullmatch(headers.get("content-range", "").strip())
    return stated is not None and int(stated[1]) + 1 == int(stated[2])
