"""A stand-in for S3 Express: sessions for one bucket, signatures that only they make, and listings in no order."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from email.utils import formatdate
from http.server import ThreadingHTTPServer
from typing import Any
from xml.sax.saxutils import escape

from registry_server import POLL_S, Handler

KEY, SECRET = "AKIAOFTHETESTS", "secret-key-of-the-tests-of-express"
READER = "AKIAOFTHEREADER"
REGION = "us-west-2"
BUCKET = "weights--usw2-az1--x-s3"


class ExpressServer:
    """A context manager; objects are by key. A `script` that returns True has answered the request."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str, dict[str, str]]] = {}  # data, ETag, metadata
        self.uploads: dict[str, tuple[str, dict[str, str], dict[int, tuple[bytes, str]]]] = {}
        self.sessions: dict[str, tuple[str, str, str]] = {}  # token to key, secret and mode
        self.lifetime_s = 300.0
        self.clock_s = 0.0  # how far its clock is ahead
        self.script: Callable[[Handler], Any] = lambda handler: None
        self.seen: list[tuple[str, str]] = []
        self.lock = threading.RLock()
        self.page_entries = 2
        clock = staticmethod(lambda: formatdate(time.time() + self.clock_s, usegmt=True))
        kind = type("_", (Handler,), {"answer": staticmethod(self._answer), "date_time_string": clock})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ExpressServer:
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def options(self, key: str = KEY, secret: str = SECRET) -> dict[str, Any]:
        client = {"region_name": REGION}
        return {"key": key, "secret": secret, "endpoint_url": self.url, "client_kwargs": client}

    def put(self, key: str, data: bytes, metadata: dict[str, str] | None = None) -> str:
        etag = f'"{os.urandom(16).hex()}"'  # of no MD5
        self.objects[key] = data, etag, metadata or {}
        return etag

    def _answer(self, handler: Handler) -> None:
        with self.lock:
            self.seen.append((handler.command, handler.path))
            bucket, _, key = handler.place[1:].partition("/")
            if self.script(handler):
                return None
            if bucket != BUCKET:
                return refuse(handler, 404, "NoSuchBucket")
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(handler.path).query, keep_blank_values=True))
            handler.query = query
            if "session" in query and not key:
                return self._answer_session(handler)
            if (code := self._fault_of(handler)) is not None:
                return refuse(handler, 400 if code == "ExpiredToken" else 403, code)
            return self._answer_signed(handler, key, query)

    def _answer_session(self, handler: Handler) -> None:
        signed = re.match(r"AWS4-HMAC-SHA256 Credential=([^/]+)/", handler.headers.get("Authorization", ""))
        key, mode = signed[1] if signed else "", handler.headers.get("x-amz-create-session-mode", "ReadWrite")
        if signature_of(handler, SECRET) is None or key not in (KEY, READER):
            return refuse(handler, 403, "SignatureDoesNotMatch")
        if key == READER and mode != "ReadOnly":
            return refuse(handler, 403, "AccessDenied")
        token, made = (
            f"session-{len(self.sessions)}-of-the-tests+/=",
            (f"KEY{len(self.sessions)}", os.urandom(12).hex(), mode),
        )
        self.sessions[token] = made
        ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.clock_s + self.lifetime_s))
        fields = {"SessionToken": token, "SecretAccessKey": made[1], "AccessKeyId": made[0], "Expiration": ends}
        text = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
        return handler.send(
            200, f"<CreateSessionResult><Credentials>{text}</Credentials></CreateSessionResult>".encode()
        )

    def _fault_of(self, handler: Handler) -> str | None:
        """Return the code of the error for a request that no session has signed."""
        token = handler.headers.get("x-amz-s3session-token") or handler.query.get("X-Amz-S3session-Token")
        if token is None:
            return "InvalidToken" if "Authorization" in handler.headers else "AccessDenied"
        if token not in self.sessions:
            return "ExpiredToken"
        key, secret, mode = self.sessions[token]
        if signature_of(handler, secret) != key:
            return "SignatureDoesNotMatch"
        is_read = handler.command in ("GET", "HEAD")
        return None if is_read or mode == "ReadWrite" else "AccessDenied"

    def _answer_signed(self, handler: Handler, key: str, query: dict[str, str]) -> None:
        if not key:
            return self._list(handler, query)
        if "uploads" in query or "uploadId" in query:
            return self._answer_upload(handler, key, query)
        found = self.objects.get(key)
        if handler.command == "PUT":
            return self._put(handler, key, handler.body, metadata_in(handler))
        if handler.command == "DELETE":
            self.objects.pop(key, None)
            return handler.send(204)
        if found is None:
            return refuse(handler, 404, "NoSuchKey")
        data, etag, metadata = found
        if handler.headers.get("If-Match", etag) != etag:
            return refuse(handler, 412, "PreconditionFailed")
        headers = {"ETag": etag, **{f"x-amz-meta-{name}": value for name, value in metadata.items()}}
        return handler.send_range(data, **headers)

    def _put(self, handler: Handler, key: str, data: bytes, metadata: dict[str, str], text: str = "") -> None:
        etag = self.objects[key][1] if key in self.objects else None
        if handler.headers.get("If-None-Match") == "*" and etag:
            return refuse(handler, 412, "PreconditionFailed")
        if handler.headers.get("If-Match", etag) != etag:
            return refuse(handler, 412, "PreconditionFailed")
        etag = self.put(key, data, metadata)
        return handler.send(200, text.format(etag=escape(etag)).encode(), ETag=etag)

    def _answer_upload(self, handler: Handler, key: str, query: dict[str, str]) -> None:
        if "uploads" in query and handler.command == "POST":
            upload = f"upload-{len(self.uploads)}"
            self.uploads[upload] = key, metadata_in(handler), {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return handler.send(200, text.encode())
        if "uploads" in query:  # uploads are listed by folder alone
            return refuse(handler, 400, "InvalidRequest")
        if query["uploadId"] not in self.uploads:
            return refuse(handler, 404, "NoSuchUpload")
        _, metadata, parts = self.uploads[query["uploadId"]]
        if handler.command == "PUT":
            etag = f'"{os.urandom(16).hex()}"'
            parts[int(query["partNumber"])] = handler.body, etag
            checksum = handler.headers.get("x-amz-checksum-crc32c", "")
            return handler.send(200, ETag=etag, **({"x-amz-checksum-crc32c": checksum} if checksum else {}))
        if handler.command == "DELETE":
            del self.uploads[query["uploadId"]]
            return handler.send(204)
        if handler.command == "GET":
            each = "".join(
                f"<Part><PartNumber>{n}</PartNumber><Size>{len(d)}</Size></Part>" for n, (d, _) in parts.items()
            )
            return handler.send(
                200, f"<ListPartsResult><IsTruncated>false</IsTruncated>{each}</ListPartsResult>".encode()
            )
        numbers = [int(each) for each in re.findall(r"<PartNumber>(\d+)<", handler.body.decode())]
        if numbers != list(range(1, len(numbers) + 1)):  # they must be consecutive
            return refuse(handler, 400, "InvalidPartOrder")
        text = "<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        self._put(handler, key, b"".join(parts[each][0] for each in numbers), metadata, text)
        return self.uploads.pop(query["uploadId"], None) and None

    def _list(self, handler: Handler, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        if prefix and not prefix.endswith("/"):
            return refuse(handler, 400, "InvalidRequest")
        entries: dict[str, str] = {}
        for key, (data, etag, _) in self.objects.items():
            rest = key[len(prefix) :]
            if key.startswith(prefix):
                name = urllib.parse.quote(prefix + rest.partition("/")[0], safe="/")
                of_object = f"<Contents><Key>{name}</Key><Size>{len(data)}</Size><ETag>{escape(etag)}</ETag></Contents>"
                of_folder = f"<CommonPrefixes><Prefix>{name}/</Prefix></CommonPrefixes>"
                entries[name] = of_folder if "/" in rest else of_object
        unordered = sorted(entries, key=lambda name: hashlib.md5(name.encode()).hexdigest())
        begin = int(query.get("continuation-token", 0))
        page = unordered[begin : begin + self.page_entries]
        has_more = begin + len(page) < len(unordered)
        text = "".join(entries[name] for name in page)
        text += f"<NextContinuationToken>{begin + len(page)}</NextContinuationToken>" if has_more else ""
        text += f"<IsTruncated>{str(has_more).lower()}</IsTruncated><EncodingType>url</EncodingType>"
        return handler.send(
            200, f"<ListBucketResult>{text}</ListBucketResult>".encode(), Content_Type="application/xml"
        )


def metadata_in(handler: Handler) -> dict[str, str]:
    names = ((name.lower(), value) for name, value in handler.headers.items())
    return {name.removeprefix("x-amz-meta-"): value for name, value in names if name.startswith("x-amz-meta-")}


def refuse(handler: Handler, status: int, code: str) -> None:
    text = f"<Error><Code>{code}</Code><Message>refused</Message></Error>"
    handler.send(status, text.encode(), Content_Type="application/xml")


def signature_of(handler: Handler, secret: str) -> str | None:
    """Return the key of a request's signature of Version 4 for s3express; None if it is not of this secret."""
    url = urllib.parse.urlsplit(handler.path)
    pairs = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    if shown := handler.headers.get("Authorization"):
        fields = dict(re.findall(r"(Credential|SignedHeaders|Signature)=([^,\s]+)", shown))
        stamp, payload = handler.headers["X-Amz-Date"], handler.headers["X-Amz-Content-SHA256"]
    else:
        fields = {name: pairs.get(f"X-Amz-{name}", "") for name in ("Credential", "SignedHeaders", "Signature")}
        stamp, payload = pairs.get("X-Amz-Date", ""), "UNSIGNED-PAYLOAD"
    key, _, scope = fields["Credential"].partition("/")
    if scope != f"{stamp[:8]}/{REGION}/s3express/aws4_request":
        return None
    query = "&".join(
        sorted(
            f"{urllib.parse.quote(name, safe='-_.~')}={urllib.parse.quote(value, safe='-_.~')}"
            for name, value in pairs.items()
            if name != "X-Amz-Signature"
        )
    )
    names = fields["SignedHeaders"].split(";")
    headers = "".join(f"{name}:{' '.join(handler.headers[name].split())}\n" for name in names)
    request = "\n".join((handler.command, url.path, query, headers, ";".join(names), payload))
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    made = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        made = hmac.digest(made, part.encode(), "sha256")
    return key if hmac.compare_digest(made.hex(), fields["Signature"]) else None
