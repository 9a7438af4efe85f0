"""Small servers on loopback that can be written: S3, Google Cloud Storage, Azure Blob, and a web server with PUT.

Each request is recorded with the step of an upload that it is. A script is called for each request before its answer,
and returns another answer in its place, or None.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from servers.background import served
from streamer import _native

__all__ = ["KINDS", "Answer", "Azure", "Gcs", "S3", "Sent", "Storage", "Web", "error_of", "writable"]


class Sent(NamedTuple):
    """One request: its step (``put``, ``create``, ``part``, ``complete``, ``read``, …), and what was sent."""

    step: str
    method: str
    name: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """Status, headers and body."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


class Storage:
    """What one server holds; the subclasses speak the protocols."""

    scheme = ""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}  # by ``bucket/name``; with their headers
        self.uploads: dict[str, dict[str, Any]] = {}
        self.log: list[Sent] = []
        self.script: Callable[[Sent], Answer | None] = lambda _: None
        self.count = 0
        self.lock = threading.RLock()
        self.url = ""

    def options(self) -> dict[str, Any]:
        """Storage options for this server."""
        return {}

    def uri(self, name: str) -> str:
        """URL of an object in the only bucket."""
        return f"{self.scheme}://bkt/{name}"

    def step(self, sent: Sent) -> str:
        """Name what a request does."""
        return {"GET": "read", "HEAD": "head", "DELETE": "delete"}.get(sent.method, sent.method.lower())

    def answered(self, sent: Sent) -> Answer:
        """Do what the request says."""
        raise NotImplementedError

    def new_id(self) -> str:
        """Return a text that no other call returns."""
        self.count += 1
        return str(1000 + self.count)

    def is_refused(self, sent: Sent) -> bool:
        """Whether If-None-Match or If-Match does not hold."""
        there = self.objects.get(sent.name)
        if sent.headers.get("if-none-match") == "*":
            return there is not None
        return "if-match" in sent.headers and (there is None or there[1]["ETag"] != sent.headers["if-match"])

    def read(self, sent: Sent, more: dict[str, str]) -> Answer:
        """Answer a GET or HEAD of an object that is there."""
        data, about = self.objects[sent.name]
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", sent.headers.get("x-ms-range") or sent.headers.get("range", ""))
        if not asked:
            return Answer(200, {**about, **more}, data)
        begin, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
        return Answer(206, {**about, **more, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}, data[begin:end])


def _xml(text: str, status: int = 200) -> Answer:
    return Answer(status, {"Content-Type": "application/xml"}, text.encode())


class S3(Storage):
    """S3, by path; signatures are not checked."""

    scheme = "s3"

    def options(self) -> dict[str, Any]:
        """Return keys and endpoint."""
        return {"key": "AK", "secret": "SK", "endpoint_url": self.url, "client_kwargs": {"region_name": "us-east-1"}}

    def step(self, sent: Sent) -> str:
        """Name what a request does."""
        of_upload = {"PUT": "part", "POST": "complete", "DELETE": "abort", "GET": "parts"}
        if "uploadId" in sent.query:
            return of_upload[sent.method]
        if "uploads" in sent.query:
            return "create" if sent.method == "POST" else "uploads"
        return "list" if "list-type" in sent.query else super().step(sent)

    def answered(self, sent: Sent) -> Answer:
        """Do what the request says."""
        etag = f'"{md5(sent.body, usedforsecurity=False).hexdigest()}"'
        about = {name: value for name, value in sent.headers.items() if name.startswith("x-amz-meta-")}
        upload = self.uploads.get(sent.query.get("uploadId", ""))
        if sent.step == "parts" or ("uploadId" in sent.query and upload is None):
            return error_of(self, 404, "NoSuchUpload")
        if sent.step == "create":
            number = self.new_id()
            self.uploads[number] = {"about": about, "parts": {}}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>")
        if sent.step == "part" and upload:
            upload["parts"][int(sent.query["partNumber"])] = sent.body
            crc = sent.headers.get("x-amz-checksum-crc32c")
            return Answer(200, {"ETag": etag} | ({"x-amz-checksum-crc32c": crc} if crc else {}))
        if sent.step in ("complete", "put") and self.is_refused(sent):
            return error_of(self, 412, "PreconditionFailed")
        if sent.step == "complete" and upload:
            data = b"".join(upload["parts"][int(each)] for each in re.findall(rb"<PartNumber>(\d+)<", sent.body))
            self.objects[sent.name] = data, {"ETag": f'"{self.new_id()}-1"', **upload["about"]}
            del self.uploads[sent.query["uploadId"]]
            return _xml("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
        if sent.step == "abort":
            del self.uploads[sent.query["uploadId"]]
        if sent.step == "put":
            self.objects[sent.name] = sent.body, {"ETag": etag, **about}
            return Answer(200, {"ETag": etag})
        if sent.method == "DELETE":
            self.objects.pop(sent.name, None)
            return Answer(204, {})
        if sent.step == "list":
            found = [(name[4:], len(data)) for name, (data, _) in sorted(self.objects.items())]
            found = [each for each in found if each[0].startswith(sent.query.get("prefix", ""))]
            rows = "".join(f"<Contents><Key>{key}</Key><Size>{size}</Size></Contents>" for key, size in found)
            return _xml(f"<ListBucketResult>{rows}</ListBucketResult>")
        return self.read(sent, {}) if sent.name in self.objects else error_of(self, 404, "NoSuchKey")


class Gcs(Storage):
    """Google's JSON API, without credentials."""

    scheme = "gs"

    def options(self) -> dict[str, Any]:
        """Return endpoint and no credentials."""
        return {"token": "anon", "endpoint_url": self.url}

    def step(self, sent: Sent) -> str:
        """Name what a request does."""
        if "upload_id" in sent.query:
            return "abort" if sent.method == "DELETE" else "part"
        if sent.query.get("uploadType"):
            return "create" if sent.query["uploadType"] == "resumable" else "put"
        if sent.name.endswith("/o"):
            return "list"
        return "head" if sent.method == "GET" and sent.query.get("alt") != "media" else super().step(sent)

    def answered(self, sent: Sent) -> Answer:
        """Do what the request says."""
        name = "bkt/" + unquote(sent.name.partition("/o/")[2])
        if sent.step == "create":
            number = self.new_id()
            metadata = json.loads(sent.body or b"{}").get("metadata", {})
            self.uploads[number] = {"name": f"bkt/{sent.query['name']}", "data": bytearray(), "metadata": metadata}
            return Answer(200, {"Location": f"{self.url}/?upload_id={number}"})
        if sent.step == "part":
            return self._part(sent)
        if sent.step == "abort":
            self.uploads.pop(sent.query["upload_id"], None)
            return Answer(499, {})
        if sent.step == "list":
            keys = [each[4:] for each in self.objects if each[4:].startswith(sent.query.get("prefix", ""))]
            return self._json({"items": [self._document(f"bkt/{each}") for each in keys]})
        if name not in self.objects:
            return error_of(self, 404, "notFound")
        if sent.method == "DELETE":
            del self.objects[name]
            return Answer(204, {})
        if sent.step == "read":
            return self.read(sent._replace(name=name), {})
        return self._json(self._document(name))

    def _part(self, sent: Sent) -> Answer:
        upload = self.uploads.get(sent.query["upload_id"])
        if upload is None:
            return error_of(self, 410, "gone")
        if "done" in upload:
            return self._json(self._document(upload["name"]))
        span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", sent.headers["content-range"])
        assert span is not None
        if span[1] is not None:
            upload["data"][int(span[1]) :] = sent.body
        if span[2] == "*" or len(upload["data"]) < int(span[2]):
            kept = {"Range": f"bytes=0-{len(upload['data']) - 1}"} if upload["data"] else {}
            return Answer(308, kept)
        generation = self.new_id()
        about = {"x-goog-generation": generation, "metadata": json.dumps(upload["metadata"])}
        self.objects[upload["name"]] = bytes(upload["data"]), about
        upload["done"] = True
        return self._json(self._document(upload["name"]))

    def _document(self, name: str) -> dict[str, Any]:
        data, about = self.objects[name]
        crc = base64.b64encode(_native.crc("crc32c", data).to_bytes(4, "big")).decode()
        facts = {"name": name[4:], "size": str(len(data)), "generation": about["x-goog-generation"], "crc32c": crc}
        return {**facts, "metadata": json.loads(about["metadata"])}

    def _json(self, document: Any) -> Answer:
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(document).encode())


class Azure(Storage):
    """Blobs of one account; keys are not checked."""

    scheme = "az"

    def options(self) -> dict[str, Any]:
        """Return a connection string."""
        key = base64.b64encode(b"k" * 32).decode()
        named = f"AccountName=acct;AccountKey={key};BlobEndpoint={self.url}/acct;"
        return {"connection_string": f"DefaultEndpointsProtocol=http;{named}"}

    def step(self, sent: Sent) -> str:
        """Name what a request does."""
        steps = {"block": "part", "blocklist": "complete" if sent.method == "PUT" else "parts", "list": "list"}
        return steps.get(sent.query.get("comp", ""), super().step(sent))

    def answered(self, sent: Sent) -> Answer:
        """Do what the request says."""
        blocks = self.uploads.setdefault(sent.name, {})
        if sent.step == "part":
            blocks[sent.query["blockid"]] = sent.body
            return Answer(201, {"Content-MD5": sent.headers.get("content-md5", "")})
        if sent.step == "list":
            prefix = f"{sent.name}/{sent.query.get('prefix', '')}"
            facts = "<Content-Length>1</Content-Length><BlobType>BlockBlob</BlobType>"
            blob = f"<Properties>{facts}</Properties></Blob>"
            rows = "".join(f"<Blob><Name>{n[9:]}</Name>{blob}" for n in sorted(self.objects) if n.startswith(prefix))
            return _xml(f"<EnumerationResults><Blobs>{rows}</Blobs><NextMarker/></EnumerationResults>")
        if sent.step == "parts":
            return error_of(self, 404, "BlobNotFound")
        if sent.method == "PUT":
            if self.is_refused(sent):
                return error_of(self, 409, "BlobAlreadyExists")
            ids = re.findall(rb"<Latest>([^<]+)</", sent.body) if sent.step == "complete" else []
            if any(each.decode() not in blocks for each in ids):
                return error_of(self, 400, "InvalidBlockList")
            data = b"".join(blocks[each.decode()] for each in ids) if sent.step == "complete" else sent.body
            about = {name: value for name, value in sent.headers.items() if name.startswith("x-ms-meta-")}
            times = {"Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT", "x-ms-blob-type": "BlockBlob"}
            self.objects[sent.name] = data, {"ETag": f'"0x{self.new_id()}"', **times, **about}
            self.uploads.pop(sent.name, None)
            return Answer(201, {"ETag": self.objects[sent.name][1]["ETag"], "Last-Modified": times["Last-Modified"]})
        if sent.name not in self.objects:
            return error_of(self, 404, "BlobNotFound")
        if sent.method == "DELETE":
            del self.objects[sent.name]
            return Answer(202, {})
        return self.read(sent, {})


class Web(Storage):
    """Takes PUT and DELETE, and checks conditions; shows no folders."""

    def uri(self, name: str) -> str:
        """URL of a file."""
        return f"{self.url}/bkt/{name}"

    def answered(self, sent: Sent) -> Answer:
        """Do what the request says."""
        if sent.method == "PUT":
            if self.is_refused(sent):
                return Answer(412, {})
            self.objects[sent.name] = sent.body, {"ETag": f'"{self.new_id()}"'}
            return Answer(201, {})
        if sent.name not in self.objects:
            return Answer(404, {})
        if sent.method == "DELETE":
            del self.objects[sent.name]
            return Answer(204, {})
        return self.read(sent, {"Accept-Ranges": "bytes"})


KINDS: dict[str, type[Storage]] = {"s3": S3, "gcs": Gcs, "azure": Azure, "web": Web}


def error_of(storage: Storage, status: int, code: str = "") -> Answer:
    """Make an error answer in the form of a storage."""
    if isinstance(storage, Gcs):
        document = {"error": {"code": status, "errors": [{"reason": code}]}}
        return Answer(status, {"Content-Type": "application/json"}, json.dumps(document).encode())
    more = {"x-ms-error-code": code} if isinstance(storage, Azure) and code else {}
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if code else b""
    return Answer(status, {"Content-Type": "application/xml", **more}, body)


@contextmanager
def writable(kind: str) -> Iterator[Storage]:
    """Start a server of one of `KINDS`."""
    storage = KINDS[kind]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True  # 40 ms less for each answer

        def do_any(self) -> None:
            place, _, query = self.path.partition("?")
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            named = dict(parse_qsl(query, keep_blank_values=True))
            name = place.lstrip("/") if kind == "gcs" else unquote(place).lstrip("/")
            sent = Sent("", self.command, name, named, headers, body)
            sent = sent._replace(step=storage.step(sent))
            with storage.lock:
                storage.log.append(sent)
                answer = storage.script(sent) or storage.answered(sent)
            send_status = self.send_response_only if "Date" in answer.headers else self.send_response
            send_status(answer.status)
            for key, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    storage.url = f"http://127.0.0.1:{server.server_port}"
    with served(server):
        yield storage
