"""A stand-in for a registry: its API, a token service, and a second host, which refuses the registry's login."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER, PASSWORD = "reader", "registry-password-of-the-tests"
IDENTITY = "identity-token-of-the-tests"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
POLL_S = 0.05


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Callable[[Handler], None]

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        url = urllib.parse.urlsplit(self.path)
        self.place, self.query = urllib.parse.unquote(url.path), dict(urllib.parse.parse_qsl(url.query))
        try:
            type(self).answer(self)
        except OSError:  # the client has left
            self.close_connection = True

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_range(self, data: bytes, **headers: str) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self.send(200, data, **headers)
        begin, end = int(asked[1]), min(int(asked[2] or len(data) - 1) + 1, len(data))
        if begin >= end:
            return self.send(416, Content_Range=f"bytes */{len(data)}")
        return self.send(206, data[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(data)}", **headers)

    def refuse(self, status: int, code: str, **headers: str) -> None:
        self.send(status, json.dumps({"errors": [{"code": code, "message": "refused"}]}).encode(), **headers)


class RegistryServer:
    """A context manager around both hosts.

    Attributes:
        login: ``"token"``, ``"basic"`` or ``""``.
        redirects: Whether blobs are sent by the second host.
        script: Called for each request to the registry; one that returns True has answered it.
        seen: Method, path and login of each request to the registry; `seen_apart`, of each to the second host.
    """

    def __init__(self, login: str = "", *, redirects: bool = False) -> None:
        self.login, self.redirects = login, redirects
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}  # by repository, and tag or digest
        self.uploads: dict[str, bytearray] = {}
        self.tokens: set[str] = set()
        self.issued = 0
        self.lifetime_s = 300
        self.script: Callable[[Handler], Any] = lambda handler: None
        self.seen: list[tuple[str, str, str]] = []
        self.seen_apart: list[tuple[str, str, str]] = []
        self.lock = threading.RLock()
        answers = (self._answer, self._answer_apart)
        self._servers = [
            ThreadingHTTPServer(("127.0.0.1", 0), type("_", (Handler,), {"answer": staticmethod(each)}))
            for each in answers
        ]
        self.host, self.host_apart = (f"127.0.0.1:{each.server_port}" for each in self._servers)

    def __enter__(self) -> RegistryServer:
        for each in self._servers:
            each.daemon_threads = True
            threading.Thread(target=each.serve_forever, args=(POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._servers:
            each.shutdown()
            each.server_close()

    # --- what is in it ---

    def put_blob(self, data: bytes) -> str:
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def put_manifest(self, repository: str, tag: str, document: dict[str, Any], kind: str = MANIFEST) -> str:
        text = json.dumps(document).encode()
        for name in (tag, digest_of(text)):
            self.manifests[repository, name] = kind, text
        return digest_of(text)

    def put_artifact(
        self, repository: str, tag: str, *layers: tuple[bytes, str, dict[str, str]], config: str = EMPTY
    ) -> str:
        """Put an artifact of layers: data, media type, annotations."""
        described = [
            {"mediaType": kind, "digest": self.put_blob(data), "size": len(data), "annotations": notes}
            for data, kind, notes in layers
        ]
        document = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": described}
        document["config"] = {"mediaType": config, "digest": self.put_blob(b"{}"), "size": 2}
        return self.put_manifest(repository, tag, document)

    def put_files(self, repository: str, tag: str, files: dict[str, bytes]) -> str:
        kind = "application/vnd.cncf.model.weight.v1.raw"
        layers = [(data, kind, {"org.opencontainers.image.title": name}) for name, data in files.items()]
        return self.put_artifact(repository, tag, *layers, config="application/vnd.cncf.model.config.v1+json")

    # --- the registry ---

    def _answer(self, handler: Handler) -> None:
        with self.lock:
            self.seen.append((handler.command, handler.path, handler.headers.get("Authorization", "")))
        if self.script(handler):
            return None
        if handler.place == "/token":
            return self._answer_token(handler)
        if not self._is_allowed(handler):
            scope = re.match(r"/v2/(.+?)/(manifests|blobs)", handler.place)
            actions = "pull" if handler.command in ("GET", "HEAD") else "pull,push"
            bearer = f'Bearer realm="http://{self.host}/token",service="tests"'
            bearer += f',scope="repository:{scope[1]}:{actions}"' if scope else ""
            challenge = bearer if self.login == "token" else 'Basic realm="tests"'
            return handler.refuse(401, "UNAUTHORIZED", WWW_Authenticate=challenge)
        if match := re.fullmatch(r"/v2/(.+)/manifests/([^/]+)", handler.place):
            return self._answer_manifest(handler, *match.groups())
        if match := re.fullmatch(r"/v2/(.+)/blobs/uploads/(.*)", handler.place):
            return self._answer_upload(handler, *match.groups())
        if match := re.fullmatch(r"/v2/(.+)/blobs/([^/]+)", handler.place):
            return self._answer_blob(handler, match[2])
        return handler.refuse(404, "NOT_FOUND")

    def _is_allowed(self, handler: Handler) -> bool:
        shown = handler.headers.get("Authorization", "")
        if self.login == "token":
            return shown.removeprefix("Bearer ") in self.tokens
        return not self.login or shown == basic()

    def _answer_token(self, handler: Handler) -> None:
        form = dict(urllib.parse.parse_qsl(handler.body.decode())) if handler.command == "POST" else {}
        if handler.headers.get("Authorization") != basic() and form.get("refresh_token") != IDENTITY:
            return handler.refuse(401, "UNAUTHORIZED")
        with self.lock:
            self.issued += 1
            token = f"token-{self.issued}-of-the-tests"
            self.tokens.add(token)
        document = {"access_token" if form else "token": token, "expires_in": self.lifetime_s}
        return handler.send(200, json.dumps(document).encode(), Content_Type="application/json")

    def _answer_manifest(self, handler: Handler, repository: str, name: str) -> None:
        with self.lock:
            if handler.command == "PUT":
                kind = handler.headers["Content-Type"]
                named = [each["digest"] for each in json.loads(handler.body)["layers"]]
                if missing := [each for each in named if each not in self.blobs]:
                    return handler.refuse(400, "MANIFEST_BLOB_UNKNOWN", X_Missing=missing[0])
                for each in (name, digest_of(handler.body)):
                    self.manifests[repository, each] = kind, handler.body
                return handler.send(201, Docker_Content_Digest=digest_of(handler.body))
            kind, text = self.manifests.get((repository, name), ("", b""))
        if not text:
            return handler.refuse(404, "MANIFEST_UNKNOWN")
        return handler.send(200, text, Content_Type=kind, Docker_Content_Digest=digest_of(text))

    def _answer_upload(self, handler: Handler, repository: str, upload: str) -> None:
        with self.lock:
            if handler.command == "POST":
                upload = f"upload-{len(self.uploads)}"
                self.uploads[upload] = bytearray()
            if upload not in self.uploads:
                return handler.refuse(404, "BLOB_UPLOAD_UNKNOWN")
            data = self.uploads[upload]
            place = f"/v2/{repository}/blobs/uploads/{upload}?_state={len(data)}"
            if handler.command == "PATCH":
                begin = int(handler.headers["Content-Range"].partition("-")[0])
                if begin != len(data):
                    return handler.refuse(416, "BLOB_UPLOAD_INVALID")
                data += handler.body
            if handler.command == "DELETE":
                del self.uploads[upload]
                return handler.send(204)
            if handler.command == "PUT":
                data += handler.body
                if digest_of(bytes(data)) != handler.query["digest"]:
                    return handler.refuse(400, "DIGEST_INVALID")
                self.put_blob(bytes(data))
                del self.uploads[upload]
                return handler.send(201, Location=f"/v2/{repository}/blobs/{handler.query['digest']}")
            status = 204 if handler.command == "GET" else 202
            return handler.send(status, Location=place, Range=f"0-{max(0, len(data) - 1)}")

    def _answer_blob(self, handler: Handler, digest: str) -> None:
        if digest not in self.blobs:
            return handler.refuse(404, "BLOB_UNKNOWN")
        if self.redirects:
            return handler.send(307, Location=f"http://{self.host_apart}/{digest}?signature=SIGNED-APART")
        return handler.send_range(self.blobs[digest], ETag=f'"{digest}"')

    # --- the second host ---

    def _answer_apart(self, handler: Handler) -> None:
        shown = handler.headers.get("Authorization", "")
        with self.lock:
            self.seen_apart.append((handler.command, handler.path, shown))
        if shown or handler.query.get("signature") != "SIGNED-APART":
            return handler.send(400, b"<Error><Code>InvalidArgument</Code></Error>")
        digest = handler.place.strip("/")
        return handler.send_range(
            self.blobs[digest], ETag=f'"{len(self.seen_apart)}"'
        )  # another at each of its servers


def basic() -> str:
    return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
