"""Locates many shards of one folder that the caller names one by one, as Run:ai's interface does.

One store and one listing find all of them. Otherwise each shard would need its own store and request, which take some
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from streamer.core.checkpoint.shards import Shards, info_of, objects_of
from streamer.core.errors import ConnectError, StorageError, TlsError, TransferTimeoutError
from streamer.core.secrets.hidden_arguments import hidden_part
from streamer.core.secrets.redact import redact
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import ObjectInfo, Store

__all__ = ["LISTED_PER_FILE", "are_of_one_folder", "is_named_after", "shards_of_files"]

LEAST_TO_LIST = 16  # fewer files are looked up by parallel requests: 16 run at the same time
# Listing stops if a folder has more entries: one page of 1000 entries costs as much as some 30 requests.
LISTED_PER_FILE = 32

# Schemes whose stores name an object by the path in its URL; and file names without special characters.
_OF_PATH = re.compile(r"[^:]*/|/.*/|(?:file|s3a?|gs|gcs|az|abfss?)://.+/")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors", re.ASCII)


def are_of_one_folder(uri: str, other: str) -> bool:
    """Say whether both URIs name shards in the same folder, so that one store serves both.

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
    """Say whether the store's root ends with the file name of the URI; a plug-in's store may use any other name."""
    return store.root.endswith(f"/{_name(uri)}")


def shards_of_files(store: Store, uris: Sequence[str]) -> list[Shards]:
    """Locate shards in one folder; return one `Shards` for each URI."""
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
    """List the folder; return nothing if listing is forbidden or has too many entries."""
    try:
        return {info.path: info for info in store.find(folder.rstrip("/") or "/") if info.size_bytes is not None}
    except (ConnectError, TlsError, TransferTimeoutError):  # other requests would fail the same way
        raise
    except StorageError:  # listing is forbidden, too long, or not supported by the server
        return {}


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]
