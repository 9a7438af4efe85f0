"""Removes file systems that fsspec made for a load from fsspec's cache, which would keep them forever.

Guarantees: no file system is closed here. Other holders of a file system continue to read, and it closes itself when
the last holder is gone. Instances that were in the cache before stay there. Instances that were made with objects of
the caller (a connector, a login) stay, too: they might close these objects with themselves.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from fsspec import AbstractFileSystem

from streamer.backends.fsspec.http_sessions import GuardedSessions
from streamer.backends.fsspec.instances import INSTANCES, Instance
from streamer.backends.private_names.fsspec import forget_instance, kept_instances, vars_of
from streamer.backends.private_names.python import detach_finalizers

__all__ = ["InstanceSnapshot", "layers"]

_PLAIN = (str, bytes, int, float, type(None), PurePath)


class InstanceSnapshot:
    """The instances in fsspec's cache before a load opens its file system; later instances were made for the load."""

    def __init__(self) -> None:
        self._before = list(kept_instances())  # references, because a new instance may get the id of one that ended

    def forget_new(self, user: object, fs: AbstractFileSystem) -> None:
        """Remove `fs` and the file systems under it from fsspec's cache, some time after `user` is gone."""
        key = ("fsspec's", id(fs))
        if INSTANCES.use(user, key) is not None:  # made for an earlier load
            return
        before = {id(each) for each in self._before}
        new = [each for each in layers(fs) if id(each) not in before]
        options = [(vars_of(each).get("storage_args"), vars_of(each).get("storage_options")) for each in new]
        if new and new[0] is fs and _is_plain(options):
            INSTANCES.add(user, Instance(key, fs, lambda: _forget(new)))


def layers(fs: Any) -> Iterator[AbstractFileSystem]:
    """Yield a file system and those under it: the target of a cache, or the file system that holds an archive."""
    if not isinstance(fs, AbstractFileSystem):
        return
    yield fs
    own = vars_of(fs)
    yield from layers(own.get("fs"))
    yield from layers(getattr(own.get("of"), "fs", None))
    for each in (own.get("fss") or {}).values():
        if each is not fs:
            yield from layers(each)


def _is_plain(value: Any) -> bool:
    """Say whether options hold only plain values, and no object of the caller."""
    if isinstance(value, Mapping):
        return all(_is_plain(each) for each in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_plain(each) for each in value)
    if isinstance(value, GuardedSessions):
        return value.make is None
    return isinstance(value, _PLAIN) or _is_own_session(value)


def _is_own_session(value: Any) -> bool:
    module = sys.modules.get("streamer.backends.fsspec.aws_session")  # not imported here, because it needs s3fs
    return module is not None and isinstance(value, module.AsyncEnvironmentSession)


def _forget(instances: list[AbstractFileSystem]) -> None:
    for fs in instances:
        forget_instance(fs)
        if type(fs).__module__.partition(".")[0] == "adlfs":
            _close_with_itself(fs)


def _close_with_itself(fs: Any) -> None:
    """Replace adlfs's finalizers, which keep `fs` alive forever, by a finalizer that only holds its clients."""
    detach_finalizers(fs)
    clients = [client for client in (fs.service_client, fs.credential) if hasattr(client, "close")]
    weakref.finalize(fs, _close_all, fs.loop, clients)


def _close_all(loop: asyncio.AbstractEventLoop, clients: list[Any]) -> None:
    if loop.is_running():
        for client in clients:
            asyncio.run_coroutine_threadsafe(client.close(), loop)
