"""Objects of HTTP servers: ``http://`` and ``https://`` URLs; the native reactors read them by ranges.

Guarantees: every answer is requested from the server. Credentials are sent only to the host that the user named. The
query (a signature, a token) is sent for every object of the URL's folder, and never shown. If the server has no ranges,
an object is read in one stream. With options that only fsspec supports it is read through fsspec. The load's report
says which of these is used.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any
from urllib.parse import unquote, urlsplit

from streamer.backends.blob_urls import CREDENTIAL_OPTIONS, has_sas, is_blob_url
from streamer.backends.builtin_storages import install_hint
from streamer.backends.client.redirects import Hop, origin_of, quoted
from streamer.backends.fsspec_settings import are_configured
from streamer.backends.http.client import HttpClient, access_of
from streamer.backends.http.index_page import index_page, is_listing, may_be_shard, names_in, no_listing
from streamer.backends.http.probe import Probe, probe_object, replaced
from streamer.backends.http.stream import OneStream
from streamer.core.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    RangeResponseError,
    StorageError,
    UnknownSchemeError,
    UsageError,
)
from streamer.core.format.shard_names import hidden_beside
from streamer.core.options.limits import Limits
from streamer.core.outages.outage_waits import answered_so_far
from streamer.core.outages.transient import is_transient
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.redact import redact
from streamer.core.store.identities import digest_of, stable_url
from streamer.core.store.parallel import in_parallel
from streamer.core.store.presence import folders_among
from streamer.core.store.sources import HttpSource, ObjectInfo, PythonSource, Store, hookimpl
from streamer.core.store.uploads import Upload
from streamer.core.store.versions import is_same_version

DEFAULT_LIMITS = Limits()
_AZURE_OPTIONS = {*CREDENTIAL_OPTIONS, "account_name", "client_secret", "tenant_id"}
_FILES = (".safetensors", ".json")
PROBES_AT_A_TIME = 16  # as many as the sources that are requested at once
_IN_PATHS = "!$%&'()*+,/:;=@[]~"  # not quoted in a path; a `?` or `#` in the name of a shard is quoted

if find_spec("aiohttp") is None:  # raise now, rather than at the first request that needs aiohttp
    raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp")


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the server of `uri` with the options of fsspec's `HTTPFileSystem`, and ``verify``, the path of a CA file."""
    if scheme not in ("http", "https"):
        return None
    _split(uri)  # raises if it is no URL
    if is_for_azure(uri, storage_options):
        return _open_azure(uri, storage_options, limits)
    if _needs_only_headers(storage_options):
        return HttpStore(uri, dict(storage_options), limits)
    from streamer.backends.http.options import fsspec_option, merged_options  # noqa: PLC0415  they import aiohttp

    options = merged_options(storage_options)
    reason = fsspec_option(options)
    if reason is None:
        return HttpStore(uri, options, limits)
    from streamer.backends.http.fallback import open_through_fsspec  # noqa: PLC0415

    return open_through_fsspec(uri, options, reason)


def is_for_azure(uri: str, options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> bool:
    """Say whether a URL is of Azure and needs its API, for a folder, or its signatures, for credentials."""
    if not is_blob_url(uri):
        return False
    if options.keys() & _AZURE_OPTIONS:
        return True
    parts = urlsplit(uri)
    if not parts.path.endswith(_FILES) or any(letter in parts.path for letter in "*["):
        return True  # a folder, or a pattern in one
    names = set_variables() if environment is None else environment
    has_credentials = any(name.startswith("AZURE_STORAGE_") or name == "AZURE_CLIENT_ID" for name in names)
    return has_credentials and not has_sas(parts.query)


def _open_azure(uri: str, options: Mapping[str, Any], limits: Limits) -> Store:
    """Open the URL with the Azure backend."""
    try:
        from streamer.backends.azure.store import AzureStore  # noqa: PLC0415 (needs adlfs)
    except ImportError as error:
        raise UnknownSchemeError(
            "A folder of Azure Blob Storage, or one with credentials, needs the Azure backend",
            uri=redact(uri),
            hint=install_hint("az"),
        ) from error
    return AzureStore(uri, options, limits)


def _needs_only_headers(storage_options: Mapping[str, Any]) -> bool:
    """Say whether the options hold at most headers, so that neither aiohttp nor fsspec is needed to check them."""
    return set(storage_options) <= {"headers"} and not are_configured("http", "https")


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source: objects of web servers are read over HTTP."""
    return HttpSource


class HttpStore:
    """The objects of one server, each named by its URL without user and query."""

    root: str  # `uri` without user, query and fragment
    server: str  # scheme, host and port of `uri`

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
        self._is_folder = parts.path.endswith("/") or not parts.path  # as far as it is known that it is no file

    def info(self, path: str) -> ObjectInfo:
        """Request size and version by one GET of one byte."""
        try:
            return self._info_of(path, self._probe(path))
        except StorageError as error:
            if path == self.root and not is_transient(error):
                self._is_folder = True
            raise

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the files that the folder's index page links to, and probe the files that may be shards or are hidden.

        Any other file is listed without a size; a shard that cannot be read is listed without a size, too.
        """
        folder, answered = prefix.rstrip("/"), answered_so_far()
        try:
            names = answered.once(self._names, folder)
        except ObjectNotFoundError:
            return []
        paths = [f"{folder}/{name}" for name in names]
        others = [ObjectInfo(path, self._uri(path), size_bytes=None) for path in paths if not may_be_shard(path)]
        others += [each for name in hidden_beside(names) for each in self._if_present(f"{folder}/{name}")]
        shards = [path for path in paths if may_be_shard(path)]
        infos = in_parallel(partial(answered.once, self._listed), shards, role="info", most=PROBES_AT_A_TIME)
        return sorted([*others, *chain.from_iterable(infos)], key=lambda info: info.path)

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the files and folders to which the folder's index page links."""
        return [unquote(name) for name in self._names(prefix.rstrip("/"), has_folders=True)]

    def folders(self, prefix: str) -> list[str]:
        """Return the quoted names of the sub-folders to which the folder's index page links; raises as `find`."""
        try:
            return folders_among(self._names(prefix.rstrip("/"), has_folders=True))
        except ObjectNotFoundError:
            return []

    def source(self, info: ObjectInfo) -> HttpSource | PythonSource:
        """Return the object's source; probe the object again if `info` is not this store's latest."""
        with self._guard:
            probe = self._probes.get(info.path)
        if probe is None or not _is_same(probe, info):
            probe = self._probes[info.path] = self._probe_again(info)
        refresh = partial(self._refreshed, info)
        ca_file, proxy = self._access.ca_file, self._access.proxy
        start = self._start(info.path)
        return source_of_probe(probe, self._client, start, info, refresh, ca_file=ca_file, proxy=proxy)

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of the URL, the headers, and the place where redirects ended."""
        start, probe = self._start(info.path), self._probes.get(info.path)
        end = start if probe is None else probe.hop
        return digest_of("http", stable_url(start.url), start.headers, stable_url(end.url))

    def begin_upload(self, path: str, size_bytes: int, _: int, replaced: ObjectInfo | None) -> Upload:
        """Begin an object that one ``PUT`` writes; raises as `HttpUpload`."""
        from streamer.backends.http.upload import HttpUpload  # noqa: PLC0415 (a load needs none)

        return HttpUpload(self._file(path), size_bytes, replaced, partial(self.info, path))

    def remove(self, path: str) -> None:
        """Remove one file; raises as `HttpFile.remove`."""
        self._file(path).remove()

    def close(self) -> None:
        """Do nothing: connections are shared."""

    def _file(self, path: str) -> Any:
        from streamer.backends.http.upload import HttpFile  # noqa: PLC0415 (a load needs none)

        return HttpFile(self._client, self._start(path), self._uri(path))

    def _probe(self, path: str) -> Probe:
        return probe_object(self._client, self._start(path), self._uri(path))

    def _names(self, folder: str, *, has_folders: bool = False) -> list[str]:
        """Return the quoted names to which a folder's index page links."""
        uri = self._uri(folder)
        if folder == self.root and self._is_file():
            raise ObjectNotFoundError("This is a file, not a folder", uri=uri, hint="Name a folder")
        page, url = index_page(self._client, self._start(f"{folder}/"), uri)
        text = page.decode(errors="replace")
        try:
            names = names_in(text, url, self._limits, has_folders=has_folders)
            if not (
                names or names_in(text, url, self._limits, has_folders=True) or is_listing(text, url, self._limits)
            ):
                raise no_listing(uri, "a page that links to nothing there", page)
            return names
        except StorageError as error:
            error.uri = uri
            raise

    def _is_file(self) -> bool:
        """Say whether the URL without a slash at its end is a file: some servers send it whole if a slash is added."""
        if self._is_folder or self.root in self._probes:
            return not self._is_folder
        try:
            self.info(self.root)
        except StorageError:
            if not self._is_folder:
                raise
        return not self._is_folder

    def _listed(self, path: str) -> list[ObjectInfo]:
        """Describe a linked file; return nothing if the link leads to a sub-folder without its slash.

        A file that the server does not have is listed, so that a caller that needs it gets an error.
        """
        try:
            return [self.info(path)]
        except ObjectNotFoundError as error:
            return [ObjectInfo(path, self._uri(path), size_bytes=None)] if error.status else []
        except StorageError as error:
            if is_transient(error):
                raise  # the caller retries: the file exists, but its size is unknown
            return [ObjectInfo(path, self._uri(path), size_bytes=None)]

    def _if_present(self, path: str) -> list[ObjectInfo]:
        """Describe a file that the folder's page may hide."""
        try:
            return [self.info(path)]
        except (AccessDeniedError, ObjectNotFoundError):
            return []

    def _info_of(self, path: str, probe: Probe) -> ObjectInfo:
        with self._guard:
            self._probes[path] = probe
        return ObjectInfo(path, self._uri(path), probe.size_bytes, probe.whole_version, probe.settled_at)

    def _probe_again(self, info: ObjectInfo) -> Probe:
        probe = self._probe(info.path)
        if not _is_same(probe, info):
            expected, found = (info.version, "a file with a version"), (probe.whole_version, probe.answer)
            raise replaced(info.uri, "The file was replaced since it was found", expected, found)
        return probe

    def _refreshed(self, info: ObjectInfo) -> HttpSource:
        self._info_of(info.path, self._probe_again(info))
        source = self.source(info)
        if not isinstance(source, HttpSource):
            raise RangeResponseError("The server no longer answers byte ranges", uri=info.uri, hint="Load again")
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
    probe: Probe,
    client: HttpClient,
    start: Hop,
    info: ObjectInfo,
    refresh: Any,
    *,
    ca_file: str | None,
    proxy: str | None,
    names_version: bool = False,
) -> HttpSource | PythonSource:
    """Make the source of a probed object; `client` reads it if the server has no ranges."""
    if not probe.has_ranges:
        scheme, host, port = origin_of(probe.hop.url)
        remark = f"{scheme}://{host}:{port} does not honour byte ranges: read in one stream"
        return PythonSource(OneStream(client, start, info, probe).read_into, remark=remark)
    is_redirected = probe.hop.url != start.url
    return HttpSource(
        url=probe.hop.url,
        headers=probe.hop.headers,
        version=None if names_version else probe.version,
        version_header=None if names_version else probe.version_header,
        # A signed URL of the user cannot be renewed; a signed URL of a redirect can.
        expires_at_s=probe.expires_at_s if is_redirected else None,
        refresh=refresh,
        ca_file=ca_file,
        proxy=proxy,
        is_redirect=is_redirected,
    )


def _is_same(probe: Probe, info: ObjectInfo) -> bool:
    return info.size_bytes is None or (
        probe.size_bytes == info.size_bytes and is_same_version(probe.whole_version, info.version)
    )


def _split(uri: str) -> Any:
    try:
        parts = urlsplit(uri)
        origin_of(uri)
    except ValueError:
        hint = "Expected https://host:port/path, with a port up to 65535"
        raise UsageError("This is not a URL", uri=redact(uri), hint=hint) from None
    if not parts.hostname:
        raise UsageError("The URL names no host", uri=redact(uri), hint="Expected https://host/path")
    return parts
