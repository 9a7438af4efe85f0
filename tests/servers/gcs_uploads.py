"""Google's resumable uploads, which the emulator does not have: the gate holds the chunks, and writes the object whole.

https://cloud.google.com/storage/docs/performing-resumable-uploads
"""

from __future__ import annotations

import io
import json
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

__all__ = ["RefusedError", "ResumableUploads"]

CHUNK_BYTES = 256 << 10


class RefusedError(Exception):
    """An answer of Google's JSON API that is no success."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass
class Upload:
    """An upload that has begun."""

    name: str
    described: dict[str, Any]
    condition: str | None
    data: bytearray = field(default_factory=bytearray)
    result: dict[str, Any] | None = None


class ResumableUploads:
    """All uploads of one gate.

    Args:
        client: Asks the emulator.
        emulator_url: Where that is.

    Attributes:
        described: By bucket and name, what the emulator does not keep of an object.
    """

    def __init__(self, client: aiohttp.ClientSession, emulator_url: str) -> None:
        self._client, self._emulator_url = client, emulator_url
        self._uploads: dict[str, Upload] = {}
        self.described: dict[tuple[str, str], dict[str, Any]] = {}

    async def answer(self, request: web.Request, bucket: str) -> web.Response:
        """Answer a request of a caller with the right to write."""
        upload_id = request.query.get("upload_id")
        if upload_id is None:
            return await self._begun(request, bucket)
        upload = self._uploads[upload_id]
        if request.method == "DELETE":
            del self._uploads[upload_id]
            return web.Response(status=499)
        if request.headers["Content-Range"] == "bytes */0":  # the end of an empty object
            upload.result = upload.result or await self._completed(bucket, upload)
            return web.json_response(upload.result)
        span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", request.headers["Content-Range"])
        body, begin = await request.read(), int(span[1]) if span else -1
        if span is None or len(body) != int(span[2]) - begin + 1 or begin > len(upload.data):
            raise RefusedError(400, "badRequest", "Invalid request. The Content-Range is wrong.")
        upload.data[begin:] = body
        if span[3] == "*" or len(upload.data) < int(span[3]):
            if len(body) % CHUNK_BYTES:
                raise RefusedError(400, "badRequest", "Chunks are multiples of 256 KiB.")
            return web.Response(status=308, headers={"Range": f"bytes=0-{len(upload.data) - 1}"})
        if upload.result is None:
            await self._check_generation(bucket, upload)
            upload.result = await self._completed(bucket, upload)
        return web.json_response(upload.result)

    async def _begun(self, request: web.Request, bucket: str) -> web.Response:
        upload = Upload(request.query["name"], await request.json(), request.query.get("ifGenerationMatch"))
        await self._check_generation(bucket, upload)
        upload_id = secrets.token_urlsafe(20)
        self._uploads[upload_id] = upload
        # The URL names another host, which must get no credentials.
        place = f"http://elsewhere.test{request.path}?uploadType=resumable&upload_id={upload_id}"
        return web.Response(headers={"Location": place})

    async def _check_generation(self, bucket: str, upload: Upload) -> None:
        async with self._client.get(f"{self._emulator_url}/storage/v1/b/{bucket}/o") as answer:
            if answer.status == 404:
                raise RefusedError(404, "notFound", "The specified bucket does not exist.")
            listing = json.loads(await answer.read())
        there = next((item["generation"] for item in listing["items"] if item["name"] == upload.name), "0")
        if upload.condition not in (None, there):
            raise RefusedError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")

    async def _completed(self, bucket: str, upload: Upload) -> dict[str, Any]:
        url = f"{self._emulator_url}/upload/storage/v1/b/{bucket}/o"
        # In two parts, because an upload of the bytes alone makes the emulator fail where there are none.
        parts = aiohttp.MultipartWriter("related")
        parts.append(json.dumps({"name": upload.name}), {"Content-Type": "application/json"})
        parts.append(io.BytesIO(upload.data), {"Content-Type": "application/octet-stream"})
        async with self._client.post(url, params={"uploadType": "multipart"}, data=parts) as answer:
            result: dict[str, Any] = json.loads(await answer.read())
        self.described[bucket, upload.name] = upload.described
        return result
