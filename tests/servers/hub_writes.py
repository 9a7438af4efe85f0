"""The part of the stand-in for the Hub that huggingface_hub calls when it writes: repositories, LFS, and commits.

The bytes of large files are put to the second host, in one request or in parts, as the Hub's LFS endpoint says, which
is asked to verify them. What it cannot show: Xet in repositories, and
the limits of the real Hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from servers.hub import HubServer

GIT_FILE = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
READ_ONLY = "hf_" + "readreadreadreadread"  # a login that may read all, and write nothing


class HubWrites:
    """What a `HubServer` takes.

    Attributes:
        objects: The bytes of large files, by their SHA-256.
        commits: The headers of the commits that were made, and the repositories that were made before.
        part_bytes: Size of the parts in which files larger than this are put; None for one request.
        faults: For requests whose path has this text: functions that answer one request each in place of the stand-in,
            with the request and a function that gives the stand-in's own answer.
        before_commit: Called before a commit is looked at.
    """

    def __init__(self, hub: HubServer) -> None:
        self._hub, self._guard = hub, threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.objects: dict[str, bytes] = {}
        self.commits: list[dict[str, Any]] = []
        self.seen: list[str] = []
        self.part_bytes: int | None = None
        self.faults: dict[str, list[Callable[[BaseHTTPRequestHandler, Callable[[], None]], None]]] = {}
        self.before_commit: Callable[[], None] = lambda: None
        self._parts: dict[str, dict[int, bytes]] = {}

    def answer(self, request: BaseHTTPRequestHandler, path: str, token: str) -> None:
        """Answer a ``POST``."""
        from servers import hub

        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.seen.append(path)
        lfs = re.fullmatch(r"/(?:(dataset|space)s/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path)
        part = re.fullmatch(r"/lfs/(verify|complete)", path)
        api = re.fullmatch(r"/api/(model|dataset|space)s/([^/]+/[^/]+)/(preupload|commit)/([^/]+)", path)
        if path == "/api/repos/create":
            job = lambda: self._create(request, json.loads(body), token)  # noqa: E731
        elif path == "/api/validate-yaml":
            job = lambda: hub._send_json(request, {"errors": [], "warnings": []})  # noqa: E731
        elif part:
            job = lambda: self._end(request, part[1], json.loads(body))  # noqa: E731
        elif lfs and self._may(request, lfs[1] or "model", lfs[2], token):
            job = lambda: self._batch(request, json.loads(body))  # noqa: E731
        elif api and self._may(request, api[1], api[2], token):
            take = self._modes if api[3] == "preupload" else self._commit
            job = lambda: take(request, f"{api[1]}/{api[2]}", unquote(api[4]), body)  # noqa: E731
        elif not lfs and not api:
            hub._refuse(request, 404, None, "no such page")
            return
        else:
            return
        self._run(request, path, job)

    def store(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a ``PUT`` to the second host."""
        from servers import hub

        data = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        place = urlsplit(request.path)
        digest, number = place.path.strip("/"), int(parse_qs(place.query).get("part", ["0"])[0])

        def keep() -> None:
            with self._guard:
                self._parts.setdefault(digest, {})[number] = data
            hub._send(request, 200, b"", {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

        self._run(request, request.path, keep)

    def _run(self, request: BaseHTTPRequestHandler, path: str, job: Callable[[], None]) -> None:
        for text, faults in self.faults.items():
            with self._guard:
                fault = faults.pop(0) if text in path and faults else None
            if fault is not None:
                fault(request, job)
                return
        job()

    def _may(self, request: BaseHTTPRequestHandler, kind: str, name: str, token: str) -> bool:
        from servers import hub

        repository = self._hub.repositories.get(f"{kind}/{name}")
        if repository is None:
            hub._refuse(request, 404 if token else 401, "RepoNotFound", "Repository not found")
        elif token != hub.TOKEN:
            hub._refuse(request, 403 if token else 401, None, "You have no right to write to this repository")
        return repository is not None and token == hub.TOKEN

    def _create(self, request: BaseHTTPRequestHandler, wanted: dict[str, Any], token: str) -> None:
        from servers import hub

        name = f"{wanted['organization']}/{wanted['name']}"
        key = f"{wanted.get('type', 'model')}/{name}"
        if token != hub.TOKEN:
            hub._refuse(request, 403, None, "You don't have the rights to create a model under this namespace")
        elif key in self._hub.repositories:
            hub._refuse(request, 409, None, "You already created this model repo")
        else:
            is_private = wanted.get("private", False) or wanted.get("visibility") == "private"
            made = self._hub.make(name, kind=key.partition("/")[0], private=is_private)
            made.commit({".gitattributes": GIT_FILE})
            self.commits.append({"made": key, "private": is_private})
            hub._send_json(request, {"url": f"{self._hub.url}/{name}"})

    def _modes(self, request: BaseHTTPRequestHandler, key: str, revision: str, body: bytes) -> None:
        from servers import hub

        found = self._hub.repositories[key].found(revision)
        if found is None:
            hub._refuse(request, 404, "RevisionNotFound", "Invalid rev id")
            return
        wanted = json.loads(body)
        ignored = wanted.get("gitIgnore", found[1].get(".gitignore", b"").decode()).split()
        files = [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["size"] >= hub.LARGE_BYTES else "regular",
                "shouldIgnore": each["path"] in ignored,
                "oid": None,
            }
            for each in wanted["files"]
        ]
        hub._send_json(request, {"files": files})

    def _batch(self, request: BaseHTTPRequestHandler, wanted: dict[str, Any]) -> None:
        from servers import hub

        objects = []
        for each in wanted["objects"]:
            digest, size = each["oid"], each["size"]
            if digest in self.objects:
                objects.append({"oid": digest, "size": size})
                continue
            url, header = f"{self._hub.cdn_url}/{digest}?X-Amz-Signature=PUTSIGNATURE", {}
            if self.part_bytes and size > self.part_bytes:
                count = -(-size // self.part_bytes)
                header = {f"{number + 1:05}": f"{url}&part={number}" for number in range(count)}
                header["chunk_size"] = str(self.part_bytes)
                url = f"{self._hub.url}/lfs/complete"
            actions = {
                "upload": {"href": url, "header": header},
                "verify": {"href": f"{self._hub.url}/lfs/verify", "header": {}},
            }
            objects.append({"oid": digest, "size": size, "actions": actions})
        hub._send_json(request, {"transfer": "basic", "objects": objects})

    def _end(self, request: BaseHTTPRequestHandler, what: str, wanted: dict[str, Any]) -> None:
        """Join the parts of an object, or compare it with its hash."""
        from servers import hub

        digest = wanted["oid"]
        if what == "complete":
            hub._send_json(request, {})
            return
        data = b"".join(each for _, each in sorted(self._parts.get(digest, {}).items()))
        if hashlib.sha256(data).hexdigest() != digest:
            hub._refuse(request, 422, None, "The stored bytes are not those of the hash")
            return
        self.objects[digest] = data
        hub._send_json(request, {})

    def _commit(self, request: BaseHTTPRequestHandler, key: str, revision: str, body: bytes) -> None:
        from servers import hub

        self.before_commit()
        lines = [json.loads(line) for line in body.splitlines()]
        header = lines[0]["value"]
        with self._guard:
            repository = self._hub.repositories[key]
            found = repository.found(revision)
            if found is None:
                hub._refuse(request, 404, "RevisionNotFound", "Invalid rev id")
                return
            sha, files = found[0], dict(found[1])
            if header.get("parentCommit", sha) != sha:
                hub._refuse(request, 412, None, "A commit has happened since. Please refresh and try again.")
                return
            for line in lines[1:]:
                kind, value = line["key"], line["value"]
                if kind == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif kind == "lfsFile":
                    files[value["path"]] = self.objects[value["oid"]]
                elif value["path"] in files:
                    del files[value["path"]]
                else:
                    hub._refuse(request, 404, "EntryNotFound", "A file with this name doesn't exist")
                    return
            made = repository.commit(files, revision)
            self.commits.append(header | {"paths": [line["value"]["path"] for line in lines[1:]], "sha": made})
        url = f"{self._hub.url}/{key.partition('/')[2]}/commit/{made}"
        hub._send_json(request, {"commitUrl": url, "commitOid": made, "success": True})
