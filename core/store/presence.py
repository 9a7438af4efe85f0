"""Whether a store has an object: absence is an answer here, and not an error."""

from __future__ import annotations

from streamer.core.errors import ObjectNotFoundError
from streamer.core.store.sources import ObjectInfo, Store

__all__ = ["info_if_present"]


def info_if_present(store: Store, path: str) -> ObjectInfo | None:
    """Describe one object; None if there is no such object.

    Args:
        store: The store to ask.
        path: The store's own path of the object.

    Raises:
        StorageError: as for `Store.info`, but for an absent object.
    """
    try:
        return store.info(path)
    except ObjectNotFoundError:
        return None
