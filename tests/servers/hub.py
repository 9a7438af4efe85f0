"""A stand-in for the Hugging Face Hub, because the real one cannot be reached from tests: two servers on loopback.

It speaks as much of the Hub's API as huggingface_hub's own downloads need, so that `snapshot_download` fills a real
cache from it: revisions, trees in pages, and files, which it serves itself or, as the Hub does with large ones,
through a redirect to a second host. That host answers 400 if it is ever shown a token. What it cannot show: that the
real Hub answers in the same words.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit

from servers.background import served
from servers.hub_writes import HubWrites
from servers.hub_xet import HubXet

__all__ = ["HubServer", "Repository"]

TOKEN = "hf_" + "goodgoodgoodgoodgood"
STRANGER = "hf_" + "strangerstrangerstran"  # a valid login, without access to anything
LARGE_BYTES = 1 << 20  # larger files lie on the second host
PAGE_ENTRIES = 3


@dataclass
class Repository:
    """One repository: its commits by name of revision, its files by commit."""

    gated: bool = False
    private: bool = False
    revisions: dict[str, str] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)  # of the revisions
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], *revisions: str) -> str:
        """Add a commit, let the revisions name it, and return its sha."""
        text = repr([(path, hashlib.sha1(data).hexdigest()) for path, data in sorted(files.items())])
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha] = dict(files)
        for revision in revisions or ("main",):
            self.revisions[revision] = sha
        return sha

    def found(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Return commit and files of a revision."""
        sha = self.revisions.get(revision, revision)
        return (sha, self.commits[sha]) if sha in self.commits else None


class HubServer:
    """A context manager around both hosts.

    Attributes:
        url: The Hub.
        cdn_url: The host of large files; its own second one unless another is given.
        repositories: By ``kind/owner/name``.
        seen: Method, path and whether a token was shown, of every request to the Hub.
        cdn_seen: The same of the second host.
        lifetime_s: How long the redirects say that they are good.
        honours_ranges: Whether the second host gives parts of a file.
        writes: What was written, and how.
    """

    def __init__(self, cdn_url: str | None = None) -> None:
        self._given_cdn_url = cdn_url
        self.repositories: dict[str, Repository] = {}
        self.seen: list[tuple[str, str, bool]] = []
        self.cdn_seen: list[tuple[str, str, bool]] = []
        self.lifetime_s = 3600
        self.honours_ranges = True
        self._hub = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer_hub))
        self._cdn = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer_cdn))
        self._served = served(self._hub, self._cdn)
        self._digests: dict[int, str] = {}
        self._writes = self.writes = HubWrites(self)
        self._xet = HubXet(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._hub.server_port}"

    @property
    def cdn_url(self) -> str:
        return self._given_cdn_url or f"http://127.0.0.1:{self._cdn.server_port}"

    def __enter__(self) -> HubServer:
        self._served.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._served.__exit__(None, None, None)

    def make(self, name: str, *, kind: str = "model", gated: bool = False, private: bool = False) -> Repository:
        """Make an empty repository."""
        self.repositories[f"{kind}/{name}"] = Repository(gated, private)
        return self.repositories[f"{kind}/{name}"]

    def upload_folder(self, folder: Path, name: str, *, sub: str = "", **how: bool) -> Repository:
        """Make a repository whose ``main`` holds the files of a folder."""
        made = self.make(name, **how)
        made.commit({sub + file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()})
        return made

    # --- the Hub ------------------------------------------------------------------------------------------------------

    def _answer_hub(self, request: BaseHTTPRequestHandler) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.seen.append((request.command, request.path, bool(token)))
        place = urlsplit(request.path)
        if token not in ("", TOKEN, STRANGER, "xet"):
            _refuse(request, 401, None, "Invalid credentials in Authorization header")
        elif self._xet.answer(request, place.path):
            pass
        elif request.command == "POST":
            self._writes.answer(request, place.path, token)
        elif known := re.fullmatch(r"/api/buckets/([^/]+/[^/]+)", place.path):
            facts = {"id": known[1], "private": True, "createdAt": "2026-01-01T00:00:00.000Z", "size": 0}
            _send_json(request, {**facts, "totalFiles": 0})
        elif bucket := re.fullmatch(r"/(api/)?buckets/([^/]+/[^/]+)/(tree|resolve)/?(.*)", place.path):
            self._answer_bucket(request, bucket[2], bucket[3], unquote(bucket[4]), token)
        elif refs := re.fullmatch(r"/api/(model|dataset|space)s/([^/]+/[^/]+)/refs", place.path):
            self._answer_refs(request, *refs.groups())
        elif api := re.fullmatch(
            r"/api/(model|dataset|space)s/([^/]+/[^/]+)/(revision|tree)/([^/]+)/?(.*)", place.path
        ):
            kind, name, what, revision, path = api.groups()
            self._answer_api(request, kind, name, what, unquote(revision), unquote(path), place.query)
        elif file := re.fullmatch(r"/(?:(dataset|space)s/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", place.path):
            kind, name, revision, path = file.groups()
            self._answer_file(request, kind or "model", name, unquote(revision), unquote(path), token)
        else:
            _refuse(request, 404, None, "no such page")

    def _found(
        self, request: BaseHTTPRequestHandler, kind: str, name: str, revision: str
    ) -> tuple[Repository, str, dict[str, bytes]] | None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        repository = self.repositories.get(f"{kind}/{name}")
        if repository is None or (repository.private and token != TOKEN):
            status = 404 if token else 401
            _refuse(request, status, "RepoNotFound" if token else None, "Invalid username or password.")
            return None
        found = repository.found(revision)
        if found is None:
            _refuse(request, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, *found

    def _answer_api(
        self, request: BaseHTTPRequestHandler, kind: str, name: str, what: str, revision: str, path: str, query: str
    ) -> None:
        found = self._found(request, kind, name, revision)
        if found is None:
            return
        repository, sha, files = found
        if what == "revision":
            siblings = [{"rfilename": each} for each in files]
            document = {"_id": "1", "id": name, "sha": sha, "siblings": siblings, "tags": [], "downloads": 0}
            _send_json(request, {**document, "private": repository.private, "gated": repository.gated})
            return
        entries = _tree(
            files, path, self._digest, is_recursive=parse_qs(query).get("recursive", [""])[0].lower() == "true"
        )
        if not entries:
            _refuse(request, 404, "EntryNotFound", f"{path} does not exist")
            return
        begin = int(parse_qs(query).get("cursor", ["0"])[0])
        end = begin + PAGE_ENTRIES
        rest = "&".join(part for part in query.split("&") if part and not part.startswith("cursor="))
        host = request.headers["Host"]  # of a proxy before it, where there is one
        url = f"http://{host}{urlsplit(request.path).path}?{rest}{'&' if rest else ''}cursor={end}"
        _send_json(request, entries[begin:end], {"Link": f'<{url}>; rel="next"'} if end < len(entries) else {})

    def _answer_file(
        self, request: BaseHTTPRequestHandler, kind: str, name: str, revision: str, path: str, token: str
    ) -> None:
        found = self._found(request, kind, name, revision)
        if found is None:
            return
        repository, sha, files = found
        if path not in files:
            _refuse(request, 404, "EntryNotFound", "Entry not found")
        elif repository.gated and token != TOKEN:
            _refuse(request, 403 if token else 401, "GatedRepo", f"Access to model {name} is restricted")
        elif len(files[path]) < LARGE_BYTES:
            etag = git_hash(files[path])
            _send_bytes(request, files[path], {"X-Repo-Commit": sha, "ETag": f'"{etag}"'})
        else:
            digest = self._digest(files[path])
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            query = f"X-Amz-Date={now}&X-Amz-Expires={self.lifetime_s}&X-Amz-Signature=CDNSIGNATURE"
            headers = {
                "X-Repo-Commit": sha,
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(files[path])),
                "Location": f"{self.cdn_url}/{digest}?{query}",
            }
            _send(request, 302, b"", headers)

    def _digest(self, data: bytes) -> str:
        """Hash each file once, as the Hub does when it is uploaded; `data` lives as long as this object."""
        if id(data) not in self._digests:
            self._digests[id(data)] = hashlib.sha256(data).hexdigest()
        return self._digests[id(data)]

    def _answer_bucket(self, request: BaseHTTPRequestHandler, name: str, what: str, path: str, token: str) -> None:
        found = self._found(request, "bucket", name, "main")
        if found is None:
            return
        _, _, files = found
        if what == "resolve" and path not in files:
            _refuse(request, 404, "EntryNotFound", "Entry not found")
        elif what == "resolve":
            digest = self._digest(files[path])
            query = f"X-Amz-Date={time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}&X-Amz-Expires={self.lifetime_s}"
            location = f"{self.cdn_url}/{digest}?{query}&X-Amz-Signature=CDNSIGNATURE"
            headers = {"X-Xet-Hash": digest, "X-Linked-Size": str(len(files[path])), "Location": location}
            _send(request, 302, b"", headers)
        else:  # the Hub compares names as texts: "run" lists what is in "run" and in "run2"
            depth = path.count("/") + bool(path)
            entries: dict[str, dict[str, object]] = {}
            for each, data in sorted(files.items()):
                parts = each.split("/")
                if each == path or (each.startswith(path) and len(parts) == depth + 1):
                    facts = {"size": len(data), "xetHash": self._digest(data), "mtime": "2026-01-01T00:00:00.000Z"}
                    entries[each] = {"type": "file", "path": each, **facts}
                elif each.startswith(path) and len(parts) > depth + 1:
                    folder = "/".join(parts[: depth + 1])
                    entries[folder] = {"type": "directory", "path": folder}
            _send_json(request, [*entries.values()])

    def _answer_refs(self, request: BaseHTTPRequestHandler, kind: str, name: str) -> None:
        revisions = self.repositories[f"{kind}/{name}"].revisions
        named = [{"name": each, "ref": f"refs/heads/{each}", "targetCommit": sha} for each, sha in revisions.items()]
        tags = self.repositories[f"{kind}/{name}"].tags
        branches, tagged = ([each for each in named if (each["name"] in tags) is is_tag] for is_tag in (False, True))
        _send_json(request, {"branches": branches, "tags": tagged, "converts": [], "pullRequests": []})

    # --- the second host ----------------------------------------------------------------------------------------------

    def _answer_cdn(self, request: BaseHTTPRequestHandler) -> None:
        self.cdn_seen.append((request.command, request.path, "Authorization" in request.headers))
        if request.command == "PUT":
            self._writes.store(request)
            return
        digest = urlsplit(request.path).path.strip("/")
        every = (
            data for repo in self.repositories.values() for files in repo.commits.values() for data in files.values()
        )
        data = next((data for data in every if self._digest(data) == digest), None)
        if "Authorization" in request.headers:
            _send(request, 400, b"<Error><Code>InvalidArgument</Code></Error>", {})
        elif "X-Amz-Signature=CDNSIGNATURE" not in request.path or data is None:
            _send(request, 403, b"<Error><Code>AccessDenied</Code></Error>", {})
        else:
            _send_bytes(request, data, {"ETag": f'"{digest}"'}, honours_ranges=self.honours_ranges)


def git_hash(data: bytes) -> str:
    """Hash a file as Git does."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _tree(
    files: dict[str, bytes], folder: str, digest: Callable[[bytes], str], *, is_recursive: bool
) -> list[dict[str, object]]:
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, object]] = {}
    for path, data in sorted(files.items()):
        if not path.startswith(prefix):
            continue
        inner = path[len(prefix) :]
        if "/" in inner and not is_recursive:
            name = prefix + inner.partition("/")[0]
            entries[name] = {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
            continue
        oid = git_hash(data)
        entries[path] = {"type": "file", "path": path, "oid": oid, "size": len(data)}
        if len(data) >= LARGE_BYTES:
            entries[path]["lfs"] = {"oid": digest(data), "size": len(data), "pointerSize": 134}
    return list(entries.values())


def _handler(answer: object) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            try:
                answer(self)  # type: ignore[operator]
            except OSError:  # the client has left
                self.close_connection = True

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815  the names http.server wants

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def _send_json(request: BaseHTTPRequestHandler, document: object, headers: dict[str, str] | None = None) -> None:
    _send(request, 200, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})


def _send_bytes(
    request: BaseHTTPRequestHandler, data: bytes, headers: dict[str, str], *, honours_ranges: bool = True
) -> None:
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if asked is None or not honours_ranges:
        _send(request, 200, data, headers)
        return
    begin, end = int(asked[1]), min(int(asked[2] or len(data) - 1) + 1, len(data))
    if begin >= end:
        _send(request, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return
    _send(request, 206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str | None, message: str) -> None:
    headers = {"X-Error-Message": message, "X-Request-Id": "Root=1-hub", "Content-Type": "application/json"}
    if code is not None:
        headers["X-Error-Code"] = code
    _send(request, status, json.dumps({"error": message}).encode(), headers)
