"""Many shards that the user names one by one, as Run:ai's interface does, and that lie in one folder.

They are found with one store and one listing, where each by itself costs a store and a request: some milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from streamer.core.checkpoint.shards import Shards, info_of, objects_of
from streamer.core.errors import ConnectError, StorageError, TlsError, TransferTimeoutError
from streamer.core.secrets.redact import redact
from streamer.core.secrets.urls import hidden_part
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import ObjectInfo, Store

__all__ = ["LISTED_PER_FILE", "are_of_one_folder", "is_named_after", "shards_of_files"]

LEAST_TO_LIST = 16  # as many requests are made at the same time
# A folder with more entries is not listed to its end: a page has 1000 of them and costs as much as some 30 requests.
LISTED_PER_FILE = 32

# Schemes whose stores name an object after the path in its URL, and names that mean only themselves there.
_OF_PATH = re.compile(r"[^:]*/|/.*/|(?:file|s3a?|gs|gcs|az|abfss?)://.+/")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors", re.ASCII)


def are_of_one_folder(uri: str, other: str) -> bool:
    """Whether both name shards in the same folder, so that one store has both.

    Example:
        >>> are_of_one_folder("s3://bucket/a.safetensors", "s3://bucket/b.safetensors")
        True
        >>> are_of_one_folder("s3://bucket/a.safetensors", "s3://bucket/b.safetensors?versionId=1")
        False
    """
    (folder, _, name), (other_folder, _, other_name) = uri.rpartition("/"), other.rpartition("/")
    is_same = folder == other_folder and _OF_PATH.fullmatch(f"{folder}/") is not None
    return is_same and all(_PLAIN_NAME.fullmatch(each) for each in (name, other_name))


def is_named_after(store: Store, uri: str) -> bool:
    """Whether the store's name of its object ends as the URI; that of a plug-in may be any."""
    return store.root.endswith(f"/{_name(uri)}")


def shards_of_files(store: Store, uris: Sequence[str]) -> list[Shards]:
    """Find shards in one folder, each for itself.

    Args:
        store: Opened for the first, and named after it.
        uris: Of which each is `are_of_one_folder` with the first.

    Raises:
        ObjectNotFoundError: one is not there.
        StorageError: and its kinds, from the storage.
    """
    folder = store.root[: len(store.root) - len(_name(uris[0]))]
    listed = _listed(store, folder) if len(uris) >= LEAST_TO_LIST else {}
    labels, roots = [redact(uri) for uri in uris], [hidden_part(folder + _name(uri), uri) for uri in uris]
    unlisted = [(label, root) for label, root in zip(labels, roots, strict=True) if root not in listed]
    asked_for = in_parallel(lambda each: info_of(store, *each), unlisted, role="info")
    listed.update(zip((root for _, root in unlisted), asked_for, strict=True))
    infos = [listed[root] for root in roots]
    objects = objects_of(store, infos)
    return [Shards(label, [each], None, [info]) for label, each, info in zip(labels, objects, infos, strict=True)]


def _listed(store: Store, folder: str) -> dict[str, ObjectInfo]:
    """List the folder, where that is allowed and the folder is not much larger than what is wanted of it."""
    try:
        return {info.path: info for info in store.find(folder.rstrip("/") or "/") if info.size_bytes is not None}
    except (ConnectError, TlsError, TransferTimeoutError):  # nor would the server answer other requests
        raise
    except StorageError:  # forbidden, too long, or not known to the server
        return {}


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]
