"""Writes one blob to Azure, in blocks that become a blob in one request.

Guarantees: readers see either no new blob or the whole blob, after `AzureUpload.finish`. A blob that another writer
uploaded meanwhile is not overwritten. Azure checks the MD5 of each block. A new small blob is one request. The blocks
of a failed save take space, but no listing shows them. Azure removes them after a week, and has no request to remove
them earlier. Until then Azure refuses blocks with ids of another length, so our ids are as long as those of Azure's own
clients, and if another tool has left blocks, as long as theirs.
https://learn.microsoft.com/rest/api/storageservices/put-block-list
"""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Mapping
from hashlib import md5
from typing import Any

from streamer.backends.azure.answers import blob_of, blocks_of
from streamer.backends.azure.client import AzureClient
from streamer.backends.azure.errors import malformed_answer
from streamer.backends.client.exchange import Response
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from streamer.core.store.own_objects import FoundObject, ProvenUpload
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import MOST_PARALLEL_PARTS, changed_meanwhile

MOST_BYTES_AT_ONCE = 1 << 20  # of a blob that is sent in one request, in `finish`
USUAL_ID_BYTES = 48  # as in Azure's clients for Python and .NET
LEAST_ID_BYTES = 6  # for a letter and a number
OTHER_LENGTH, LOST_BLOCKS = "InvalidBlobOrBlock", "InvalidBlockList"  # codes of errors
MARK = "streamer_upload"  # a name of the blob's metadata, in which Azure allows no dash


class AzureUpload(ProvenUpload):
    """See `streamer.core.store.uploads.Upload`."""

    parallel_parts = MOST_PARALLEL_PARTS
    needs_equal_parts = True

    def __init__(
        self,
        client: AzureClient,
        path: str,
        uri: str,
        size_bytes: int,
        *,
        part_bytes: int,
        replaced: ObjectInfo | None,
        joins: Any = None,
    ) -> None:
        super().__init__(uri, replaced)
        self._client = client
        self._path = path
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        # What replaces a blob is sent in blocks, which can be looked at before they become the blob.
        self._is_small = joins is None and replaced is None and size_bytes <= MOST_BYTES_AT_ONCE
        self._body = b""  # of a small blob
        self._blocks: dict[int, tuple[str, int]] = {}  # id and size of each block that was sent
        self._id_bytes = USUAL_ID_BYTES
        self._earlier: dict[str, int] = dict(joins or ())  # sizes of the blocks that Azure has, by id

    def note_earlier_blocks(self) -> None:
        """List the blocks that Azure already has, so that `send` can skip its own; raises as `Upload.send`."""
        if not self._is_small:
            self._earlier = self._uncommitted()

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one block; raises as `Upload.send`."""
        self.note_sent(offset_bytes, part)
        if self._is_small:
            self._body = bytes(part)
            return
        number = offset_bytes // self._part_bytes
        digest = md5(part, usedforsecurity=False).hexdigest()
        block_id = _id_of(number, digest, self._id_bytes)
        if self._id_bytes != USUAL_ID_BYTES or self._earlier.get(block_id) != part.nbytes:
            data = bytes(part)
            try:
                self._stage(block_id, data)
            except StorageError as error:
                if error.code != OTHER_LENGTH:
                    raise
                block_id = self._stage_as_others(number, digest, data, error)
        with self._lock:
            self._blocks[number] = block_id, part.nbytes

    def share(self) -> Any:
        """Return the blocks that Azure had before; None if the blob is sent in one request."""
        return None if self._is_small else list(self._earlier.items())

    def sent(self) -> Any:
        """Return the ids and sizes of the blocks."""
        return self.sent_bytes, list(self._blocks.items())

    def add(self, sent: Any) -> None:
        """Add the blocks of another process."""
        self.sent_bytes = max(self.sent_bytes, sent[0])
        self._blocks |= {number: (block_id, size_bytes) for number, (block_id, size_bytes) in sent[1]}

    def _stage(self, block_id: str, data: bytes) -> None:
        self._ask("PUT", {"comp": "block", "blockid": block_id}, _checked(data), data)

    def _stage_as_others(self, number: int, digest: str, data: bytes, refused: StorageError) -> str:
        """Send a block with an id that is as long as those of another upload's blocks; return the id."""
        # Azure compares the length in base 64.
        for id_bytes in {len(each) // 4 * 3 for each in self._uncommitted()}:
            if id_bytes < LEAST_ID_BYTES:
                continue
            block_id = _id_of(number, digest, id_bytes)
            try:
                self._stage(block_id, data)
            except StorageError as error:
                if error.code != OTHER_LENGTH:
                    raise
            else:
                self._id_bytes = id_bytes
                return block_id
        refused.message = "Azure has uncommitted blocks of another upload to this name, and refuses blocks of this one"
        refused.hint = (
            "Upload any blob to this name in one request, and delete it: this removes them; or wait for a week, after "
            "which Azure removes them; or save elsewhere"
        )
        raise refused

    def _uncommitted(self) -> dict[str, int]:
        """Return the sizes of the blocks that are no part of a blob yet, by their ids; empty if we may not look."""
        try:
            answer = self._ask("GET", {"comp": "blocklist", "blocklisttype": "uncommitted"})
        except (AccessDeniedError, ObjectNotFoundError):  # no right to read, or no block at all
            return {}
        blocks = blocks_of(answer.body, self._uri)
        if blocks is None:
            raise malformed_answer(answer, self._uri)
        return blocks

    def _commit(self) -> str | None:
        """Make the blob; return its ETag."""
        try:
            marked = {f"x-ms-meta-{MARK}": self.mark, **self._condition()}
            if self._is_small:
                headers = {"x-ms-blob-type": "BlockBlob", **_checked(self._body), **marked}
                answer = self._ask("PUT", {}, headers, self._body)
            else:
                ids = "".join(f"<Latest>{block_id}</Latest>" for _, (block_id, _) in sorted(self._blocks.items()))
                body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{ids}</BlockList>'.encode()
                answer = self._ask("PUT", {"comp": "blocklist"}, {"Content-Type": "application/xml", **marked}, body)
        except StorageError as error:
            if error.status in (409, 412):
                raise changed_meanwhile(self._uri, self._replaced, status=error.status) from error.__cause__
            if error.code == LOST_BLOCKS:
                error.message = "Azure no longer has the blocks that were sent: any upload to this name removes them"
                error.hint = "Save again, when no other program saves to this name"
            raise
        return answer.headers.get("etag")

    def _check_parts(self) -> None:
        there = self._uncommitted()
        for block_id, size_bytes in self._blocks.values():
            found = there.get(block_id, size_bytes)
            if found != size_bytes:
                raise self._fault_of(f"the storage has {found} of the {size_bytes} bytes of a block of the blob")

    def _look(self) -> FoundObject | None:
        try:
            found = blob_of(self._ask("HEAD"), self._path, self._uri)
        except ObjectNotFoundError:
            return None
        digest = md5(self._body, usedforsecurity=False).digest()
        is_equal = found.md5 == digest if found.md5 and self._is_small else None
        return FoundObject(found.size, found.etag, found.metadata.get(MARK), is_equal)

    def _remove(self, found: FoundObject) -> None:
        try:
            self._ask("DELETE", headers={"If-Match": str(found.version)})
        except ObjectNotFoundError:
            return
        except StorageError as error:
            if error.status != 412:  # another program has replaced it
                raise

    def _discard(self) -> None:
        """Do nothing: Azure has no request that removes blocks."""

    def _condition(self) -> dict[str, str]:
        return {"If-None-Match": "*"} if self._replaced is None else {"If-Match": str(self._replaced.version)}

    def _ask(
        self, method: str, query: Mapping[str, str] = {}, headers: Mapping[str, str] = {}, body: bytes = b""
    ) -> Response:
        return self._client.ask(method, self._path, self._uri, query, headers=headers, body=body)


def _checked(data: bytes) -> dict[str, str]:
    return {"Content-MD5": b64encode(md5(data, usedforsecurity=False).digest()).decode()}


def _id_of(number: int, digest: str, id_bytes: int) -> str:
    """Return the id of a block: all ids of a blob must be equally long.

    The MD5 is in the usual id, because listings of blocks show nothing but ids and sizes. The first word tells our
    blocks from others.
    """
    usual = f"streamer-{number:06d}-{digest}"
    named = usual if id_bytes == USUAL_ID_BYTES else f"s{number:04x}{digest:_<64}"[:id_bytes]
    return b64encode(named.encode()).decode()
