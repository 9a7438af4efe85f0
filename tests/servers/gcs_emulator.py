"""A private Google Cloud Storage on free loopback ports: gcp-storage-emulator, and our gate in front of it.

The emulator's: buckets, objects, metadata, generation numbers, listings by prefix and delimiter, ranges. It asks nobody
who they are, ignores ``generation`` and ``ifGenerationMatch``, lists everything on one page and speaks HTTP/1.0.
The gate's: access tokens and the token server, rights, billing, conditions on generations, ``x-goog-generation``,
pages, Google's error documents, HTTP/1.1. No other GCS server is to be had from PyPI or npm.

Guarantees: when ``start`` returns, objects can be written; ``stop``, and also the death of this process by any
signal, ends the server, which keeps everything in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from servers.gcs_gate import PROJECTS, Gate, Interference, Seen
from servers.server_process import LoopbackServer

__all__ = ["GcsServer", "Seen"]

# Tells its port, and ends with its input, so at our death too. The default backlog of 5 loses connections.
EMULATOR = """
import logging, sys
from gcp_storage_emulator.server import create_server, server
logging.disable()
server.HTTPServer.request_queue_size = 512
emulator = create_server("127.0.0.1", 0, in_memory=True)
emulator._api.daemon = True
emulator.start()
print(emulator._api._httpd.server_port, flush=True)
sys.stdin.read()
"""

BOUNDARY = "between-the-parts-of-an-upload-5f0c"


class GcsServer(LoopbackServer):
    """A context manager around one running server.

    Args:
        public_buckets: Buckets that anyone may read.
        paying_buckets: Buckets whose readers pay: a request must name `project`.

    Attributes:
        endpoint_url: The gate.
        emulator_url: The emulator behind it, without any of the gate's rules.
        gate: Knows every request and token; its fields may be changed by a test that puts them back.
        project: The project that may be billed.
    """

    def __init__(self, *, public_buckets: Sequence[str] = ("public",), paying_buckets: Sequence[str] = ()) -> None:
        self._public_buckets, self._paying_buckets = public_buckets, paying_buckets
        self.project = PROJECTS[0]

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start both and wait until they answer.

        Raises:
            RuntimeError: the emulator is not installed, or ended at once.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-c", EMULATOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            start_new_session=True,  # an interrupt in the terminal is ours to handle
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            raise RuntimeError("gcp-storage-emulator did not start: pip install gcp-storage-emulator")
        self.emulator_url = f"http://127.0.0.1:{int(port)}"
        self.gate = Gate(self.emulator_url, self._public_buckets, self._paying_buckets)
        self.endpoint_url = f"http://127.0.0.1:{self.gate.start()}"

    def stop(self) -> None:
        """End both."""
        self.gate.stop()
        self._process.kill()
        self._process.communicate()

    # --- use ----------------------------------------------------------------------------------------------------

    def storage_options(self, identity: str = "owner", **changes: Any) -> dict[str, Any]:
        """Return gcsfs's options for the gate as ``owner``, ``reader`` (no listing) or ``stranger``."""
        return {"endpoint_url": self.endpoint_url, "token": self.service_account(identity), **changes}

    def anonymous_options(self) -> dict[str, Any]:
        """Return the options of a gcsfs that shows no token."""
        return {"endpoint_url": self.endpoint_url, "token": "anon"}

    def service_account(self, identity: str = "owner") -> dict[str, str]:
        """Make the content of a service account's key file, which google-auth exchanges for tokens at the gate."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        email = f"{identity}-{len(self.gate.certificates)}@project.iam.gserviceaccount.com"
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.gate.certificates[email] = identity, public
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": "1",
            "private_key": private.decode(),
            "client_email": email,
            "token_uri": f"{self.endpoint_url}/token",
        }

    @contextmanager
    def interfering(self, interference: Interference) -> Iterator[list[Seen]]:
        """Let a function look at every request, and answer it in the gate's place where it likes."""
        before = len(self.gate.requests)
        self.gate.interfere = interference
        seen: list[Seen] = []
        try:
            yield seen
        finally:
            self.gate.interfere = None
            seen += self.gate.requests[before:]

    def make_bucket(self, bucket: str) -> None:
        """Make a bucket."""
        self._send("POST", "/storage/v1/b", json.dumps({"name": bucket}).encode(), "application/json")

    def put(self, bucket: str, key: str, body: bytes) -> str:
        """Write one object and give its generation."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
        part = f"\r\n--{BOUNDARY}\r\nContent-Type: ".encode()
        # In two parts, because an upload of the bytes alone makes the emulator fail where there are none.
        parts = [
            b"application/json\r\n\r\n" + json.dumps({"name": key}).encode(),
            b"application/octet-stream\r\n\r\n" + body,
        ]
        sent = part.lstrip() + part.join(parts) + f"\r\n--{BOUNDARY}--\r\n".encode()
        return str(json.loads(self._send("POST", path, sent, f"multipart/related; boundary={BOUNDARY}"))["generation"])

    def delete(self, bucket: str, key: str) -> None:
        """Remove one object."""
        self._send("DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}")

    def upload_folder(self, folder: str | os.PathLike[str], bucket: str, prefix: str) -> str:
        """Upload every file of a folder, sub-folders included, and give the prefix's ``gs://`` URL."""
        root = Path(folder)
        for file in sorted(file for file in root.rglob("*") if file.is_file()):
            self.put(bucket, f"{prefix}/{file.relative_to(root).as_posix()}", file.read_bytes())
        return f"gs://{bucket}/{prefix}"

    def _send(self, method: str, path: str, body: bytes | None = None, kind: str | None = None) -> bytes:
        headers = {"Content-Type": kind} if kind else {}
        request = urllib.request.Request(self.emulator_url + path, body, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would not reach our loopback
        with opener.open(request, timeout=60) as answer:
            return bytes(answer.read())
