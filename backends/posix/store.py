"""Files on mounted file systems: plain paths, ``file://`` and ``local://`` URLs.

Guarantees: only `os.stat` and `os.scandir` are called to find files, so no call here waits for a FIFO or a device.
Symbolic links are followed (the Hugging Face cache consists of links), unless ``symlinks="inside"`` keeps them in the
folder that the URL names. Refuses everything except regular files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from streamer import _native
from streamer.backends.option_names import check_option_names
from streamer.backends.posix.errors import storage_error
from streamer.core.errors import ObjectNotFoundError, OptionError, StorageError
from streamer.core.folders.paths import absolute_path, disk_name, followed, text_of
from streamer.core.format.shard_names import is_of_checkpoint
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import FileSource, ObjectInfo, Store, hookimpl

if TYPE_CHECKING:
    from streamer.core.store.uploads import SharedUpload, Upload

# statfs(2)'s f_type of file systems on other machines. FUSE is not in the table, because it is often local (the page
# cache shows which). Lustre is not in the table, because its client itself reads ahead over all servers.
REMOTE_FILE_SYSTEMS = {
    0x6969: "NFS",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
    0x517B: "SMB",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
}

# These file systems read ahead themselves, and need the page cache for it.
CACHING_FILE_SYSTEMS = {0x65735546: "FUSE", 0x0BD00BD0: "Lustre"}

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any]) -> Store | None:
    """Open the store of mounted files; of `storage_options`, only ``symlinks`` affects reading."""
    if scheme not in ("file", "local"):
        return None
    check_option_names("file://", storage_options, ("symlinks",), ignored=("auto_mkdir",))
    return PosixStore(uri, symlinks=storage_options.get("symlinks", "follow"))


@hookimpl
def streamer_source_kind() -> type[FileSource]:
    """Return the kind of source: mounted files are read natively."""
    return FileSource


class PosixStore:
    """Mounted files, each named by its absolute path. Holds nothing open.

    With ``symlinks="inside"``, a file must lie in the folder of the checkpoint; the opened file is checked, so links
    may change meanwhile. Hard links cannot be recognised.
    """

    root: str  # the absolute path that `uri` names. ``..`` is left to the kernel, which alone resolves links.

    def __init__(self, uri: str, symlinks: str = "follow") -> None:
        if symlinks not in ("follow", "inside"):
            raise OptionError(f"symlinks is 'follow' or 'inside', not {symlinks!r}")
        self.root = text_of(absolute_path(uri))
        self._uri = uri
        self._inside = _folder_of(disk_name(self.root)) if symlinks == "inside" else None
        self._file_systems: dict[str, int | None] = {}

    def info(self, path: str) -> ObjectInfo:
        """Describe one regular file."""
        try:
            status = os.stat(disk_name(path))
        except OSError as error:
            failed = storage_error(error, path)
            if isinstance(failed, ObjectNotFoundError):
                from streamer.backends.posix.errors import hint_for_missing  # noqa: PLC0415 (takes 1 ms)

                failed.hint = hint_for_missing(disk_name(path), self._uri if path == self.root else path)
            raise failed from error
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_file(status, path)
        return _info(path, status)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the regular files directly in a folder, and its links to files.

        Broken links, entries that the file system cannot describe, FIFOs, sockets and devices, and folders with the
        name of a shard or an index are listed without a size: `info` raises an error for these.
        """
        try:
            with os.scandir(disk_name(prefix)) as entries:
                infos = [info for entry in entries if (info := _info_of_entry(entry)) is not None]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_error(error, prefix) from error
        return sorted(infos, key=lambda info: info.path)

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the files and folders directly in a folder."""
        from streamer.backends.posix.errors import LOOKED_AT  # noqa: PLC0415 (takes 1 ms)

        with os.scandir(disk_name(prefix)) as entries:
            return sorted(text_of(entry.name) + "/" * entry.is_dir() for entry in islice(entries, LOOKED_AT))

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the sub-folders of a folder, and its links to folders if links are followed."""
        try:
            with os.scandir(disk_name(prefix)) as entries:
                folders = [entry for entry in entries if entry.is_dir(follow_symlinks=self._inside is None)]
                return sorted(text_of(entry.name) for entry in folders)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_error(error, prefix) from error

    def source(self, info: ObjectInfo) -> FileSource:
        """Return the source for the native readers; it says whether the file is on another machine."""
        path = disk_name(info.path)
        kind = self._file_system(path)
        return FileSource(
            path,
            is_remote=kind in REMOTE_FILE_SYSTEMS,
            inside=self._inside,
            needs_cache=kind in REMOTE_FILE_SYSTEMS or kind in CACHING_FILE_SYSTEMS,
        )

    def write(self, path: str, data: bytes) -> None:
        """Write a file under another name, flush it to the disk, and rename it."""
        from streamer.core.folders.drafts import write_atomically  # noqa: PLC0415 (takes 1 ms)

        try:
            write_atomically(disk_name(path), data)
        except OSError as error:
            raise storage_error(error, path) from error

    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin a file under another name in the folder of `path`; missing folders are made."""
        from streamer.backends.posix.upload import PosixUpload  # noqa: PLC0415 (takes 1 ms)

        del part_bytes  # a disk does not need it
        return PosixUpload(path, size_bytes, replaced, self.info)

    def join_upload(self, path: str, part_bytes: int, shared: Any) -> SharedUpload:
        """Write parts of a file that another process has begun."""
        from streamer.backends.posix.upload import JoinedUpload  # noqa: PLC0415 (takes 1 ms)

        del part_bytes
        return JoinedUpload(path, shared)

    def remove(self, path: str) -> None:
        """Remove one file, and its folder if an upload of this process has made it and nothing is left in it."""
        from streamer.backends.posix.upload import remove_made_folders  # noqa: PLC0415 (takes 1 ms)

        try:
            with suppress(FileNotFoundError):
                os.unlink(disk_name(path))
            remove_made_folders(os.path.dirname(disk_name(path)))
        except OSError as error:
            raise storage_error(error, path) from error

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _file_system(self, path: str) -> int | None:
        """Return the file system's type, cached per folder. Links are resolved: a local cache may link elsewhere."""
        folder = os.path.dirname(followed(path))
        if folder not in self._file_systems:
            self._file_systems[folder] = _native.file_system_type(os.fsencode(folder))
        return self._file_systems[folder]


def _folder_of(root: str) -> str:
    """Return the folder of a checkpoint: the path itself, or the folder of the file."""
    return root if os.path.isdir(root) else os.path.dirname(root)


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    # Programs cannot set the change time, so restoring an old modification time does not hide a rewrite.
    version = f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_size}-{status.st_ino}"
    return ObjectInfo(path=path, uri=redact(path), size_bytes=status.st_size, version=version)


def _info_of_entry(entry: os.DirEntry[str]) -> ObjectInfo | None:
    try:
        status = entry.stat()
    except FileNotFoundError:  # removed meanwhile, or a broken link
        is_listed = entry.is_symlink()
    except OSError:  # the folder may be listed but not searched, or the disk fails
        is_listed = True
    else:
        if stat.S_ISREG(status.st_mode):
            return _info(text_of(entry.path), status)
        is_listed = not stat.S_ISDIR(status.st_mode) or is_of_checkpoint(entry.name)
    # The entry is listed without a size, so that a load or a push of the folder fails instead of dropping it.
    path = text_of(entry.path)
    return ObjectInfo(path, redact(path), size_bytes=None) if is_listed else None


def _not_a_file(status: os.stat_result, path: str) -> StorageError:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something unknown")
    if not stat.S_ISDIR(status.st_mode):
        return StorageError(
            f"This is {kind}, not a regular file",
            uri=redact(path),
            hint="Name a regular file, or leave it out (--exclude)",
        )
    if not is_of_checkpoint(path) and _is_empty(disk_name(path)):
        hint = "Check its name, that its download is complete, and that its disk is mounted"
        return ObjectNotFoundError("The folder is empty", uri=redact(path), hint=hint)
    return ObjectNotFoundError("This is a folder, not a regular file", uri=redact(path), hint="Name a regular file")


def _is_empty(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False
