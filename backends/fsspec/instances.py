"""The file systems that loads make for themselves: shared under equal options, closed when no load needs them.

Guarantees: of those that nobody needs any more the last `IDLE_KEPT` stay, so that the next load with the same options
finds its session and connections; all others are closed, so that a thousand loads with a thousand credentials cost
what a few do. They are never in fsspec's own cache, and what is there is neither taken nor closed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fsspec import AbstractFileSystem

from streamer.backends.private_names.python import detach_finalizers
from streamer.core.secrets.options import SecretOptions, plain

__all__ = ["IDLE_KEPT", "INSTANCES", "Instance", "close_idle", "give_up", "shared"]

# A job reads from a few storages in turn. Each costs a connection or two and half a megabyte; where s3fs is part of a
# chain of fsspec's, 14 MB.
IDLE_KEPT = 8


class Instance:
    """One file system of ours.

    Args:
        key: Equal for equal options; None for one that is not to be shared.
        fs: The file system.
        end: Lets go of it. Called once, by any thread, in the middle of anything: it must not wait.
    """

    def __init__(self, key: Hashable | None, fs: AbstractFileSystem, end: Callable[[], None]) -> None:
        self.key, self.fs, self.end = key, fs, end
        self.users = 0
        self.process = os.getpid()


class Instances:
    """Counts who uses which file system, and ends those that nobody does.

    A user is let go of by a finalizer, which runs wherever the garbage collector does, even in a thread that is inside
    of this class: it takes the lock only if that is free, and else leaves its work to who has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Hashable, Instance] = {}  # those without users in the order in which they lost their last
        self._left: deque[Instance] = deque()  # once for each user that is gone

    def use(self, user: object, key: Hashable | None) -> Instance | None:
        """Count one more user of a known instance."""
        with self._lock:
            found = None if key is None else self._known.get(key)
            if found is not None:
                found.users += 1
        self._tidy()
        return found and self._watched(user, found)

    def add(self, user: object, made: Instance) -> Instance:
        """Make an instance known, unless another thread was quicker; return the one that is used."""
        with self._lock:
            found = made if made.key is None else self._known.setdefault(made.key, made)
            found.users += 1
        if found is not made:
            made.end()
        self._tidy()
        return self._watched(user, found)

    def give_up(self, fs: AbstractFileSystem) -> None:
        """Share this one no more; it ends with its last user."""
        with self._lock:
            given_up = [made for made in self._known.values() if made.fs is fs]
            for made in given_up:
                del self._known[made.key]
        for made in given_up:
            if not made.users:
                made.end()

    def end_idle(self, kept: int = 0) -> None:
        """End all that nobody uses but the last `kept`."""
        with self._lock:
            ended = self._settled(kept)
        for made in ended:
            made.end()
        self._tidy()

    def _watched(self, user: object, made: Instance) -> Instance:
        weakref.finalize(user, self._let_go, made).atexit = False
        return made

    def _let_go(self, made: Instance) -> None:
        if made.process != os.getpid():
            _parents.append(made)
            return
        self._left.append(made)
        self._tidy()

    def _tidy(self) -> None:
        while self._left and self._lock.acquire(blocking=False):
            try:
                ended = self._settled(IDLE_KEPT)
            finally:
                self._lock.release()
            for made in ended:
                made.end()

    def _settled(self, kept: int) -> list[Instance]:
        ended: list[Instance] = []
        while self._left:
            made = self._left.popleft()
            made.users -= 1
            if made.users:
                continue
            if self._known.get(made.key) is made:
                self._known[made.key] = self._known.pop(made.key)
            else:  # given up meanwhile, or never shared
                ended.append(made)
        idle = [made for made in self._known.values() if not made.users]
        for made in idle[: max(0, len(idle) - kept)]:
            del self._known[made.key]
            ended.append(made)
        return ended

    def leave_to_parent(self) -> None:
        """In a forked child: what the parent made is never closed, as the loop that could do it runs in the parent."""
        _parents.append(self._known)
        self.__init__()  # type: ignore[misc]


INSTANCES = Instances()
_parents: list[object] = []
os.register_at_fork(after_in_child=INSTANCES.leave_to_parent)


def shared(
    user: object,
    cls: type[AbstractFileSystem],
    options: Mapping[str, Any],
    close: Callable[[Any], Coroutine[Any, Any, None]],
) -> Any:
    """Give the file system of these options, for as long as `user` lives.

    Args:
        user: Whoever holds the file system.
        cls: Its class, one with an event loop.
        options: Its arguments. With ``skip_instance_cache`` it is shared with nobody.
        close: Closes its connections, on its loop; the file system is not used again.

    Raises:
        Exception: what `cls` raises.
    """
    wanted = SecretOptions(options)
    key = None if wanted.pop("skip_instance_cache", False) else _Key(cls, _key_of(wanted))
    found = INSTANCES.use(user, key)
    if found is None:
        fs = cls(**plain(wanted), skip_instance_cache=True)
        found = INSTANCES.add(user, Instance(key, fs, lambda: _close_on_loop(fs, close)))
    return found.fs


def give_up(fs: AbstractFileSystem) -> None:
    """Let the next load make another one."""
    INSTANCES.give_up(fs)


def close_idle() -> None:
    """Close every file system that no load needs."""
    INSTANCES.end_idle()


def _close_on_loop(fs: Any, close: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Close a file system on its own event loop, without waiting for that."""
    detach_finalizers(fs)  # s3fs would close once more, and wait for it in whatever thread collects garbage
    if fs.loop is not None and fs.loop.is_running():
        asyncio.run_coroutine_threadsafe(_quietly(close, fs), fs.loop)


async def _quietly(close: Callable[[Any], Coroutine[Any, Any, None]], fs: Any) -> None:
    with suppress(Exception):  # a connection that cannot be closed is closed
        await close(fs)


@dataclass(frozen=True)
class _Key:
    """Equal for equal options, which it does not show."""

    cls: type[AbstractFileSystem]
    options: Hashable = field(repr=False)


def _key_of(value: Any) -> Hashable:
    """Plain values by what they are, all others (credentials, sessions) by whether they are the same.

    fsspec takes the text of an object for it, and two logins may look alike.
    """
    if isinstance(value, Mapping):
        return ("mapping", frozenset((name, _key_of(each)) for name, each in value.items()))
    if isinstance(value, (list, tuple)):
        return ("sequence", tuple(_key_of(each) for each in value))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))  # which the file system holds, so that no other gets its number
    return (type(value), value)
