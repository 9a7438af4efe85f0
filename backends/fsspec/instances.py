"""The file systems that backends make for loads: shared by equal options and credentials, closed when unused.

Guarantees: the last `IDLE_KEPT` file systems that no load uses stay open, so that the next load with the same options
reuses their session and connections. All other unused ones are closed, so that a thousand loads with a thousand
credentials cost as much as a few. These file systems are never in fsspec's own cache, and instances of that cache are
neither used nor closed by this module.

File systems that fsspec made for a load are removed from its cache, which would keep them forever. None is closed here:
other holders of a file system continue to read, and it closes itself when the last holder is gone. Instances that were
in the cache before stay there. Instances that were made with objects of the caller (a connector, a login) stay, too:
when they close themselves, they might close these objects, too.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from fsspec import AbstractFileSystem

from streamer.backends.fsspec.http_sessions import GuardedSessions
from streamer.backends.login_state import key_of, login_state
from streamer.backends.private_names.fsspec import forget_instance, kept_instances, vars_of
from streamer.backends.private_names.python import detach_finalizers
from streamer.core.imported import if_imported

# A job reads from a few storages in turn. Each file system costs one or two connections and half a megabyte; s3fs in a
# chain of fsspec costs 14 MB.
IDLE_KEPT = 8

_PLAIN = (str, bytes, int, float, type(None), PurePath)


class Instance:
    """One file system, and the number of its users; `close` must not wait, as the garbage collector may call it."""

    def __init__(self, key: Hashable | None, fs: AbstractFileSystem, close: Callable[[], None]) -> None:
        self.key, self.fs, self.close = key, fs, close
        self.users = 0
        self.process = os.getpid()


class Instances:
    """Counts the users of each file system, and closes file systems without users.

    A finalizer releases a user. The garbage collector may run it in any thread, even in the thread that holds the lock
    of this class. So the finalizer takes the lock only if it is free, and otherwise leaves the work to its holder.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[Hashable, Instance] = {}  # unused instances in the order of losing their last user
        self._released: deque[Instance] = deque()  # one entry for each user that is gone

    def use(self, user: object, key: Hashable | None) -> Instance | None:
        """Add a user to the instance with this key; return None if there is no such instance."""
        with self._lock:
            instance = None if key is None else self._shared.get(key)
            if instance is not None:
                instance.users += 1
        self._close_unused()
        return instance and self._released_with(user, instance)

    def add(self, user: object, new: Instance) -> Instance:
        """Add an instance with its first user; return the instance to use: another thread may have added one before."""
        with self._lock:
            instance = new if new.key is None else self._shared.setdefault(new.key, new)
            instance.users += 1
        if instance is not new:
            new.close()
        self._close_unused()
        return self._released_with(user, instance)

    def stop_sharing(self, fs: AbstractFileSystem) -> None:
        """Share this file system with no further user; it is closed with its last user."""
        with self._lock:
            removed = [instance for instance in self._shared.values() if instance.fs is fs]
            for instance in removed:
                del self._shared[instance.key]
        for instance in removed:
            if not instance.users:
                instance.close()

    def close_idle(self, kept: int = 0) -> None:
        """Close all instances without users, except the last `kept`."""
        with self._lock:
            unused = self._remove_unused(kept)
        for instance in unused:
            instance.close()
        self._close_unused()

    def leave_to_parent(self) -> None:
        """Forget all instances in a forked child: the loops that could close them run only in the parent."""
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
        """Subtract the released users from the counts, and return the instances to close; needs the lock."""
        unused: list[Instance] = []
        while self._released:
            instance = self._released.popleft()
            instance.users -= 1
            if instance.users:
                continue
            if self._shared.get(instance.key) is instance:
                self._shared[instance.key] = self._shared.pop(instance.key)  # now the last in the order
            else:  # no longer shared, or never shared
                unused.append(instance)
        idle = [instance for instance in self._shared.values() if not instance.users]
        for instance in idle[: max(0, len(idle) - kept)]:
            del self._shared[instance.key]
            unused.append(instance)
        return unused


INSTANCES = Instances()
# File systems that a forked child inherited; kept forever, so that the garbage collector of the child closes none.
_of_parents: list[object] = []


def _leave_to_parent() -> None:
    INSTANCES.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def shared(
    user: object,
    cls: type[AbstractFileSystem],
    options: Mapping[str, Any],
    close: Callable[[Any], Coroutine[Any, Any, None]],
) -> Any:
    """Return the file system with these options and the current credentials, for as long as `user` lives."""
    own = dict(options)
    key = None if own.pop("skip_instance_cache", False) else _Key(cls, key_of(own), login_state())
    instance = INSTANCES.use(user, key)
    if instance is None:
        fs = cls(**own, skip_instance_cache=True)
        instance = INSTANCES.add(user, Instance(key, fs, lambda: _close_on_loop(fs, close)))
    return instance.fs


def stop_sharing(fs: AbstractFileSystem) -> None:
    """Make the next load with the same options use a new file system."""
    INSTANCES.stop_sharing(fs)


def close_idle() -> None:
    """Close every file system that no load uses."""
    INSTANCES.close_idle()


def _close_on_loop(fs: Any, close: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Close a file system on its own event loop, without waiting until it is closed."""
    detach_finalizers(fs)  # s3fs's finalizer would close it again, and wait in the thread of the garbage collector
    if fs.loop is not None and fs.loop.is_running():
        asyncio.run_coroutine_threadsafe(_close_quietly(close, fs), fs.loop)


async def _close_quietly(close: Callable[[Any], Coroutine[Any, Any, None]], fs: Any) -> None:
    with suppress(Exception):  # if closing fails, the connection is gone anyway
        await close(fs)


@dataclass(frozen=True)
class _Key:
    """Equal for equal options and credentials; its `repr` shows neither."""

    cls: type[AbstractFileSystem]
    options: Hashable = field(repr=False)
    login: Hashable = field(repr=False)


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
    module = if_imported("streamer.backends.fsspec.aws_session")  # not imported here, because it needs s3fs
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
