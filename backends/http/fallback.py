"""Reads HTTP objects through fsspec if the options demand it: a session, a connector, an SSL context.

Guarantees: fsspec gets the user's options unchanged, and a remark in the load's report says why Python reads the bytes.
Sessions follow our rules for redirects (`backends/fsspec/http_sessions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fsspec.implementations.http import HTTPFileSystem

from streamer.backends.fsspec.http_sessions import with_guarded_sessions
from streamer.backends.fsspec.instances import InstanceSnapshot
from streamer.backends.fsspec.store import FsspecStore
from streamer.backends.http.client import access_of
from streamer.backends.http.index_page import may_be_shard
from streamer.core.errors import OptionError
from streamer.core.store.certificates import trust_in
from streamer.core.store.sources import ObjectInfo, PythonSource


def open_through_fsspec(uri: str, options: Mapping[str, Any], reason: str) -> FsspecStore:
    """Open the server of `uri` with fsspec's `HTTPFileSystem`."""
    own = with_guarded_sessions(HTTPFileSystem, uri, options)
    verify = own.pop("verify", None)
    if verify not in (None, True):
        own.setdefault("ssl", trust_in(access_of(uri, {"verify": verify}).ca_file or ""))
    snapshot = InstanceSnapshot()
    try:
        fs = HTTPFileSystem(**own)
    except (TypeError, ValueError) as error:
        raise OptionError(f"fsspec refuses the storage options: {type(error).__name__}") from None
    store = _ThroughFsspec(fs, uri, f"only fsspec supports the option {reason}: read through it")
    snapshot.forget_new(store, fs)
    return store


class _ThroughFsspec(FsspecStore):
    def __init__(self, fs: HTTPFileSystem, uri: str, remark: str) -> None:
        super().__init__(fs, uri, uri)
        self._remark = remark

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List as fsspec does, and request the sizes of shards, because an index page shows no exact sizes."""
        return [
            self.info(info.path) if info.size_bytes is None and may_be_shard(info.path) else info
            for info in super().find(prefix)
        ]

    def source(self, info: ObjectInfo) -> PythonSource:
        """Return the source of a file, with the remark."""
        return replace(super().source(info), remark=self._remark)
