"""Objects of HTTP servers: ``http://`` and ``https://`` URLs, read by ranges by the native reactors.

Guarantees: every answer is asked of the server now; credentials are sent to the host they were given for and to no
other; a query (a signature, a token) is sent for every object of the URL's folder, and never shown. Without ranges an
object is read in one stream, and with options only fsspec can honour through fsspec; the load's report says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from streamer.backends.client.redirects import Hop, origin_of, quoted
from streamer.backends.http.access import access_of, fsspec_option, merged_options
from streamer.backends.http.azure import is_for_azure, open_azure
from streamer.backends.http.client import HttpClient
from streamer.backends.http.fallback import open_through_fsspec
from streamer.backends.http.listing import list_folder, may_be_shard
from streamer.backends.http.probe import Probe, expiry_of, probe
from streamer.backends.http.stream import OneStream
from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    CredentialsError,
    ObjectNotFoundError,
    RangeResponseError,
    StorageError,
    UsageError,
)
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import is_transient
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import HttpSource, ObjectInfo, PythonSource, Store, hookimpl

__all__ = ["HttpStore", "source_of_probe", "streamer_open_store", "streamer_source_kind"]

DEFAULT_LIMITS = Limits()
PROBES_AT_A_TIME = 16  # as many as the engine asks for sources at once
_IN_PATHS = "!$%&'()*+,/:;=@[]~"  # a `?` or `#` in the name of a shard is a letter of it


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the server of `uri` with the options of fsspec's `HTTPFileSystem`, and ``verify``, the path of a CA file.

    Raises:
        UsageError: the URL names no host.
        OptionError: an option of the wrong kind, or one that is refused, such as ``verify=False``.
    """
    if scheme not in ("http", "https"):
        return None
    _split(uri)  # refuses what is no URL
    if is_for_azure(uri, storage_options):
        return open_azure(uri, storage_options, limits)
    options = merged_options(storage_options)
    reason = fsspec_option(options)
    return HttpStore(uri, options, limits) if reason is None else open_through_fsspec(uri, options, reason)


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Say that these objects are read over HTTP."""
    return HttpSource


class HttpStore:
    """The objects of one server, each named by its URL without user and query.

    Args:
        uri: The URL, which may hold user, password and query.
        options: Arguments of `HTTPFileSystem`, as `merged_options` gives them.
        limits: The most to take of the server's answers.

    Attributes:
        root: `uri` without user, query and fragment.
        server: Scheme, host and port of it.
    """

    root: str
    server: str

    def __init__(self, uri: str, options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        parts = _split(uri)
        self._limits = limits
        self.server = self._host = f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2]}"
        self._access = access_of(uri, options)
        self._query = parts.query
        self._client = HttpClient(self._access, limits=limits)
        self._probes: dict[str, Probe] = {}
        self._guard = threading.Lock()
        self.root = (self._host + parts.path).rstrip("/")

    def info(self, path: str) -> ObjectInfo:
        """Ask for size and version with one GET of one byte.

        Raises:
            ObjectNotFoundError: there is no such file.
            CredentialsError: the server asks for a login.
            RedirectError: it redirects to where credentials or privacy would be lost.
            StorageError: anything else the server, the network or TLS has to say.
        """
        return self._told(path, self._client.run(probe, self._client, self._start(path), self._uri(path)))

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the files that the folder's index page links to, and ask for the first byte of what may be a shard.

        Any other file is listed without a size, and so is one that cannot be read.

        Raises:
            AccessDeniedError: the server does not show its folders.
            StorageError: as for `info`.
        """
        folder = prefix.rstrip("/")
        try:
            names = list_folder(self._client, self._start(f"{folder}/"), self._uri(folder), self._limits)
            return self._client.run(self._described, [f"{folder}/{name}" for name in names])
        except ObjectNotFoundError:
            return []
        except AccessDeniedError as error:
            if error.status == 403 and not isinstance(error, CredentialsError):
                error.hint = "It may not list its folders: name the file, or the index …/model.safetensors.index.json"
            raise

    def source(self, info: ObjectInfo) -> HttpSource | PythonSource:
        """Say where the object is; it is only asked for again when `info` is not this store's latest.

        Raises:
            ChangedError: it is not the object that `info` describes.
            StorageError: as for `info`.
        """
        with self._guard:
            known = self._probes.get(info.path)
        if known is None or not _is_same(known, info):
            known = self._probed_again(info)
        again = partial(self._refreshed, info)
        ca_file, proxy = self._access.ca_file, self._access.proxy
        return source_of_probe(known, self._client, self._start(info.path), info, again, ca_file=ca_file, proxy=proxy)

    def close(self) -> None:
        """Do nothing: the session is shared, and the sources given out still need it."""

    async def _described(self, paths: list[str]) -> list[ObjectInfo]:
        rest, found = iter(paths), []

        async def ask_in_turn() -> None:
            for path in rest:  # shared, so that a page of many links makes no task for each
                try:
                    if not may_be_shard(path):
                        found.append(ObjectInfo(path, self._uri(path), size_bytes=None))
                        continue
                    found.append(self._told(path, await probe(self._client, self._start(path), self._uri(path))))
                except ObjectNotFoundError:
                    pass  # a link to a sub-folder without its slash, or to what is gone
                except StorageError as error:
                    if is_transient(error):
                        for _ in rest:  # nobody needs the others' answers
                            pass
                        raise  # whoever asked will ask again: the file is there, and its size is not known
                    found.append(ObjectInfo(path, self._uri(path), size_bytes=None))

        await asyncio.gather(*(ask_in_turn() for _ in range(PROBES_AT_A_TIME)))
        return sorted(found, key=lambda info: info.path)

    def _told(self, path: str, known: Probe) -> ObjectInfo:
        with self._guard:
            self._probes[path] = known
        return ObjectInfo(path, self._uri(path), known.size_bytes, known.version)

    def _probed_again(self, info: ObjectInfo) -> Probe:
        known = self._client.run(probe, self._client, self._start(info.path), info.uri)
        if not _is_same(known, info):
            raise ChangedError("The file was replaced since it was found", uri=info.uri, hint="Load again")
        return known

    def _refreshed(self, info: ObjectInfo) -> HttpSource:
        known = self._probed_again(info)
        self._told(info.path, known)
        source = self.source(info)
        if not isinstance(source, HttpSource):
            raise RangeResponseError("The server no longer honours byte ranges", uri=info.uri, hint="Load again")
        return source

    def _start(self, path: str) -> Hop:
        rest = path[len(self._host) :]
        url = self._host + (rest if self._access.is_encoded else quoted(rest, _IN_PATHS))
        query = self._query if self._access.is_encoded else quoted(self._query)
        return Hop(f"{url}?{query}" if query else url, self._access.headers)

    def _uri(self, path: str) -> str:
        kept = f"?{self._query}" if self._query and path == self.root else ""
        return redact(path + kept)


def source_of_probe(
    known: Probe,
    client: HttpClient,
    start: Hop,
    info: ObjectInfo,
    again: Any,
    *,
    ca_file: str | None,
    proxy: str | None,
    names_version: bool = False,
) -> HttpSource | PythonSource:
    """Turn what a probe told into a source.

    Args:
        known: The probe.
        client: To read in one stream with.
        start: The object's URL before redirects.
        info: The object.
        again: Gives the source anew.
        ca_file: As for `HttpSource`.
        proxy: As for `HttpSource`.
        names_version: The URL itself names one version, so that no header need tell it.
    """
    if not known.has_ranges:
        scheme, host, port = origin_of(known.hop.url)
        remark = f"{scheme}://{host}:{port} does not honour byte ranges: read in one stream"
        return PythonSource(OneStream(client, start, info, known).read_into, remark=remark)
    is_redirected = known.hop.url != start.url
    return HttpSource(
        url=known.hop.url,
        headers=known.hop.headers,
        version=None if names_version else known.version,
        version_header=None if names_version else known.version_header,
        # A signed URL that the user gave is what it is; one that a redirect gave can be had anew.
        expires_at_s=expiry_of(known.hop.url) if is_redirected else None,
        refresh=again,
        ca_file=ca_file,
        proxy=proxy,
    )


def _is_same(known: Probe, info: ObjectInfo) -> bool:
    is_untold = info.size_bytes is None
    return is_untold or (known.size_bytes, known.version) == (info.size_bytes, info.version)


def _split(uri: str) -> Any:
    try:
        parts = urlsplit(uri)
        origin_of(uri)
    except ValueError:
        raise UsageError("This is not a URL", uri=redact(uri)) from None
    if not parts.hostname:
        raise UsageError("The URL names no host", uri=redact(uri), hint="Expected https://host/path")
    return parts
