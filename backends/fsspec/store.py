"""Reads every URL without a backend of its own through fsspec; this includes chained URLs.

Guarantees: a read returns exactly the requested bytes or raises; fsspec itself returns fewer past the end of a file.
Listings are requested each time, not taken from fsspec's cache. Refuses a folder if a file is expected.

The weight bytes pass through Python here. A plug-in that can name a URL or a local path is many times faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.archive import AbstractArchiveFileSystem

from streamer.backends.fsspec.caches import is_decompressing, local_size_bytes, with_whole_records
from streamer.backends.fsspec.errors import raise_opening_error, raise_storage_error
from streamer.backends.fsspec.foreign_file_systems import check_instance, reason_for_missing, with_guarded_links
from streamer.backends.fsspec.info import fresh_info, size_of, version_of
from streamer.backends.fsspec.instances import InstanceSnapshot
from streamer.backends.fsspec.reads import connection_of, exclusive, source_of
from streamer.backends.fsspec.upload import FsspecUpload
from streamer.backends.private_names.fsspec import path_of, send_at_once
from streamer.core.discovery.entry_points import refuse_accidental
from streamer.core.errors import ObjectNotFoundError, OptionError, StorageError, StreamerError, UsageError
from streamer.core.secrets.redact import redact
from streamer.core.store.presence import folders_among
from streamer.core.store.sources import ObjectInfo, PythonSource, Store, hookimpl
from streamer.core.store.uploads import Upload

_WITHOUT_QUERY = frozenset({"memory", "sftp", "ssh"})  # in their paths, `?` and `#` are part of a name


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any]) -> Store:
    """Open `uri` with ``fsspec.url_to_fs``."""
    refuse_accidental("fsspec.specs", "fsspec")
    shown = redact(uri)
    snapshot = InstanceSnapshot()
    options: Mapping[str, Any] = {}
    try:
        options = with_guarded_links(uri, storage_options)
        fs, path = with_whole_records(lambda: fsspec.url_to_fs(uri, **options), options)
    except OptionError:  # our own error, which says more than fsspec's
        raise
    except Exception as error:
        raise_opening_error(reason_for_missing(error, uri, options), scheme, shown, hides_cause=shown != uri)
    store = _class_for(fs)(fs, path, uri)
    snapshot.forget_new(store, fs)
    return store


@hookimpl
def streamer_source_kind() -> type[PythonSource]:
    """Say that these files are read through Python."""
    return PythonSource


class FsspecStore:
    """The files of one fsspec file system."""

    root: str  # the file system's own path of `uri`, without secrets
    server: str  # the file system's protocol, and the host of `uri` if it has one

    def __init__(self, fs: AbstractFileSystem, path: str, uri: str) -> None:
        self._fs = fs
        send_at_once(connection_of(fs))
        self._shown_uri = redact(uri)
        protocol, _, rest = self._shown_uri.rpartition("::")[2].partition("://")
        self.server = f"{protocol}://{rest.partition('/')[0].rpartition('@')[2]}"
        self._hides_causes = self._shown_uri != uri
        self._own_root = path
        # The path of an HTTP file is its URL: `root` and `ObjectInfo.path` must not show a password in it.
        is_shown = not self._hides_causes or protocol.lower() in _WITHOUT_QUERY
        self.root = (self._own_root if is_shown else _shown_path(self._own_root)).rstrip("/")
        is_url = "://" in self._own_root
        self._own_prefix = (self._own_root.partition("?")[0] if is_url else self._own_root).rstrip("/")

    @classmethod
    def of_instance(cls, fs: AbstractFileSystem, uri: str) -> FsspecStore:
        """Make a store of the caller's instance; `uri` is a URL or a path of it.

        An ``asynchronous`` instance runs on the caller's event loop, and nothing may block that loop. So the store
        reads another instance with the same options, on fsspec's own loop.
        """
        snapshot, original = InstanceSnapshot(), fs
        if getattr(fs, "asynchronous", False):
            fs = type(fs)(*fs.storage_args, **{**fs.storage_options, "asynchronous": False})
        check_instance(fs)
        path = path_of(fs, uri)
        store = _class_for(fs)(fs, path, uri if "://" in uri else str(fs.unstrip_protocol(path)))
        if fs is not original:
            snapshot.forget_new(store, fs)
        return store

    def info(self, path: str) -> ObjectInfo:
        """Describe one file."""
        uri, own_path = self._uri(path), self._own_path(path)
        try:
            with exclusive(self._fs):
                metadata = fresh_info(self._fs, str(own_path))
            is_folder, size_bytes, version = metadata["type"] == "directory", size_of(metadata), version_of(metadata)
        except Exception as error:
            raise_storage_error(error, uri, hides_cause=self._hides_causes)
        if is_folder:
            raise ObjectNotFoundError("This is a folder, not a file", uri=uri, hint="Name a file in it")
        if metadata["type"] == "other":
            hint = "Name a regular file, or leave it out (--exclude)"
            raise StorageError("This is a FIFO, a socket or a device, not a regular file", uri=uri, hint=hint)
        if size_bytes is None or is_decompressing(self._fs):
            size_bytes = self._size_in_cache(own_path, uri)
        return ObjectInfo(path, uri, size_bytes=size_bytes, version=version)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the files directly in a folder."""
        folder = self._own_path(prefix)
        try:
            with exclusive(self._fs):
                self._fs.invalidate_cache(folder)
                entries = self._fs.ls(folder, detail=True)
            files = (entry for entry in entries if entry["type"] != "directory" and _is_directly_in(folder, entry))
            return sorted((self._listed(entry) for entry in files), key=lambda info: info.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            raise_storage_error(error, self._uri(prefix), hides_cause=self._hides_causes)

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the files and folders directly in a folder."""
        names = []
        with exclusive(self._fs):
            entries = self._fs.ls(str(self._own_path(prefix)), detail=True)
        for entry in entries:
            path = str(entry["name"]).partition("?" if "://" in entry["name"] else "\0")[0]  # a query may be a secret
            # One slash at most is a mark of a folder: `m//` is a folder without a name in `m`.
            names.append(path.removesuffix("/").rpartition("/")[2] + "/" * (entry["type"] == "directory"))
        return sorted(names)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the sub-folders of a folder; raises as `find`."""
        try:
            return folders_among(self.peek(prefix))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            raise_storage_error(error, self._uri(prefix), hides_cause=self._hides_causes)

    def source(self, info: ObjectInfo) -> PythonSource:
        """Return a source that reads through the file system."""
        return source_of(self._fs, str(self._own_path(info.path)), info, hides_causes=self._hides_causes, holder=self)

    def close(self) -> None:
        """Do nothing: fsspec shares its instances, and the sources still need this instance."""

    def _size_in_cache(self, own_path: str, uri: str) -> int | None:
        try:
            with exclusive(self._fs):
                return local_size_bytes(self._fs, str(own_path))
        except StreamerError as error:
            error.uri = error.uri or uri
            raise
        except Exception as error:
            raise_storage_error(error, uri, hides_cause=self._hides_causes)

    def _own_path(self, path: str) -> str:
        if path == self.root:
            return self._own_root
        return self._own_prefix + path[len(self.root) :] if path.startswith(f"{self.root}/") else path

    def _listed(self, entry: Mapping[str, Any]) -> ObjectInfo:
        name: str = entry["name"]
        path = self.root + name[len(self._own_prefix) :] if name.startswith(self._own_prefix) else name
        is_file = entry["type"] not in ("link", "other")  # the size of a link is the length of its target's name
        size_bytes = size_of(entry) if is_file else None
        return ObjectInfo(path, self._uri(path), size_bytes=size_bytes, version=version_of(entry))

    def _uri(self, path: str) -> str:
        """Replace the root's path in the user's URL, so that the rest of a chain stays visible."""
        if path == self.root:
            return self._shown_uri
        root, shown = self.root.strip("/"), self._shown_uri
        at = shown.find(root, 0 if "://" in root else shown.find("://") + len("://"))
        if at < 0:
            return redact(str(self._fs.unstrip_protocol(path)))
        rest = shown[at + len(root) :].removeprefix("/")
        return f"{shown[:at]}{path.strip('/')}{rest}"


class WritableFsspecStore(FsspecStore):
    """The files of a file system that may be writable."""

    def write(self, path: str, data: bytes) -> None:
        """Write one small file with ``pipe_file``."""
        try:
            with exclusive(self._fs):
                self._fs.pipe_file(str(self._own_path(path)), data)
        except NotImplementedError:
            raise UsageError("this storage cannot be written", uri=self._uri(path)) from None
        except Exception as error:
            raise_storage_error(error, self._uri(path), hides_cause=self._hides_causes)

    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Open a file for writing."""
        del part_bytes  # the file system has its own size of parts
        return FsspecUpload(
            self._fs,
            str(self._own_path(path)),
            self._uri(path),
            size_bytes,
            replaces=replaced is not None,
            fail=lambda error: raise_storage_error(error, self._uri(path), hides_cause=self._hides_causes),
        )

    def remove(self, path: str) -> None:
        """Remove one file; raises as `UploadingStore.remove`."""
        try:
            with exclusive(self._fs):
                self._fs.rm_file(str(self._own_path(path)))
        except FileNotFoundError:
            pass
        except Exception as error:
            raise_storage_error(error, self._uri(path), hides_cause=self._hides_causes)


def _class_for(fs: AbstractFileSystem) -> type[FsspecStore]:
    """Return the class of the store: archives (zip, tar, …) are opened only for reading."""
    return FsspecStore if isinstance(fs, AbstractArchiveFileSystem) else WritableFsspecStore


def _shown_path(path: str) -> str:
    return redact(path) if "://" in path else redact(f"path://{path}").removeprefix("path://")


def _is_directly_in(folder: str, entry: Mapping[str, Any]) -> bool:
    """Check an entry: some file systems list a file as if it were its own folder; HTTP lists all links of a page."""
    return str(entry["name"]).strip("/").rpartition("/")[0] == folder.strip("/")
