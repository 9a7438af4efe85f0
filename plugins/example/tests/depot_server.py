"""The artifact server of the example: ``/api/list`` and ``/api/sign`` for bearers of the token, ``/data`` for signed URLs."""

import hashlib
import hmac
import json
import re
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "depot-token-of-the-tests"
KEY = b"signs the urls"
LIFETIME_S = 60


class DepotServer:
    """Context manager; `put` and `delete` change what it holds."""

    def __init__(self):
        self.objects = {}
        depot = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                depot.answer(self)

            def log_message(self, *arguments):
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, name="depot", daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()

    def put(self, path, data):
        self.objects[path] = data

    def delete(self, path):
        del self.objects[path]

    def answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path.startswith("/data/"):
            self._answer_data(handler, urllib.parse.unquote(url.path.removeprefix("/data/")), query)
        elif handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            send(handler, 401)
        elif url.path == "/api/list":
            send(handler, 200, json.dumps(self._listed(query.get("path", ""))).encode())
        elif url.path == "/api/sign" and query.get("path") in self.objects:
            send(handler, 200, json.dumps(self._signed(query["path"])).encode())
        else:
            send(handler, 404)

    def _listed(self, folder):
        prefix = f"{folder}/" if folder else ""
        paths = [p for p in self.objects if p.startswith(prefix) and "/" not in p[len(prefix) :]]
        return [{"path": p, "size": len(self.objects[p]), "etag": etag(self.objects[p])} for p in paths]

    def _signed(self, path):
        expires_at_s = time.time() + LIFETIME_S
        signature = sign(path, str(expires_at_s))
        query = urllib.parse.urlencode({"expires": str(expires_at_s), "signature": signature})
        url = f"/data/{urllib.parse.quote(path)}?{query}"
        data = self.objects[path]
        return {"url": url, "size": len(data), "etag": etag(data), "expires_at_s": expires_at_s}

    def _answer_data(self, handler, path, query):
        if not hmac.compare_digest(sign(path, query["expires"]), query["signature"]):
            return send(handler, 403)
        data = self.objects.get(path)
        if data is None:
            return send(handler, 404)
        if handler.headers.get("If-Match", etag(data)) != etag(data):
            return send(handler, 412)
        first, last = (int(number) for number in re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"]).groups())
        if first >= len(data):
            return send(handler, 416)
        last = min(last, len(data) - 1)
        headers = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "ETag": etag(data)}
        return send(handler, 206, data[first : last + 1], headers)


def etag(data):
    return f'"{hashlib.sha256(data).hexdigest()[:16]}"'


def sign(path, expires):
    return hmac.new(KEY, f"{path}\n{expires}".encode(), "sha256").hexdigest()


def send(handler, status, body=b"", headers=None):
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
