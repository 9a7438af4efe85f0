"""Writes one blob to Azure, in blocks that become a blob in one request.

Guarantees: readers see either no new blob or the whole blob, after `AzureUpload.finish`. A blob that another writer
uploaded meanwhile is not overwritten. Azure checks the MD5 of each block. The blocks of a failed save take space, but
no listing shows them. Azure removes them after a week, and has no request to remove them earlier.
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
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import UploadMark, changed_meanwhile

__all__ = ["AzureUpload"]

PARALLEL_PARTS = 16
MARK = "streamer_upload"  # a name of the blob's metadata, in which Azure allows no dash

_Answer = TypeVar("_Answer")


class AzureUpload:
    """See `streamer.core.store.uploads.Upload`.

    Args:
        client: The client of the store.
        path: ``container/name``.
        uri: The URL of the blob, without secrets.
        part_bytes: Size of each part except the last.
        replaced: The blob to replace, or None.
    """

    parallel_parts = PARALLEL_PARTS
    needs_equal_parts = True

    def __init__(self, client: AzureClient, path: str, uri: str, part_bytes: int, replaced: ObjectInfo | None) -> None:
        self._client, self._uri = client, uri
        self._container, _, self._name = path.partition("/")
        self._part_bytes, self._replaced = part_bytes, replaced
        self._mark = UploadMark(MARK, replaced, self._metadata)
        self._lock = threading.Lock()
        self._blocks: dict[int, str] = {}
        self._earlier: dict[str, int] = {}  # sizes of the blocks that an earlier process sent, by id

    def note_earlier_blocks(self) -> None:
        """List the blocks that Azure already has, so that `send` can skip them; raises as `Upload.send`."""
        try:
            _, blocks = self._ask(lambda blob, options: blob.get_block_list("uncommitted", **options))
        except (AccessDeniedError, ObjectNotFoundError):  # no right to read, or no block at all
            return
        self._earlier = {block.id: block.size for block in blocks}

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one block; raises as `Upload.send`."""
        number = offset_bytes // self._part_bytes
        # All block ids of a blob must be equally long. The MD5 is in the id because listings show only ids.
        block_id = f"{number:06d}-{md5(part, usedforsecurity=False).hexdigest()}"
        if self._earlier.get(block_id) != part.nbytes:
            data = bytes(part)
            self._ask(lambda blob, options: blob.stage_block(block_id, data, validate_content=True, **options))
        with self._lock:
            self._blocks[number] = block_id

    def finish(self) -> None:
        """Make a blob of the blocks; raises as `Upload.finish`."""
        self._mark.note_last_request()
        blocks = [BlobBlock(block_id) for _, block_id in sorted(self._blocks.items())]
        commit = partial(_commit, blocks, self._mark.metadata, self._condition())
        try:
            self._ask(commit)
        except StorageError as error:
            if error.status not in (400, 404, 409, 412):
                raise
            if self._mark.is_there():  # the answer to an earlier attempt was lost
                return
            if error.status in (409, 412):
                raise changed_meanwhile(self._uri, self._replaced) from error.__cause__
            raise

    def abort(self) -> None:
        """Remove the blob if Azure made it but its answer was lost; raises as `Upload.abort`."""
        if self._mark.is_to_be_removed():
            self.withdraw()

    def confirm(self) -> None:
        """Check the blob's mark by one request; raises as `OwningUpload.confirm`."""
        if not self._mark.is_there():
            raise changed_meanwhile(self._uri, self._replaced)

    def withdraw(self) -> None:
        """Remove the blob if it has the mark of this upload; raises as `OwningUpload.withdraw`."""
        try:
            found = self._ask(lambda blob, options: blob.get_blob_properties(**options))
            if (found.metadata or {}).get(MARK) != self._mark.metadata[MARK]:
                return
            delete = partial(_delete, {"match_condition": MatchConditions.IfNotModified, "etag": found.etag})
            self._ask(delete)
        except ObjectNotFoundError:
            return
        except StorageError as error:
            if error.status != 412:  # another program has replaced it
                raise

    def _condition(self) -> dict[str, Any]:
        if self._replaced is None:
            return {"match_condition": MatchConditions.IfMissing}
        return {"match_condition": MatchConditions.IfNotModified, "etag": self._replaced.version}

    def _metadata(self) -> Mapping[str, str]:
        try:
            properties = self._ask(lambda blob, options: blob.get_blob_properties(**options))
        except ObjectNotFoundError:
            return {}
        return properties.metadata or {}

    def _ask(self, request: Callable[[BlobClient, Mapping[str, Any]], _Answer]) -> _Answer:
        def send(service: BlobServiceClient, options: Mapping[str, Any]) -> _Answer:
            return request(service.get_blob_client(self._container, self._name), options)

        return self._client.call(send, self._uri, self._container)


def _commit(
    blocks: list[BlobBlock],
    metadata: dict[str, str],
    condition: Mapping[str, Any],
    blob: BlobClient,
    options: Mapping[str, Any],
) -> None:
    blob.commit_block_list(blocks, metadata=metadata, **condition, **options)


def _delete(condition: Mapping[str, Any], blob: BlobClient, options: Mapping[str, Any]) -> None:
    blob.delete_blob(**condition, **options)
