"""The file systems that backends make for loads: shared under equal options and credentials, closed when unneeded.

Guarantees: the last `IDLE_KEPT` that no load uses stay open, so that the next load with the same options finds their
session and connections; all others are closed, so that a thousand loads with a thousand credentials cost what a few
do. They are never in fsspec's own cache, and instances from there are neither used nor closed.
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

from streamer.backends.login_state import key_of, login_state
from streamer.backends.private_names.python import detach_finalizers
from streamer.core.secrets.options import SecretOptions, plain

__all__ = ["IDLE_KEPT", "INSTANCES", "Instance", "close_idle", "shared", "stop_sharing"]

# A job reads from a few storages in turn. Each costs a connection or two and half a megabyte; where s3fs is part of a
# chain of fsspec's, 14 MB.
IDLE_KEPT = 8


class Instance:
    """One file system, and the number of its users.

    Args:
        key: Equal for equal options; None for one that is not shared.
        fs: The file system.
        close: Closes it. Called once, by any thread, possibly from the garbage collector: it must not wait.
    """

    def __init__(self, key: Hashable | None, fs: AbstractFileSystem, close: Callable[[], None]) -> None:
        self.key, self.fs, self.close = key, fs, close
        self.users = 0
        self.process = os.getpid()


class Instances:
    """Counts the users of each file system, and closes file systems without users.

    A finalizer releases a user. It runs wherever the garbage collector does, even in a thread that holds the lock of
    this class: it takes the lock only if that is free, and otherwise leaves the work to the thread that holds it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[Hashable, Instance] = {}  # those without users in the order in which they lost their last
        self._released: deque[Instance] = deque()  # once for each user that is gone

    def use(self, user: object, key: Hashable | None) -> Instance | None:
        """Add a user to the instance with this key; return None where there is none."""
        with self._lock:
            instance = None if key is None else self._shared.get(key)
            if instance is not None:
                instance.users += 1
        self._close_unused()
        return instance and self._released_with(user, instance)

    def add(self, user: object, new: Instance) -> Instance:
        """Add an instance with its first user; return the one to use, as another thread may have added one before."""
        with self._lock:
            instance = new if new.key is None else self._shared.setdefault(new.key, new)
            instance.users += 1
        if instance is not new:
            new.close()
        self._close_unused()
        return self._released_with(user, instance)

    def stop_sharing(self, fs: AbstractFileSystem) -> None:
        """Give this file system to no other user; it is closed with its last one."""
        with self._lock:
            removed = [instance for instance in self._shared.values() if instance.fs is fs]
            for instance in removed:
                del self._shared[instance.key]
        for instance in removed:
            if not instance.users:
                instance.close()

    def close_idle(self, kept: int = 0) -> None:
        """Close all instances without users but the last `kept`."""
        with self._lock:
            unused = self._remove_unused(kept)
        for instance in unused:
            instance.close()
        self._close_unused()

    def leave_to_parent(self) -> None:
        """Forget all instances in a forked child: the loops that could close them run in the parent alone."""
        _of_parents.append(self._shared)
        self.__init__()  # type: ignore[misc]

    def _released_with(self, user: object, instance: Instance) -> Instance:
        weakref.finalize(user, self._release, instance).atexit = False
        return instance

    def _release(self, instance: Instance) -> None:
        if instance.process != os.getpid():
            _of_parents.append(instance)
            return
        self._released.append(instance)
        self._close_unused()

    def _close_unused(self) -> None:
        while self._released and self._lock.acquire(blocking=False):
            try:
                unused = self._remove_unused(IDLE_KEPT)
            finally:
                self._lock.release()
            for instance in unused:
                instance.close()

    def _remove_unused(self, kept: int) -> list[Instance]:
        """Count the released users, and return the instances to close; needs the lock."""
        unused: list[Instance] = []
        while self._released:
            instance = self._released.popleft()
            instance.users -= 1
            if instance.users:
                continue
            if self._shared.get(instance.key) is instance:
                self._shared[instance.key] = self._shared.pop(instance.key)  # now the last in the order
            else:  # shared no more, or never
                unused.append(instance)
        idle = [instance for instance in self._shared.values() if not instance.users]
        for instance in idle[: max(0, len(idle) - kept)]:
            del self._shared[instance.key]
            unused.append(instance)
        return unused


INSTANCES = Instances()
_of_parents: list[object] = []  # kept for ever, so that the garbage collector closes none of them in a child


def _leave_to_parent() -> None:
    INSTANCES.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def shared(
    user: object,
    cls: type[AbstractFileSystem],
    options: Mapping[str, Any],
    close: Callable[[Any], Coroutine[Any, Any, None]],
) -> Any:
    """Return the file system with these options, and the credentials of this moment, for as long as `user` lives.

    Args:
        user: The object that holds the file system.
        cls: Its class, one with an event loop.
        options: Its arguments. With ``skip_instance_cache`` it is not shared.
        close: Closes its connections, on its loop; the file system is not used again.

    Raises:
        Exception: what `cls` raises.
    """
    own = SecretOptions(options)
    key = None if own.pop("skip_instance_cache", False) else _Key(cls, key_of(own), login_state())
    instance = INSTANCES.use(user, key)
    if instance is None:
        fs = cls(**plain(own), skip_instance_cache=True)
        instance = INSTANCES.add(user, Instance(key, fs, lambda: _close_on_loop(fs, close)))
    return instance.fs


def stop_sharing(fs: AbstractFileSystem) -> None:
    """Make the next load with the same options use a new file system."""
    INSTANCES.stop_sharing(fs)


def close_idle() -> None:
    """Close every file system that no load uses."""
    INSTANCES.close_idle()


def _close_on_loop(fs: Any, close: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Close a file system on its own event loop, without waiting for it."""
    detach_finalizers(fs)  # s3fs's would close it again, and wait for that in the thread of the garbage collector
    if fs.loop is not None and fs.loop.is_running():
        asyncio.run_coroutine_threadsafe(_close_quietly(close, fs), fs.loop)


async def _close_quietly(close: Callable[[Any], Coroutine[Any, Any, None]], fs: Any) -> None:
    with suppress(Exception):  # a connection that cannot be closed is closed
        await close(fs)


@dataclass(frozen=True)
class _Key:
    """Equal for equal options and credentials, which its `repr` does not show."""

    cls: type[AbstractFileSystem]
    options: Hashable = field(repr=False)
    login: Hashable = field(repr=False)
