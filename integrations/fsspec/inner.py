"""The file system that ``streamer::`` wraps: it lists files, and its store reads and writes their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from streamer._locate_shards import opened_store
from streamer.backends.builtin_storages import BUILTIN_SCHEMES
from streamer.backends.fsspec.caches import with_whole_records
from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.fsspec.foreign_file_systems import check_scheme, with_guarded_links
from streamer.core.checkpoint.shards import settled, source_object
from streamer.core.errors import OptionError, StreamerError
from streamer.core.options.settings import Settings
from streamer.core.secrets.hidden_arguments import SecretOptions, hidden, hidden_uri, plain
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.sources import Store
from streamer.integrations.fsspec.pinned_object import Opened
from streamer.integrations.fsspec.store_file_system import StoreFileSystem
from streamer.plugins.registry import choose, enabled, refuse_accidental_file_systems

__all__ = ["Inner"]


class Inner:
    """Finds and lists objects.

    Args:
        protocol: The protocol of the file system; None with `fs`.
        options: The arguments of the file system, or None.
        fs: The caller's own file system, or None.
        settings: How requests are made; an attribute, too.

    Raises:
        OptionError: neither `protocol` nor `fs` is passed, or both are.
        StreamerError: the file system cannot be created.
    """

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
        """Look up an object.

        Raises:
            ObjectNotFoundError: there is no such object; a folder is not an object.
            StorageError: or a subclass.
        """
        uri, options, fs = (self._uri(path), self._options, None) if self._has_backend else (path, None, self.fs)
        with opened_store(hidden_uri(uri), options, fs, self.settings, self._backends) as store:
            (info,) = settled(store, [store.info(store.root)])
            return Opened(info, source_object(store, info))

    @contextmanager
    def written(self, path: str) -> Iterator[tuple[Store, str]]:
        """Open the store of an object that is written; yield the store, and the URL of the object for messages.

        Raises:
            StorageError: or a subclass.
        """
        uri, options, fs = (self._uri(path), self._options, None) if self._has_backend else (path, None, self.fs)
        with opened_store(hidden_uri(uri), options, fs, self.settings, self._backends) as store:
            yield store, uri

    @contextmanager
    def with_own_errors(self, path: str) -> Iterator[AbstractFileSystem]:
        """Yield the file system; exceptions in the block become errors of this package, without secrets.

        Raises:
            OptionError: the path is a URL of another storage than the caller's file system.
            StorageError: or a subclass.
        """
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
