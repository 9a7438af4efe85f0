"""``modelscope://owner/name[@revision][/path]``: models of ModelScope, read where its API redirects to.

Guarantees: the files are listed once for a store, and each is read from the commit that the listing names for it, so a
branch that moves makes no mixture. The token goes to the endpoint alone.
https://github.com/modelscope/modelscope_hub
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from streamer.plugins import (
    ChangedError,
    HttpSource,
    Limits,
    ListingCount,
    NoDigest,
    ObjectDigest,
    ObjectInfo,
    ObjectNotFoundError,
    PartDigest,
    PythonSource,
    StorageError,
    UsageError,
    check_option_names,
    digest_of,
    hookimpl,
    open_store,
    send_request,
)
from streamer_stores import check_texts, checked_token, with_login_hint

DEFAULT_REVISION = "master"
OPTIONS = ("endpoint", "token", "verify")
LOGIN = "Set MODELSCOPE_API_TOKEN, or give storage_options={'token': …}, and check that it may read the model"
_URL = re.compile(r"modelscope://([\w.-]+)/([\w.-]+)(?:@([^/@?#]+))?(?:/(.*))?", re.IGNORECASE | re.DOTALL | re.ASCII)
_COMMIT, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")
_SITES = ("https://modelscope.cn", "https://www.modelscope.ai")


@dataclass(frozen=True)
class File:
    """One file of a model, as it is listed."""

    size_bytes: int
    sha256: str  # empty if the listing has none
    revision: str  # the commit that last changed it

    @property
    def version(self) -> str | None:
        """What names the bytes, or None if only the answers to their requests can tell."""
        return self.sha256 or (self.revision if _COMMIT.fullmatch(self.revision) else None)


@hookimpl
def streamer_open_store(uri: str, storage_options: Mapping[str, Any], limits: Limits) -> ModelScopeStore:
    """Open a revision of a model."""
    check_option_names("modelscope://", storage_options, OPTIONS)
    check_texts(storage_options, OPTIONS)
    return ModelScopeStore(uri, storage_options, limits)


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source: files are read over HTTP."""
    return HttpSource


class ModelScopeStore:
    """See the module's docstring. A path is the URL without its scheme."""

    def __init__(self, uri: str, options: Mapping[str, str], limits: Limits) -> None:
        match = _URL.fullmatch(uri)
        owner, name, revision, path = match.groups("") if match else ("datasets", "", "", "")
        self._model, self._revision, path = f"{owner}/{name}", unquote(revision) or DEFAULT_REVISION, path.strip("/")
        if owner == "datasets" or not _is_inside(f"{self._model}/{self._revision}{path and '/'}{path}"):
            hint = "Write modelscope://owner/name, with @revision if needed, and a path after it"
            raise UsageError("This is not the URL of a model", uri=uri, hint=hint)
        self._prefix = self._model + (f"@{revision}" if revision else "")
        self.root = f"{self._prefix}/{path}".rstrip("/")
        self.server, self._limits = _endpoint(options, uri), limits
        self._options: dict[str, Any] = {name: value for name, value in options.items() if name == "verify"}
        self._options["headers"] = _login(options)
        self._lock = threading.Lock()
        self._files: dict[str, File] | None = None

    def info(self, path: str) -> ObjectInfo:
        """Describe one file."""
        file = self._listed().get(self._inner(path))
        if file is None:
            what = f"The revision {self._revision} of the model has no such file"
            raise ObjectNotFoundError(what, uri=f"modelscope://{path}", hint="Check the path, and the revision")
        return ObjectInfo(path, f"modelscope://{path}", file.size_bytes, file.version)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the files directly in a folder."""
        return [self.info(f"{prefix}/{name}") for name, rest in self._below(prefix) if not rest]

    def folders(self, prefix: str) -> list[str]:
        """List the folders directly in a folder."""
        return sorted({name for name, rest in self._below(prefix) if rest})

    def source(self, info: ObjectInfo) -> HttpSource | PythonSource:
        """Return where the bytes are: behind the redirects of the API, which get no token."""
        file = self._listed().get(self._inner(info.path))
        if file is None or (file.size_bytes, file.version) != (info.size_bytes, info.version):
            raise ChangedError("The revision holds another version of the file by now", uri=info.uri, hint="Load again")
        query = urlencode({"Revision": file.revision, "FilePath": self._inner(info.path)})
        store = open_store(f"{self._api}/repo?{query}", self._options, limits=self._limits)
        try:
            found = store.info(store.root)
            if found.size_bytes != file.size_bytes:  # its answer for a file that it lacks is a document of status 200
                what = f"The server has {found.size_bytes} bytes, and its listing names {file.size_bytes}"
                raise StorageError(what, uri=info.uri, hint="Load again; if it stays, the model is damaged there")
            source: HttpSource | PythonSource = store.source(found)  # type: ignore[assignment]  # of a web server
        except StorageError as error:
            error.uri = info.uri
            with_login_hint(error, LOGIN)
            raise
        if not isinstance(source, HttpSource):
            return source  # the server has no ranges
        if _COMMIT.fullmatch(file.revision):  # which names the bytes; the servers of one file need not agree on an ETag
            source = replace(source, version=None, version_header=None)
        return replace(source, refresh=lambda: self._renewed(info))

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Return the digest that the listing names."""
        file = self._listed().get(self._inner(info.path))
        if file is None or not file.sha256:
            return NoDigest("the listing names no sha256 for it")
        return ObjectDigest("sha256", (PartDigest(file.size_bytes, file.sha256),))

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of what decides the bytes."""
        bytes_of = info.version or [info.path, self._options["headers"]]
        return digest_of("modelscope", self.server, self._model, bytes_of)

    def close(self) -> None:
        """Do nothing: a request is closed after its answer."""

    @property
    def _api(self) -> str:
        return f"{self.server}/api/v1/models/{quote(self._model)}"

    def _renewed(self, info: ObjectInfo) -> HttpSource:
        source = self.source(info)
        if not isinstance(source, HttpSource):
            raise StorageError("The server no longer answers byte ranges", uri=info.uri, hint="Load again")
        return source

    def _inner(self, path: str) -> str:
        return path[len(self._prefix) :].strip("/")

    def _below(self, prefix: str) -> list[tuple[str, str]]:
        """Return the first part of each path in a folder, and the rest."""
        folder = self._inner(prefix)
        start = f"{folder}/" if folder else ""
        found = (path[len(start) :].partition("/") for path in sorted(self._listed()) if path.startswith(start))
        return [(name, rest) for name, _, rest in found]

    def _listed(self) -> dict[str, File]:
        """Request the files of the revision once; the answer is of one commit."""
        with self._lock:
            if self._files is None:
                self._files = self._request_listing()
            return self._files

    def _request_listing(self) -> dict[str, File]:
        uri = f"modelscope://{self._prefix}"
        query = urlencode({"Revision": self._revision, "Recursive": "True"})
        source = HttpSource(
            f"{self._api}/repo/files?{query}", self._options["headers"], ca_file=self._options.get("verify")
        )
        answer = send_request(source, uri, limits=self._limits)
        if answer.status != 200:
            error = with_login_hint(answer.error(uri), LOGIN)
            if answer.status == 404:
                error.message = "ModelScope has no such model or revision"
                error.hint = f"Check the names; a slash in a revision is written %2F. {LOGIN}"
            raise error
        try:
            document = json.loads(answer.body)
            if document["Code"] != 200:
                raise ValueError
            entries, total = document["Data"].get("Files") or [], document["Data"].get("TotalCount") or 0
            files = dict(self._file(each) for each in entries if each.get("Type") not in ("tree", "commit"))
            fault = "lacks files" if total > len(entries) else ""
        except (ValueError, KeyError, TypeError, AttributeError):
            hint = "Check the name and the revision, the endpoint, and the proxies on the way to it"
            raise StorageError("The answer is not a listing of ModelScope", uri=uri, hint=hint) from None
        ListingCount(self._limits, uri).add(len(entries))
        if fault or not all(map(_is_inside, files)):
            what = f"The listing of the model {fault or 'names a path that leads out of it'}"
            raise StorageError(what, uri=uri, hint="Do not use this model")
        return files

    def _file(self, entry: Mapping[str, Any]) -> tuple[str, File]:
        """Return the path of a file, and the file; raises if the entry is not one of a listing."""
        path, size_bytes = entry["Path"], entry["Size"]
        sha256, commit = (entry.get("Sha256") or "").lower(), entry.get("Revision") or ""
        if not isinstance(path, str) or type(size_bytes) is not int or not 0 <= size_bytes < 1 << 63:
            raise ValueError
        is_commit = _COMMIT.fullmatch(commit) is not None
        sha256 = sha256 if _SHA256.fullmatch(sha256) else ""
        return path, File(size_bytes, sha256, commit if is_commit else self._revision)


def _is_inside(path: str) -> bool:
    return "\0" not in path and not {"", ".", ".."}.intersection(path.split("/"))


def _endpoint(options: Mapping[str, str], uri: str) -> str:
    """Return the server of the options or the variables, as ModelScope's own client chooses it."""
    names = ("MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN")
    given = options.get("endpoint") or next(filter(None, (os.environ.get(name, "").strip() for name in names)), "")
    if not given:
        return _SITES[os.environ.get("MODELSCOPE_PREFER_AI_SITE", "").lower() in ("1", "true", "yes", "on")]
    url = (given if "://" in given else f"https://{given}").rstrip("/")
    if urlsplit(url).scheme not in ("http", "https") or "@" in urlsplit(url).netloc:
        hint = "Give https://host as endpoint or in MODELSCOPE_ENDPOINT, and the login as a token"
        raise UsageError(
            "The endpoint of ModelScope is not the URL of a server without a login in it", uri=uri, hint=hint
        )
    return url


def _login(options: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the login: old parts of the API take the cookie, new ones the other."""
    token = checked_token(options.get("token") or os.environ.get("MODELSCOPE_API_TOKEN", ""), "ModelScope")
    return {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"} if token else {}
