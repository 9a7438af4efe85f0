"""A stand-in for ModelScope: listings of commits, files through its gateway, and a second host for large files.

What was seen of the real service is imitated: the gateway sends a range under status 200, a file that is missing is a
document of status 200, and a large file is a redirect to a signed URL at a host that has no use for a token.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import ThreadingHTTPServer

from registry_server import POLL_S, Handler

TOKEN = "token-of-the-tests-of-modelscope"
MODEL = "/api/v1/models/org/llama"
MISSING = b'{"Code":10990101007,"Message":"no content","RequestId":"1","Success":false}'
UNKNOWN = b'{"Code":10010205001,"Message":"record not found","RequestId":"1","Success":false}'


class ModelScopeServer:
    """A context manager around both hosts.

    Attributes:
        large_bytes: Size from which on a file is at the second host.
        is_private: Whether requests need the token.
        branches: Names of commits by branch; `commits`, entries and bytes by commit and path.
        script: Called for each request to the API; one that returns True has answered it.
        change: Called with the entries of each listing, which it may change.
        signature: What the second host wants.
        logins: Headers of logins that the second host has got.
    """

    def __init__(self) -> None:
        self.large_bytes, self.is_private, self.signature = 1 << 60, True, "1"
        self.branches, self.commits = {"master": f"{0:040x}"}, {f"{0:040x}": {}}
        self.script, self.change = lambda handler: None, lambda data: None
        self.seen, self.logins = [], set()
        kinds = [type("_", (Handler,), {"answer": staticmethod(each)}) for each in (self._answer, self._answer_apart)]
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in kinds]
        self.url, apart = (f"http://127.0.0.1:{each.server_port}" for each in self._servers)
        self.apart = apart.replace("127.0.0.1", "localhost")

    def __enter__(self) -> ModelScopeServer:
        for each in self._servers:
            each.daemon_threads = True
            threading.Thread(target=each.serve_forever, args=(POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._servers:
            each.shutdown()
            each.server_close()

    def commit(self, changed: dict[str, bytes | None], branch: str = "master") -> str:
        """Make a commit that changes files, and removes those that are None; return its name."""
        files = dict(self.commits[self.branches.get(branch, self.branches["master"])])
        name = f"{len(self.commits):040x}"
        for path, data in changed.items():
            files.pop(path, None)
            if data is not None:
                entry = {"Name": path.rpartition("/")[2], "Path": path, "Type": "blob", "Size": len(data)}
                entry |= {"Revision": name, "Sha256": hashlib.sha256(data).hexdigest(), "Mode": "33188"}
                files[path] = entry, data
        self.commits[name], self.branches[branch] = files, name
        return name

    def _answer(self, handler: Handler) -> None:
        self.seen.append(handler.path)
        if self.script(handler):
            return None
        logins = handler.headers.get("Authorization"), handler.headers.get("Cookie")
        if self.is_private and logins != (f"Bearer {TOKEN}", f"m_session_id={TOKEN}"):
            return handler.send(403, b'{"Code":10010205003,"Message":"no access","Success":false}')
        revision = handler.query.get("Revision", "")
        files = self.commits.get(self.branches.get(revision, revision))
        if files is None or not handler.place.startswith(f"{MODEL}/repo"):
            return handler.send(404, UNKNOWN)
        if handler.place == f"{MODEL}/repo/files":
            folders = {path.rpartition("/")[0] for path in files} - {""}
            entries = [{"Path": path, "Name": path, "Type": "tree", "Size": 0, "Sha256": ""} for path in folders]
            data = {"Files": [*entries, *(dict(entry) for entry, _ in files.values())] or None, "LatestCommitter": {}}
            self.change(data)
            return handler.send(200, json.dumps({"Code": 200, "Data": data, "Success": True}).encode())
        entry, data = files.get(handler.query["FilePath"], ({}, None))
        if data is None:
            return handler.send(200, MISSING, Content_Type="application/json")
        if len(data) < self.large_bytes:
            return self._send(handler, data)
        place = f"{self.apart}/prod/lfs-objects/{revision}/{len(self.seen)}/{entry['Sha256']}"
        return handler.send(302, Location=f"{place}?auth_key={self.signature}")

    @staticmethod
    def _send(handler: Handler, data: bytes) -> None:
        """Send a range as the gateway does."""
        begin, _, last = handler.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if not last:
            return handler.send(200, data, Accept_Ranges="bytes")
        end = min(int(last) + 1, len(data))
        if int(begin) >= end:
            return handler.send(416, Content_Range=f"bytes */{len(data)}")
        content_range = f"bytes {begin}-{end - 1}/{len(data)}"
        return handler.send(200, data[int(begin) : end], Accept_Ranges="bytes", Content_Range=content_range)

    def _answer_apart(self, handler: Handler) -> None:
        self.logins |= {handler.headers.get("Authorization"), handler.headers.get("Cookie")}
        if handler.query.get("auth_key") != self.signature:
            return handler.send(403, b"expired")
        wanted = handler.place.rpartition("/")[2]
        data = next(
            data for files in self.commits.values() for entry, data in files.values() if entry["Sha256"] == wanted
        )
        return handler.send_range(data, ETag=f'"{handler.place}"')  # another at each of its servers
