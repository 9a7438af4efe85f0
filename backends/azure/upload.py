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
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import md5
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock, BlobClient, BlobServiceClient

from streamer.backends.azure.client import AzureClient
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from streamer.core.store.own_objects import FoundObject, ProvenUpload
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import changed_meanwhile

PARALLEL_PARTS = 16
MOST_BYTES_AT_ONCE = 1 << 20  # of a blob that is sent in one request, in `finish`
USUAL_ID_BYTES = 48  # as in Azure's clients for Python and .NET
LEAST_ID_BYTES = 6  # for a letter and a number
OTHER_LENGTH, LOST_BLOCKS = "InvalidBlobOrBlock", "InvalidBlockList"  # codes of errors
MARK = "streamer_upload"  # a name of the blob's metadata, in which Azure allows no dash

_Answer = TypeVar("_Answer")


class AzureUpload(ProvenUpload):
    """See `streamer.core.store.uploads.Upload`."""

    parallel_parts = PARALLEL_PARTS
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
    ) -> None:
        super().__init__(uri, replaced)
        self._client = client
        self._container, _, self._name = path.partition("/")
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        # What replaces a blob is sent in blocks, which can be looked at before they become the blob.
        self._is_small = replaced is None and size_bytes <= MOST_BYTES_AT_ONCE
        self._body = b""  # of a small blob
        self._blocks: dict[int, tuple[str, int]] = {}  # id and size of each block that was sent
        self._id_bytes = USUAL_ID_BYTES
        self._earlier: dict[str, int] = {}  # sizes of the blocks that Azure has, by id

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

    def _stage(self, block_id: str, data: bytes) -> None:
        self._ask(lambda blob, options: blob.stage_block(block_id, data, validate_content=True, **options))

    def _stage_as_others(self, number: int, digest: str, data: bytes, refused: StorageError) -> str:
        """Send a block with an id that is as long as those of another upload's blocks; return the id."""
        lengths = {len(each.encode()) for each in self._uncommitted()}
        # Azure compares the length in base 64, and its client shows an id in base 64 if it is no text.
        for id_bytes in {bytes_ for each in lengths for bytes_ in (-(-each // 3) * 3, each // 4 * 3)}:
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
            _, blocks = self._ask(lambda blob, options: blob.get_block_list("uncommitted", **options))
        except (AccessDeniedError, ObjectNotFoundError):  # no right to read, or no block at all
            return {}
        return {block.id: block.size for block in blocks}

    def _commit(self) -> str | None:
        """Make the blob; return its ETag."""
        try:
            if self._is_small:
                answer = self._ask(partial(_put, self._body, {MARK: self.mark}))
            else:
                blocks = [BlobBlock(block_id) for _, (block_id, _) in sorted(self._blocks.items())]
                answer = self._ask(partial(_commit, blocks, {MARK: self.mark}, self._condition()))
        except StorageError as error:
            if error.status in (409, 412):
                raise changed_meanwhile(self._uri, self._replaced, status=error.status) from error.__cause__
            if error.code == LOST_BLOCKS:
                error.message = "Azure no longer has the blocks that were sent: any upload to this name removes them"
                error.hint = "Save again, when no other program saves to this name"
            raise
        etag = (answer or {}).get("etag")
        return None if etag is None else str(etag)

    def _check_parts(self) -> None:
        there = self._uncommitted()
        for block_id, size_bytes in self._blocks.values():
            found = there.get(block_id, size_bytes)
            if found != size_bytes:
                raise self._fault_of(f"the storage has {found} of the {size_bytes} bytes of a block of the blob")

    def _look(self) -> FoundObject | None:
        try:
            found = self._ask(lambda blob, options: blob.get_blob_properties(**options))
        except ObjectNotFoundError:
            return None
        digest = bytes(found.content_settings.content_md5 or b"")
        is_equal = digest == md5(self._body, usedforsecurity=False).digest() if digest and self._is_small else None
        return FoundObject(found.size, found.etag, (found.metadata or {}).get(MARK), is_equal)

    def _remove(self, found: FoundObject) -> None:
        delete = partial(_delete, {"match_condition": MatchConditions.IfNotModified, "etag": found.version})
        try:
            self._ask(delete)
        except ObjectNotFoundError:
            return
        except StorageError as error:
            if error.status != 412:  # another program has replaced it
                raise

    def _discard(self) -> None:
        """Do nothing: Azure has no request that removes blocks."""

    def _condition(self) -> dict[str, Any]:
        if self._replaced is None:
            return {"match_condition": MatchConditions.IfMissing}
        return {"match_condition": MatchConditions.IfNotModified, "etag": self._replaced.version}

    def _ask(self, request: Callable[[BlobClient, Mapping[str, Any]], _Answer]) -> _Answer:
        def send(service: BlobServiceClient, options: Mapping[str, Any]) -> _Answer:
            return request(service.get_blob_client(self._container, self._name), options)

        return self._client.call(send, self._uri, self._container)


def _id_of(number: int, digest: str, id_bytes: int) -> str:
    """Return the id of a block: all ids of a blob must be equally long.

    The MD5 is in the usual id, because listings of blocks show nothing but ids and sizes. The first word tells our
    blocks from others.
    """
    usual = f"streamer-{number:06d}-{digest}"
    return usual if id_bytes == USUAL_ID_BYTES else f"s{number:04x}{digest:_<64}"[:id_bytes]


def _put(body: bytes, metadata: dict[str, str], blob: BlobClient, options: Mapping[str, Any]) -> Any:
    return blob.upload_blob(body, length=len(body), metadata=metadata, validate_content=True, **options)


def _commit(
    blocks: list[BlobBlock],
    metadata: dict[str, str],
    condition: Mapping[str, Any],
    blob: BlobClient,
    options: Mapping[str, Any],
) -> Any:
    return blob.commit_block_list(blocks, metadata=metadata, **condition, **options)


def _delete(condition: Mapping[str, Any], blob: BlobClient, options: Mapping[str, Any]) -> None:
    blob.delete_blob(**condition, **options)
