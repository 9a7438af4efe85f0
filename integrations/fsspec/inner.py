"""The file system that ``streamer::`` wraps: it lists files, and its store reads and writes their bytes.

Storages that fsspec does not know (``nfs://``, plug-ins) get a file system that lists. What may only be read refuses
the methods that change files or folders.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import fsspec
from fsspec import AbstractFileSystem

from streamer._locate_shards import opened_store
from streamer.backends.builtin_storages import BUILTIN_SCHEMES
from streamer.backends.fsspec.caches import with_whole_records
from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.fsspec.foreign_file_systems import check_scheme, with_guarded_links
from streamer.core.checkpoint.shards import settled, sized, source_object
from streamer.core.errors import ObjectNotFoundError, OptionError, StreamerError
from streamer.core.options.settings import Settings
from streamer.core.secrets.hidden_arguments import SecretOptions, hidden, hidden_uri, plain
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.presence import PeekingStore
from streamer.core.store.sources import FolderStore, ObjectInfo, Store
from streamer.integrations.fsspec.remote_file import Opened
from streamer.plugins.registry import choose, enabled, refuse_accidental_file_systems

__all__ = ["Inner", "ReadOnly", "StoreFileSystem", "WholeFiles", "refusal"]


def refusal() -> io.UnsupportedOperation:
    """Return the error, which is an `OSError` and a `ValueError`."""
    return io.UnsupportedOperation(
        "streamer:: reads, and writes whole files: it does not append, copy, move or remove. Do that with the file "
        "system inside: the URL without streamer::, or its attribute fs"
    )


class WholeFiles:
    """The methods of a file system that copy, move and remove; some of fsspec's defaults would read each byte."""

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise refusal()

    copy = cp = cp_file = mv = move = rename = rmdir = rm = rm_file = delete = _refuse


class ReadOnly(WholeFiles):
    """All methods that change something; some of fsspec's defaults would silently do nothing."""

    put = put_file = upload = pipe = pipe_file = touch = write_text = write_bytes = WholeFiles._refuse
    mkdir = makedir = WholeFiles._refuse

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create no folder: a store creates those of a file that is written. `fsspec.open` calls this before it."""
        del path
        if not exist_ok:
            raise refusal()

    mkdirs = makedirs


class StoreFileSystem(ReadOnly, AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Lists the files and folders of a store; paths are URLs without their scheme."""

    cachable = False

    def __init__(self, scheme: str, options: Mapping[str, Any], settings: Settings) -> None:
        super().__init__()
        self.protocol = scheme
        self._options, self._settings = options, settings

    def info(self, path: str, **_named: Any) -> dict[str, Any]:
        """Describe a file or folder."""
        path = self._strip_protocol(path)
        with self._store(path) as store:
            try:
                return _entry(path, store.info(store.root))
            except ObjectNotFoundError:
                if store.find(store.root) or _folders(store):
                    return _folder(path)
                raise

    def ls(self, path: str, detail: bool = True, **_named: Any) -> list[Any]:
        """List the entries directly in a folder; a file lists itself."""
        path = self._strip_protocol(path)
        with self._store(path) as store:
            found = sized(store, store.find(store.root))
            files = [_entry(f"{path}/{each.path.rpartition('/')[2]}", each) for each in found]
            entries = files + [_folder(f"{path}/{name}") for name in _folders(store)]
            if not entries:
                entries = [_entry(path, store.info(store.root))]
        entries.sort(key=lambda entry: str(entry["name"]))
        return entries if detail else [entry["name"] for entry in entries]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return (path.partition("://")[2] if "://" in path else path).rstrip("/")

    def _store(self, path: str) -> Any:
        return opened_store(hidden_uri(f"{self.protocol}://{path}"), self._options, None, self._settings)


def _folders(store: Store) -> list[str]:
    try:
        if isinstance(store, FolderStore):
            return store.folders(store.root or "/")
        names = store.peek(store.root) if isinstance(store, PeekingStore) else []
    except (NotImplementedError, ObjectNotFoundError):  # the plug-in cannot list folders, or this is none
        names = []
    return [name.rstrip("/") for name in names if name.endswith("/")]


def _entry(path: str, info: ObjectInfo) -> dict[str, Any]:
    return {"name": path, "size": info.size_bytes, "type": "file", "version": info.version}


def _folder(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


class Inner:
    """Finds and lists objects."""

    def __init__(
        self,
        protocol: str | None,
        options: Mapping[str, Any] | None,
        fs: AbstractFileSystem | None,
        settings: Settings,
    ) -> None:
        if (fs is None) == (protocol is None):
            raise OptionError(
                "streamer:: reads from another file system",
                hint="Name one: streamer::s3://bucket/key, or fs=, or target_protocol= with target_options=",
            )
        self._protocol, self._options, self.settings = protocol, hidden(options) or SecretOptions(), settings
        refuse_accidental_file_systems([f"{protocol or 'file'}://"])
        self._backends = enabled()
        self._has_backend = protocol is not None and choose(protocol, self._backends) is not None
        self._callers, self._process = fs, os.getpid()
        self._fs = self._made() if fs is None else fs

    @property
    def fs(self) -> AbstractFileSystem:
        """The file system; a forked child gets a new one, as event loops run only in the parent."""
        if self._process != os.getpid():
            callers = self._callers
            self._fs = (
                self._made() if callers is None else type(callers)(*callers.storage_args, **callers.storage_options)
            )
            self._process = os.getpid()
        return self._fs

    def opened(self, path: str) -> Opened:
        """Look up an object."""
        uri, options, fs = (self._uri(path), self._options, None) if self._has_backend else (path, None, self.fs)
        with opened_store(hidden_uri(uri), options, fs, self.settings, self._backends) as store:
            (info,) = settled(store, [store.info(store.root)])
            return Opened(info, source_object(store, info))

    @contextmanager
    def written(self, path: str) -> Iterator[tuple[Store, str]]:
        """Open the store of an object that is written; yield the store, and the URL of the object for messages."""
        uri, options, fs = (self._uri(path), self._options, None) if self._has_backend else (path, None, self.fs)
        with opened_store(hidden_uri(uri), options, fs, self.settings, self._backends) as store:
            yield store, uri

    @contextmanager
    def with_own_errors(self, path: str) -> Iterator[AbstractFileSystem]:
        """Yield the file system; exceptions in the block become errors of this package, without secrets."""
        if self._callers is not None:
            check_scheme(self._callers, path, BUILTIN_SCHEMES)
        uri = hidden_uri(str(self.fs.unstrip_protocol(path)))
        options = self._options if self._callers is None else hidden(self._callers.storage_options)
        with SecretTexts(uri, options).masking_errors():
            try:
                yield self.fs
            except (StreamerError, NotImplementedError):
                raise
            except Exception as error:
                raise_storage_error(error, redact(uri), hides_cause=redact(uri) != uri)

    def _uri(self, path: str) -> str:
        return path if self._protocol in ("file", "local") else str(self.fs.unstrip_protocol(path))

    def _made(self) -> AbstractFileSystem:
        assert self._protocol is not None
        if self._protocol not in fsspec.available_protocols() and self._has_backend:
            return StoreFileSystem(self._protocol, self._options, self.settings)
        options = with_guarded_links(f"{self._protocol}://", self._options)
        return with_whole_records(lambda: fsspec.filesystem(self._protocol, **plain(options)), options)
