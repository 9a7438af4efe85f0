"""What storages answer to a read of an archived object: its data must be copied back before it can be read.

Keys and rights are in order, so the advice of a refusal would mislead. S3's code is also that of other servers with its
protocol; Azure's codes come with status 409.
"""

from __future__ import annotations

__all__ = ["ARCHIVED", "HOW_TO_RESTORE", "IS_ARCHIVED"]

ARCHIVED = frozenset({"BlobArchived", "BlobBeingRehydrated", "InvalidObjectState"})
IS_ARCHIVED = "The object is archived, or is still being restored"
HOW_TO_RESTORE = (
    "Restore it and wait until that has ended (S3: restore-object; Azure: rehydrate it to the hot or cool tier), or "
    "keep the lifecycle rules of the storage from archiving it"
)
