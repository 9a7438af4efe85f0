"""What an upload writes into the metadata of its object, to know it again if the answer to the last request is lost."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from streamer.core.store.sources import ObjectInfo

__all__ = ["UploadMark"]


class UploadMark:
    """The mark of one upload.

    Args:
        name: Under which the storage's metadata holds it.
        replaced: What is to be replaced, or None.
        found: Requests the metadata of the object that is there; none of an absent one.

    Attributes:
        metadata: To write with the object.
    """

    def __init__(self, name: str, replaced: ObjectInfo | None, found: Callable[[], Mapping[str, str]]) -> None:
        self.metadata = {name: secrets.token_hex(16)}
        self._is_new, self._found = replaced is None, found
        self._may_be_there = False

    def note_last_request(self) -> None:
        """Note that the object shows up with the request that is now sent, whatever is heard of it."""
        self._may_be_there = True

    def is_there(self) -> bool:
        """Whether the object that is there is this upload's."""
        found = self._found()
        return all(found.get(name) == value for name, value in self.metadata.items())

    def is_to_be_removed(self) -> bool:
        """Whether a save that failed has left this object: it shows up, and has replaced none."""
        return self._may_be_there and self._is_new and self.is_there()
