"""What gcp-storage-emulator lacks of Google Cloud Storage, put in front of it: identities, generations, billing, pages.

The gate is ours, so it proves that client and gate agree; each rule is written after Google's documentation of the
JSON API (https://cloud.google.com/storage/docs/json_api). It speaks HTTP/1.1 and keeps connections alive.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import aiohttp
import google.auth.jwt
from aiohttp import web
from yarl import URL

from servers.gcs_uploads import RefusedError, ResumableUploads

RIGHTS = {"owner": {"get", "list", "create"}, "reader": {"get"}, "stranger": set()}
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
AUDIENCE = "https://oauth2.googleapis.com/token"  # google-auth signs for this one, whatever the token_uri
PROJECTS = ("paying-project",)  # that may be billed

_OBJECTS = re.compile(r"/(?P<download>download/)?storage/v1/b/(?P<bucket>[^/]+)/o(?:/(?P<key>[^/]+))?")


@dataclass
class Token:
    """An access token: whose it is, until when, and how many more requests it serves."""

    identity: str
    expires_at_s: float
    uses: float


@dataclass(frozen=True)
class Seen:
    """A request, as the gate saw it."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def is_media(self) -> bool:
        return self.path.startswith("/download/")


Interference = Callable[[Seen], "web.Response | None"]


class Gate:
    """The server; runs in a thread with a loop of its own.

    Args:
        emulator_url: Where gcp-storage-emulator listens.
        public_buckets: Anyone may read and list these.
        paying_buckets: Requester-pays buckets.
    """

    def __init__(self, emulator_url: str, public_buckets: Sequence[str], paying_buckets: Sequence[str]) -> None:
        self.tokens: dict[str, Token] = {}
        self.certificates: dict[str, tuple[str, bytes]] = {}  # e-mail of a service account: identity, public key
        self.requests: list[Seen] = []
        self.interfere: Interference | None = None
        self.page_size = 1000
        self.issued_lifetime_s: float = 3600
        self.issued_uses: float = float("inf")
        self._emulator_url, self._public, self._paying = emulator_url, public_buckets, paying_buckets
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gcs-gate", daemon=True)

    def start(self) -> int:
        """Begin to serve on a free port of the loopback, and give the port."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        """End every connection and the thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def issue(self, identity: str, lifetime_s: float = 3600, uses: float = float("inf")) -> str:
        """Make an access token."""
        token = "ya29." + secrets.token_urlsafe(24)
        self.tokens[token] = Token(identity, time.time() + lifetime_s, uses)
        return token

    async def _start(self) -> int:
        self._client = aiohttp.ClientSession(auto_decompress=False)
        self._resumable = ResumableUploads(self._client, self._emulator_url)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/token", self._exchange)
        for method in ("POST", "PUT", "DELETE"):
            app.router.add_route(method, "/upload/{rest:.*}", self._answer_upload)
        app.router.add_delete("/{rest:.*}", self._answer)
        app.router.add_get("/{rest:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=512)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._client.close()

    # --- what Google's token server does ------------------------------------------------------------------------

    async def _exchange(self, request: web.Request) -> web.Response:
        """RFC 7523: a signed assertion for an access token."""
        self.requests.append(Seen("/token", {}, {}))
        form = await request.post()
        try:
            issuer = google.auth.jwt.decode(str(form["assertion"]), verify=False)["iss"]
            identity, public_key = self.certificates[issuer]
            google.auth.jwt.decode(str(form["assertion"]), certs=public_key, audience=AUDIENCE)
            if form["grant_type"] != GRANT_TYPE:
                raise ValueError
        except (KeyError, ValueError, google.auth.exceptions.GoogleAuthError):
            reported = {"error": "invalid_grant", "error_description": "SERVERTEXT: Invalid JWT Signature."}
            return web.json_response(reported, status=400)
        token = self.issue(identity, self.issued_lifetime_s, self.issued_uses)
        reported = {"access_token": token, "expires_in": int(self.issued_lifetime_s), "token_type": "Bearer"}
        return web.json_response(reported)

    # --- what Google's storage does -----------------------------------------------------------------------------

    async def _answer_upload(self, request: web.Request) -> web.Response:
        path = request.raw_path.partition("?")[0]
        seen = Seen(path, dict(request.query), dict(request.headers))
        self.requests.append(seen)
        try:
            if (answer := self.interfere(seen) if self.interfere else None) is not None:
                return answer
            self._check_rights(path.split("/")[5], self._identity(seen), "create")
            if request.query.get("uploadType") == "resumable":
                return await self._resumable.answer(request, path.split("/")[5])
        except RefusedError as refused:
            detail = {"domain": "global", "reason": refused.reason, "message": "SERVERTEXT"}
            body = {"error": {"code": refused.status, "message": "SERVERTEXT", "errors": [detail]}}
            return web.json_response(body, status=refused.status)
        kind = {"Content-Type": request.headers.get("Content-Type", "application/octet-stream")}
        url = self._emulator_url + request.raw_path
        async with self._client.post(URL(url, encoded=True), data=await request.read(), headers=kind) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        seen = Seen(path, dict(request.query), dict(request.headers))
        self.requests.append(seen)
        id_header = {"X-GUploader-UploadID": f"gate-{len(self.requests)}"}
        try:
            answer = self.interfere(seen) if self.interfere else None
            if answer is None:  # before aiohttp 3.10, an empty answer was false
                answer = await (self._removal(seen) if request.method == "DELETE" else self._rightful_answer(seen))
        except RefusedError as refused:
            text = f"SERVERTEXT: {refused}"
            detail = {"domain": "global", "reason": refused.reason, "message": text}
            body = {"error": {"code": refused.status, "message": text, "errors": [detail]}}
            answer = web.json_response(body, status=refused.status)
        answer.headers.update(id_header)
        return answer

    async def _rightful_answer(self, seen: Seen) -> web.Response:
        match = _OBJECTS.fullmatch(seen.path)
        if match is None:
            raise RefusedError(404, "notFound", "Not Found")
        bucket, key = match["bucket"], match["key"]
        identity = self._identity(seen)
        listing = await self._fetch_json(f"/storage/v1/b/{bucket}/o", {} if key else seen.query)
        if listing is None:
            raise RefusedError(404, "notFound", "The specified bucket does not exist.")
        self._check_rights(bucket, identity, "get" if key else "list")
        self._check_billing(bucket, seen)
        if key is None:
            return self._page(listing, seen.query)
        metadata = next((item for item in listing["items"] if item["name"] == unquote(key)), None)
        wanted = seen.query.get("generation")
        if metadata is None or (wanted and wanted != metadata["generation"]):
            raise RefusedError(404, "notFound", f"No such object: {bucket}/{unquote(key)}")
        if seen.query.get("ifGenerationMatch", metadata["generation"]) != metadata["generation"]:
            raise RefusedError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        if match["download"]:
            return await self._media(seen, metadata)
        return web.json_response({**metadata, **self._resumable.described.get((bucket, unquote(key)), {})})

    async def _removal(self, seen: Seen) -> web.Response:
        match = _OBJECTS.fullmatch(seen.path)
        assert match is not None
        self._check_rights(match["bucket"], self._identity(seen), "create")
        self._resumable.described.pop((match["bucket"], unquote(match["key"])), None)
        async with self._client.delete(URL(self._emulator_url + seen.path, encoded=True)) as answer:
            return web.Response(status=answer.status)

    def _identity(self, seen: Seen) -> str | None:
        header = seen.headers.get("Authorization")
        if header is None:
            return None
        token = self.tokens.get(header.removeprefix("Bearer "))
        if token is None or token.expires_at_s <= time.time() or token.uses <= 0:
            raise RefusedError(401, "authError", "Invalid Credentials")
        token.uses -= 1
        return token.identity

    def _check_rights(self, bucket: str, identity: str | None, right: str) -> None:
        if bucket in self._public:
            return
        if identity is None:
            raise RefusedError(401, "required", f"Anonymous caller does not have storage.objects.{right} access")
        if right not in RIGHTS[identity]:
            raise RefusedError(403, "forbidden", f"{identity} does not have storage.objects.{right} access")

    def _check_billing(self, bucket: str, seen: Seen) -> None:
        project = seen.query.get("userProject") or seen.headers.get("X-Goog-User-Project")
        if project is None and bucket in self._paying:
            raise RefusedError(400, "required", "Bucket is a requester pays bucket but no user project provided.")
        if project is not None and project not in PROJECTS:
            raise RefusedError(400, "invalid", "User project specified in the request is invalid.")

    def _page(self, listing: dict[str, Any], query: Mapping[str, str]) -> web.Response:
        """Cut a page out of what the emulator lists whole."""
        begin = int(query.get("pageToken", "0"))
        end = begin + min(self.page_size, int(query.get("maxResults", "1000")))
        page = {"kind": listing["kind"], "prefixes": listing["prefixes"], "items": listing["items"][begin:end]}
        if not page["items"]:
            del page["items"]  # Google leaves out what is empty
        return web.json_response(page | ({"nextPageToken": str(end)} if end < len(listing["items"]) else {}))

    async def _media(self, seen: Seen, metadata: Mapping[str, Any]) -> web.Response:
        size, generation = int(metadata["size"]), metadata["generation"]
        headers = {"x-goog-generation": generation, "Accept-Ranges": "bytes", "ETag": f'"{generation}"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", seen.headers.get("Range", ""))
        if asked and int(asked[1]) >= size:
            raise RefusedError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        range_header = {"Range": seen.headers["Range"]} if asked else {}
        async with self._client.get(URL(self._emulator_url + seen.path, encoded=True), headers=range_header) as answer:
            body = await answer.read()
        if asked:
            begin = int(asked[1])
            headers["Content-Range"] = f"bytes {begin}-{begin + len(body) - 1}/{size}"
        return web.Response(status=206 if asked else 200, body=body, headers=headers)

    async def _fetch_json(self, path: str, query: Mapping[str, str]) -> dict[str, Any] | None:
        passed_on = {name: value for name, value in query.items() if name in ("prefix", "delimiter")}
        async with self._client.get(self._emulator_url + path, params=passed_on) as answer:
            return None if answer.status == 404 else json.loads(await answer.read())
