"""Lists all files below a URL, those of sub-folders included."""

from __future__ import annotations

import logging
import shlex
from urllib.parse import unquote

from streamer._pull.names import STATE
from streamer.core.checkpoint.half_pulled import refuse_half_pulled
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError, UsageError
from streamer.core.quoting import printable
from streamer.core.secrets.redact import redact
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import FolderStore, ObjectInfo, Store

__all__ = ["files_below"]

# A server that makes up sub-folders, or a link that leads to a folder above it, must come to an end.
MOST_FOLDERS = 10_000
DEEPEST = 32

_log = logging.getLogger("streamer")


def files_below(store: Store, uri: str) -> dict[str, ObjectInfo]:
    """Describe the files below a URL by their names relative to it; a URL of one file has that alone.

    Args:
        store: Opened for the URL.
        uri: The URL.

    Raises:
        ObjectNotFoundError: there is nothing, or the folder is half pulled itself.
        AccessDeniedError: the folder may not be listed.
        StorageError: it is too deep; and its kinds, from the storage.
    """
    label, root = redact(uri), store.root.rstrip("/")
    # The links of a web page are quoted; names of other storages are literal.
    is_quoted = uri.rpartition("::")[2].lower().startswith(("http://", "https://"))
    try:
        found = _Walk(store, label, is_quoted=is_quoted).files(root)
    except AccessDeniedError as error:
        try:
            return _one_file(store, uri, is_quoted=is_quoted)
        except StorageError:
            raise error from None
    if not found and not uri.endswith("/"):
        return _one_file(store, uri, is_quoted=is_quoted)
    if not found:
        raise ObjectNotFoundError("there is no such folder, or it is empty", uri=label, hint="Check its name")
    return found


def _one_file(store: Store, uri: str, *, is_quoted: bool) -> dict[str, ObjectInfo]:
    try:
        info = store.info(store.root.rstrip("/"))
    except ObjectNotFoundError as error:
        folder, _, name = redact(uri).rpartition("/")
        if "*" in name:
            error.hint = f"For some files of a folder, give {folder} and --include {shlex.quote(name)}"
        raise
    return {_name_of(info, is_quoted=is_quoted): info}


def _name_of(info: ObjectInfo, *, is_quoted: bool) -> str:
    path = info.path.partition("?")[0] if is_quoted else info.path  # a query may be a signature
    name = path.rpartition("/")[2]
    return unquote(name) if is_quoted else name


class _Walk:
    """Level by level, the folders of each level at the same time."""

    def __init__(self, store: Store, label: str, *, is_quoted: bool) -> None:
        self._store, self._label, self._is_quoted = store, label, is_quoted

    def files(self, root: str) -> dict[str, ObjectInfo]:
        if not isinstance(self._store, FolderStore):
            _log.warning("%s: this storage names no sub-folders: what is in any is not pulled", printable(self._label))
        found: dict[str, ObjectInfo] = {}
        level, folders = [(root or "/", "")], 1
        for _ in range(DEEPEST):
            following = []
            answers = in_parallel(self._listed, level, role="list")
            for (path, prefix), (infos, names) in zip(level, answers, strict=True):
                if not prefix:
                    refuse_half_pulled(infos, self._label)
                found.update((prefix + _name_of(info, is_quoted=self._is_quoted), info) for info in infos)
                for name in names:
                    if prefix or name != STATE:
                        inside = f"{path.rstrip('/')}/{name}" if path != "/" else name
                        following.append((inside, f"{prefix}{self._shown(name)}/"))
            level, folders = following, folders + len(following)
            if not level:
                return found
            if folders > MOST_FOLDERS:
                break
        raise UsageError(
            f"the folder has more than {MOST_FOLDERS} sub-folders, or some below {DEEPEST} others, such as "
            f"{printable(level[0][1][:60])!r}",
            uri=self._label,
            hint="Name the sub-folder to pull, or remove the link that leads back",
        )

    def _listed(self, folder: tuple[str, str]) -> tuple[list[ObjectInfo], list[str]]:
        path = folder[0]
        names = self._store.folders(path) if isinstance(self._store, FolderStore) else []
        return self._store.find(path), names

    def _shown(self, name: str) -> str:
        return unquote(name) if self._is_quoted else name
