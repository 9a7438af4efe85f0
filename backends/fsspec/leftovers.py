"""File systems that fsspec makes for a load and would keep for ever: taken out of its cache when no load needs them.

Guarantees: nothing is closed here: whoever else holds such a file system reads on, and it closes itself when nobody
does. What fsspec kept before, and what was made with objects of the caller's (a connector, a login), which it might
close with itself, stays where it is.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from fsspec import AbstractFileSystem

from streamer.backends.fsspec.http_sessions import GuardedSessions
from streamer.backends.fsspec.instances import INSTANCES, Instance
from streamer.backends.private_names.fsspec import forget_instance, kept_instances, vars_of
from streamer.backends.private_names.python import detach_finalizers

__all__ = ["Leftovers"]

_PLAIN = (str, bytes, int, float, type(None), PurePath)


class Leftovers:
    """Made before a file system is opened: what fsspec keeps afterwards and did not before was made for the load."""

    def __init__(self) -> None:
        self._before = list(kept_instances())  # themselves, so that no other gets the number of one that ends meanwhile

    def forget_after(self, user: object, fs: AbstractFileSystem) -> None:
        """Take `fs`, and what it reads through, out of fsspec's cache some time after `user` is gone."""
        key = ("fsspec's", id(fs))
        if INSTANCES.use(user, key) is not None:  # an earlier load's
            return
        before = {id(each) for each in self._before}
        made = [each for each in _parts(fs) if id(each) not in before]
        options = [(vars_of(each).get("storage_args"), vars_of(each).get("storage_options")) for each in made]
        if made and made[0] is fs and _is_plain(options):
            INSTANCES.add(user, Instance(key, fs, lambda: _forget(made)))


def _parts(fs: Any) -> Iterator[AbstractFileSystem]:
    """Give a file system and those it was made of: the target of a cache, what an archive lies in."""
    if not isinstance(fs, AbstractFileSystem):
        return
    yield fs
    own = vars_of(fs)
    yield from _parts(own.get("fs"))
    yield from _parts(getattr(own.get("of"), "fs", None))
    for each in (own.get("fss") or {}).values():
        if each is not fs:
            yield from _parts(each)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(each) for each in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_plain(each) for each in value)
    if isinstance(value, GuardedSessions):
        return value.make is None
    return isinstance(value, _PLAIN)


def _forget(made: list[AbstractFileSystem]) -> None:
    for fs in made:
        forget_instance(fs)
        if type(fs).__module__.partition(".")[0] == "adlfs":
            _let_go_of_itself(fs)


def _let_go_of_itself(fs: Any) -> None:
    """Put a finalizer that names its clients in the place of adlfs's, which name `fs`, so that it would never end."""
    detach_finalizers(fs)
    held = [client for client in (fs.service_client, fs.credential) if hasattr(client, "close")]
    weakref.finalize(fs, _close_all, fs.loop, held)


def _close_all(loop: asyncio.AbstractEventLoop, clients: list[Any]) -> None:
    if loop.is_running():
        for client in clients:
            asyncio.run_coroutine_threadsafe(client.close(), loop)  # of these, each is a coroutine
