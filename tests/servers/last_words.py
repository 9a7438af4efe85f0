"""Storages on loopback that do something else with the last request of an upload than they answer.

`LastWords` speaks as much of the protocols of S3, Google Cloud Storage, Azure and a web server as a save and a load
need. A `Word` says for the last request of the next object whose name contains a text: what becomes of the object, and
what is answered.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import google_crc32c

from servers.background import served
from servers.last_word_answers import Answering, Stored, Upload, Word

__all__ = ["KINDS", "LastWords", "Stored", "Word"]

KINDS = ("s3", "gs", "az", "http")
OTHERS_MARK = "0" * 32


class LastWords:
    """A context manager around the server."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.blocks: dict[str, dict[str, bytes]] = {}
        self.word: Word | None = None
        self.cut = ""  # parts of objects with this in their name arrive as halves
        self.before_last: tuple[str, Callable[[], None]] | None = None  # called before the last request of such a name
        # Text of a name, a status or a body (as `Word.answer`), and how often it is the answer to a look.
        self.odd_looks: tuple[str, str | int, int] | None = None
        self._ids = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._served = served(self._server)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LastWords:
        self._served.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._served.__exit__(None, None, None)

    def place(self, kind: str, name: str) -> tuple[str, dict[str, Any]]:
        """Return a URL and the options for it."""
        if kind == "s3":
            region = {"region_name": "us-east-1"}
            return f"s3://box/{name}", {"key": "k", "secret": "s", "endpoint_url": self.url, "client_kwargs": region}
        if kind == "gs":
            return f"gs://box/{name}", {"endpoint_url": self.url, "token": "anon"}
        if kind == "az":
            key = base64.b64encode(b"k" * 32).decode()
            text = f"DefaultEndpointsProtocol=http;AccountName=acct;AccountKey={key};BlobEndpoint={self.url}/acct;"
            return f"az://box/{name}", {"connection_string": text}
        return f"{self.url}/box/{name}/", {}

    def store(self, name: str, data: bytes, metadata: dict[str, str]) -> tuple[Stored, Word | None]:
        """Store an object, or what the word says; return what a usual answer is about."""
        if self.before_last is not None and self.before_last[0] in name:
            act, self.before_last = self.before_last[1], None
            act()
        word, self.word = (self.word, None) if self.word and self.word.name in name else (None, self.word)
        what, before = word.stored if word else "all", self.objects.get(name)
        stored = Stored(data, metadata, str(1000 + next(self._ids)))
        if what == "half":
            stored.data = data[: len(data) // 2]
        elif what == "another":
            stored.data, stored.metadata = data + b"!", dict.fromkeys(metadata, OTHERS_MARK)
        elif what == "unmarked":
            stored.metadata = {}
        elif what == "late":
            stored.hidden_looks, stored.before = 3, before
        if what != "nothing":
            self.objects[name] = stored
        return stored, word

    def part(self, name: str, data: bytes) -> bytes:
        """Return what arrives of a part."""
        return data[: len(data) // 2] if self.cut and self.cut in name else data

    def seen(self, name: str) -> Stored | None:
        """Return the object that a look sees."""
        stored = self.objects.get(name)
        if stored is not None and stored.hidden_looks > 0:
            stored.hidden_looks -= 1
            return stored.before
        return stored

    def _handler(self) -> type[Answering]:
        return type("Handler", (_Handler,), {"words": self})


class _Handler(Answering):
    def answer(self) -> None:
        """Answer as the storage whose request this is."""
        name, status, left = self.words.odd_looks or ("", 0, 0)
        is_look = self.command in ("GET", "HEAD") and not {"comp", "uploadId"} & self.query.keys()
        if left and is_look and name in self.name:
            self.words.odd_looks = name, status, left - 1
            self._odd(status)
        elif self.name.startswith(("storage/v1", "upload/storage", "download/storage")):
            self._google()
        elif self.name.startswith("acct/"):
            self.name = self.name.removeprefix("acct/")
            self._azure()
        elif "Authorization" in self.headers or "X-Amz-Signature" in self.query:
            self._amazon()
        else:
            self._web()

    def _amazon(self) -> None:
        words = self.words
        if "uploads" in self.query or "uploadId" in self.query or self.command == "PUT":
            return self._amazon_upload()
        if self.command == "DELETE":
            words.objects.pop(self.name, None)
            return self._reply(204)
        if "list-type" in self.query:
            row = "<Contents><Key>{}</Key><Size>{}</Size><ETag>&quot;{}&quot;</ETag></Contents>"
            found = self._below(f"{self.name.strip('/')}/{self.query.get('prefix', '')}")
            rows = "".join(row.format(name.partition("/")[2], len(each.data), each.version) for name, each in found)
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            return self._reply(200, text.encode(), Content_Type="application/xml")
        seen = words.seen(self.name)
        if seen is None:
            return self._reply(404)
        marks = {f"x_amz_meta_{name.replace('-', '_')}": value for name, value in seen.metadata.items()}
        return self._data(seen, ETag=f'"{seen.version}"', **marks)

    def _amazon_upload(self) -> None:
        words = self.words
        metadata = {name[11:].lower(): value for name, value in self.headers.items() if name.startswith("x-amz-meta-")}
        upload = words.uploads.get(self.query.get("uploadId", ""))
        if "uploadId" in self.query and upload is None:
            return self._reply(404, b"<Error><Code>NoSuchUpload</Code></Error>", Content_Type="application/xml")
        if self.command == "POST" and "uploads" in self.query:
            number = f"U{next(words._ids)}"
            words.uploads[number] = Upload(self.name, metadata, None)
            text = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            return self._reply(200, text.encode(), Content_Type="application/xml")
        if "uploads" in self.query:
            row = "<Upload><Key>{}</Key><UploadId>{}</UploadId><Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload>"
            rows = "".join(row.format(each.name.partition("/")[2], number) for number, each in words.uploads.items())
            text = f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{rows}</ListMultipartUploadsResult>"
            return self._reply(200, text.encode(), Content_Type="application/xml")
        if upload is not None and self.command == "PUT":
            part = words.part(self.name, self.body)
            upload.parts[int(self.query["partNumber"])] = part
            return self._reply(200, ETag=f'"{hashlib.md5(part).hexdigest()}"')
        if upload is not None and self.command == "GET":
            row = "<Part><PartNumber>{}</PartNumber><Size>{}</Size><ETag>&quot;{}&quot;</ETag></Part>"
            parts = sorted(upload.parts.items())
            rows = "".join(row.format(number, len(part), hashlib.md5(part).hexdigest()) for number, part in parts)
            text = f"<ListPartsResult><IsTruncated>false</IsTruncated>{rows}</ListPartsResult>"
            return self._reply(200, text.encode(), Content_Type="application/xml")
        if upload is not None and self.command == "DELETE":
            del words.uploads[self.query["uploadId"]]
            return self._reply(204)
        return self._amazon_end(upload, metadata)

    def _amazon_end(self, upload: Upload | None, metadata: dict[str, str]) -> None:
        words = self.words
        if self._is_refused():
            return self._reply(412, b"<Error><Code>PreconditionFailed</Code></Error>", Content_Type="application/xml")
        data = self.body
        if upload is not None:
            numbers = [int(each) for each in re.findall(rb"<PartNumber>(\d+)<", self.body)]
            data = b"".join(upload.parts[each] for each in numbers)
            del words.uploads[self.query["uploadId"]]
        stored, word = words.store(self.name, data, upload.metadata if upload else metadata)
        etag = f'"{stored.version}"' if word is None or word.has_version else ""
        text = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        return self._finish(word, 200, text.encode() if upload else b"", **({"ETag": etag} if etag else {}))

    def _google(self) -> None:
        words, parts = self.words, self.name.split("/")
        at = parts.index("b")
        bucket, self.name = parts[at + 1], "/".join((parts[at + 1], *parts[at + 3 :]))
        if parts[0] == "upload":
            return self._google_upload(bucket)
        if len(parts) == at + 3:
            items = [_document(name, each) for name, each in self._below(f"{bucket}/{self.query.get('prefix', '')}")]
            return self._reply(200, json.dumps({"items": items}).encode(), Content_Type="application/json")
        if self.command == "DELETE":
            words.objects.pop(self.name, None)
            return self._reply(204)
        seen = words.seen(self.name)
        if seen is None:
            return self._reply(404, b'{"error": {"code": 404}}', Content_Type="application/json")
        if self.query.get("alt") == "media":
            return self._data(seen, x_goog_generation=seen.version)
        document = json.dumps(_document(self.name, seen)).encode()
        return self._reply(200, document, Content_Type="application/json")

    def _google_upload(self, bucket: str) -> None:
        words, upload = self.words, self.words.uploads.get(self.query.get("upload_id", ""))
        if "upload_id" in self.query and upload is None:
            return self._reply(499 if self.command == "DELETE" else 410)
        if upload is None:
            number, described = f"G{next(words._ids)}", json.loads(self.body)
            condition = self.query.get("ifGenerationMatch")
            words.uploads[number] = Upload(f"{bucket}/{self.query['name']}", described["metadata"], condition, {0: b""})
            return self._reply(200, Location=f"{words.url}/upload?upload_id={number}")
        if self.command == "DELETE":
            del words.uploads[self.query["upload_id"]]
            return self._reply(499)
        upload.parts[0] += self.body
        if not self.headers["Content-Range"].endswith(f"/{len(upload.parts[0])}"):
            return self._reply(308, Range=f"bytes=0-{len(upload.parts[0]) - 1}")
        there = words.objects.get(upload.name)
        if upload.condition not in (None, there.version if there else "0"):
            return self._reply(412)
        del words.uploads[self.query["upload_id"]]
        stored, word = words.store(upload.name, upload.parts[0], upload.metadata)
        document = {"kind": "storage#object", "generation": stored.version}
        return self._finish(word, 200, json.dumps(document if word is None or word.has_version else {}).encode())

    def _azure(self) -> None:
        words, comp = self.words, self.query.get("comp")
        blocks = words.blocks.setdefault(self.name, {})
        metadata = {name[10:].lower(): value for name, value in self.headers.items() if name.startswith("x-ms-meta-")}
        if self.query.get("restype") == "container":
            return self._azure_listing()
        if self.command == "PUT" and comp == "block":
            if any(len(each) != len(self.query["blockid"]) for each in blocks):
                return self._reply(400, x_ms_error_code="InvalidBlobOrBlock")
            blocks[self.query["blockid"]] = words.part(self.name, self.body)
            return self._reply(201)
        if comp == "blocklist" and self.command == "GET":
            row = "<Block><Name>{}</Name><Size>{}</Size></Block>"
            rows = "".join(row.format(name, len(data)) for name, data in blocks.items())
            text = f"<BlockList><UncommittedBlocks>{rows}</UncommittedBlocks></BlockList>"
            return self._reply(200, text.encode(), Content_Type="application/xml")
        if self.command == "PUT":
            if self._is_refused():
                return self._reply(409 if "If-None-Match" in self.headers else 412)
            ids = re.findall(r"<(?:Latest|Uncommitted)>([^<]+)</", self.body.decode()) if comp else []
            data = b"".join(blocks[each] for each in ids) if comp else self.body
            words.blocks.pop(self.name)  # Azure removes all of them
            stored, word = words.store(self.name, data, metadata)
            etag = {"ETag": f'"{stored.version}"'} if word is None or word.has_version else {}
            return self._finish(word, 201, **etag)
        if self.command == "DELETE":
            words.objects.pop(self.name, None)
            return self._reply(202)
        seen = words.seen(self.name)
        if seen is None:
            return self._reply(404, x_ms_error_code="BlobNotFound")
        date = "Fri, 02 Jan 2026 03:04:05 GMT"
        marks = {f"x-ms-meta-{name.replace('_', '~')}": value for name, value in seen.metadata.items()}
        return self._data(seen, ETag=f'"{seen.version}"', x_ms_blob_type="BlockBlob", Last_Modified=date, **marks)

    def _azure_listing(self) -> None:
        row = (
            "<Blob><Name>{}</Name><Properties><Etag>{}</Etag><Content-Length>{}</Content-Length>"
            "<BlobType>BlockBlob</BlobType></Properties></Blob>"
        )
        found = self._below(f"{self.name}/{self.query.get('prefix', '')}")
        rows = "".join(row.format(name.partition("/")[2], each.version, len(each.data)) for name, each in found)
        text = f"<EnumerationResults><Blobs>{rows}</Blobs><NextMarker /></EnumerationResults>"
        self._reply(200, text.encode(), Content_Type="application/xml")

    def _web(self) -> None:
        words = self.words
        if self.command == "PUT":
            if self._is_refused():
                return self._reply(412)
            _, word = words.store(self.name, self.body, {})
            return self._finish(word, 201)
        if self.command == "DELETE":
            return self._reply(204 if words.objects.pop(self.name, None) else 404)
        if self.name.endswith("/"):
            names = [name[len(self.name) :] for name, _ in self._below(self.name)]
            links = "".join(f'<a href="{quote(each)}">{each}</a>\n' for each in names)
            return self._reply(200, f"<html><body>{links}</body></html>".encode(), Content_Type="text/html")
        seen = words.seen(self.name)
        return self._reply(404) if seen is None else self._data(seen, ETag=f'"{seen.version}"', Accept_Ranges="bytes")


def _document(name: str, stored: Stored) -> dict[str, Any]:
    crc32c = base64.b64encode(google_crc32c.value(stored.data).to_bytes(4, "big")).decode()
    return {
        "name": name.partition("/")[2],
        "size": str(len(stored.data)),
        "generation": stored.version,
        "crc32c": crc32c,
        "metadata": stored.metadata,
    }
