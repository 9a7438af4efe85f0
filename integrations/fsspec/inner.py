"""The file system that ``streamer::`` wraps: it lists files, and its store reads their bytes.

It performs the methods that have to do with paths, descriptions and listings. Storages that fsspec does not know
(``nfs://``, plug-ins) get a file system that lists. Methods that change files or folders are refused.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import fsspec
from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from streamer._locate_shards import opened_store
from streamer.backends.builtin_storages import BUILTIN_SCHEMES
from streamer.backends.fsspec.caches import with_whole_records
from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.fsspec.foreign_file_systems import check_scheme, with_guarded_links
from streamer.backends.fsspec.info import origin_of
from streamer.backends.private_names.fsspec import parent_of, path_of
from streamer.core.errors import ObjectNotFoundError, OptionError, StreamerError
from streamer.core.options.settings import Settings
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.shards.shards import settled, sized, source_object
from streamer.core.store.presence import PeekingStore
from streamer.core.store.sources import FolderStore, ObjectInfo, Store
from streamer.integrations.fsspec.remote_file import Opened
from streamer.plugins.registry import choose, enabled, refuse_accidental_file_systems


def refusal() -> io.UnsupportedOperation:
    """Return the error, which is an `OSError` and a `ValueError`."""
    return io.UnsupportedOperation(
        "streamer:: only reads. streamer.save and the command streamer push write checkpoints; for other files and "
        "changes, use the file system inside: the URL without streamer::, or the attribute fs"
    )


class ReadOnly:
    """Refuses all methods that change something; some of fsspec's defaults would silently do nothing."""

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise refusal()

    copy = cp = cp_file = mv = move = rename = rmdir = rm = rm_file = delete = _refuse
    put = put_file = upload = pipe = pipe_file = touch = write_text = write_bytes = _refuse
    mkdir = makedir = makedirs = mkdirs = _refuse


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
        return opened_store(f"{self.protocol}://{path}", self._options, None, self._settings)


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
        self._protocol, self._options, self.settings = protocol, options or {}, settings
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
        with opened_store(uri, options, fs, self.settings, self._backends) as store:
            (info,) = settled(store, [store.info(store.root)])
            return Opened(info, source_object(store, info))

    @contextmanager
    def with_own_errors(self, path: str) -> Iterator[AbstractFileSystem]:
        """Yield the file system; exceptions in the block become errors of this package, without secrets."""
        if self._callers is not None:
            check_scheme(self._callers, path, BUILTIN_SCHEMES)
        uri = str(self.fs.unstrip_protocol(path))
        options = self._options if self._callers is None else self._callers.storage_options
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
        return with_whole_records(lambda: fsspec.filesystem(self._protocol, **options), options)


try:
    from fsspec.implementations.chained import ChainedFileSystem
except ImportError:  # before 2025.10, only `fo` has the path of a chain
    ChainedFileSystem = AbstractFileSystem


class ListedInside(ReadOnly, ChainedFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system with the paths of another one. Listings are requested each time, never taken from a cache."""

    @property
    def fs(self) -> AbstractFileSystem:
        """The wrapped file system."""
        return self._inner.fs

    def info(self, path: str, **named: Any) -> dict[str, Any]:
        """Describe a file or folder as the wrapped file system does."""
        path = self._path_of(path)
        with self._inner.with_own_errors(path) as fs:
            origin = origin_of(fs)
            origin.invalidate_cache(parent_of(origin, path))
            description: dict[str, Any] = origin.info(path, **named)
            return description

    def exists(self, path: str, **named: Any) -> bool:
        """Whether a file or folder exists; raises if the storage does not answer, because the file may exist then."""
        try:
            self.info(path, **named)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **named: Any) -> list[Any]:
        """List a folder; raises as `info`."""
        return list(self._listed("ls", path, detail=detail, **named))

    def find(self, path: str, **named: Any) -> Any:
        """List all files below a folder; raises as `info`."""
        return self._listed("find", path, **named)

    def glob(self, path: str, **named: Any) -> Any:
        """List the files that match a pattern; raises as `info`."""
        return self._listed("glob", path, **named)

    def created(self, path: str) -> Any:
        """Return the result of the wrapped file system; raises as `info`."""
        return self._listed("created", path)

    def modified(self, path: str) -> Any:
        """Return the result of the wrapped file system; raises as `info`."""
        return self._listed("modified", path)

    def sign(self, path: str, expiration: int = 100, **named: Any) -> Any:
        """Return the result of the wrapped file system; raises as `info`."""
        with self._inner.with_own_errors(self._path_of(path)) as fs:
            return fs.sign(self._path_of(path), expiration=expiration, **named)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Clear the listing cache of the wrapped file system."""
        self.fs.invalidate_cache(None if path is None else self._path_of(path))

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path."""
        return f"streamer::{self.fs.unstrip_protocol(self._path_of(name))}"

    def _list_with(self, inner: Inner, path_of_chain: str) -> None:
        self._inner = inner
        self._path_of_chain = "" if ChainedFileSystem is not AbstractFileSystem else path_of_chain
        self.root_marker, self.sep = inner.fs.root_marker, inner.fs.sep
        self._strip_protocol = self._path_of  # type: ignore[method-assign]  # an instance knows the wrapped file system

    def _listed(self, question: str, path: str, **named: Any) -> Any:
        path = self._path_of(path)
        with self._inner.with_own_errors(path) as fs:
            fs.invalidate_cache(None if question == "glob" else path)
            return getattr(fs, question)(path, **named)

    def _path_of(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._path_of(each) for each in path]
        return path_of(self.fs, _without_own(path) or self._path_of_chain)

    def _parent(self, path: str) -> Any:
        return parent_of(self.fs, path)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the URL without ``streamer::``; the class does not know the wrapped file system."""
        return [cls._strip_protocol(each) for each in path] if isinstance(path, list) else _without_own(path)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        """Return the protocol of ``streamer://nfs://server/path``: fsspec refuses chains with unknown protocols."""
        protocol, mark, _ = _without_own(path).partition("://")
        return {"target_protocol": protocol} if mark else {}


def _without_own(path: Any) -> str:
    text = str(stringify_path(path))
    for own in ("streamer::", "streamer://"):
        text = text.removeprefix(own)
    return text
