"""The folder of a cache: a sub-folder for each object, which processes lock while they use it.

Guarantees: only this user can read or write it; a folder that is another user's, or that others may write, is refused.
An object that is in use, by any process, is never removed. What a killed process leaves behind is removed by the next
one that makes room.

Two objects have one name only if what decides their bytes is the same: URL with its query, endpoint, login and headers,
version and size. So what the cache holds is not stale. Refused are objects whose version does not name their bytes:
without one, or with one that is weak (`core/store/versions.py`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import StorageError
from streamer.core.folders.drafts import NO_LOCKS, draft_of, locked_folder
from streamer.core.store.sources import FileSource, HttpSource, PythonSource


@dataclass(frozen=True)
class Identity:
    """What is cached."""

    uri: str  # the URI, without secrets, to be shown; with the whole name of the object
    server: str  # the server, as the store names it
    version: str  # the object's version, as the store describes it
    size_bytes: int  # size of the object
    # The object's `SourceObject.identity`, salted with a secret of the cache, so that nobody can guess logins and
    # queries by the name of a folder
    object: str = ""

    @property
    def key(self) -> str:
        """The name of its folder.

        Example:
            >>> Identity("s3://b/k", "https://s3.example.com", '"1"', 4, "0a").key[:8]
            '24915fac'
        """
        text = json.dumps([self.server, self.version, self.size_bytes, self.object])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def identity_of(source_object: SourceObject, salt: bytes) -> Identity:
    """Return the identity of an object that is cached."""
    source = source_object.source
    host = urlsplit(source.url).netloc.rpartition("@")[2] if isinstance(source, HttpSource) else ""
    server = source_object.server or host
    version = source_object.stored_version or ""
    salted = hmac.new(salt, source_object.identity.encode(), "sha256").hexdigest()
    return Identity(source_object.name or source_object.uri, server, version, source_object.size_bytes, salted)


def digest_of(source_object: SourceObject) -> str:
    """Return a digest of what decides the bytes of an object, the same on every machine.

    It is not salted, so it lies only in the folder of this user; other machines get what `core/peers` makes of it.
    """
    return identity_of(source_object, b"").key


def why_not_cached(source_object: SourceObject) -> str | None:
    """Say why an object is not cached; "" if the reason need not be reported, None if the object is cached."""
    source, version = source_object.source, source_object.stored_version
    if isinstance(source, FileSource) or source_object.size_bytes == 0:
        return ""
    if isinstance(source, PythonSource):
        return "it is read through Python"
    if version is None:
        return "its storage gives no version"
    if not source_object.identity:
        return "its login is an object of this process, so another process cannot tell whether it is the same"
    # Under any other header, or none, the URL itself names the version, or holds a condition.
    headers = ("ETag", "Last-Modified")
    if isinstance(source, HttpSource) and source.version is None and source.version_header in headers:
        return "its storage gives no version with its address"
    if not source_object.is_settled:
        return "its server gives only a weak ETag, which other bytes may have, too"
    return None


FORMAT = "v1"  # version of the journals and of this layout; each version has a folder of its own
PRIVATE = 0o700
DESCRIPTION = "object.json"
SALT, SALT_BYTES = "salt", 32
JOURNAL, DATA = "journal", "data"
DIGEST = "digest"  # `digest_of` the object, for peers
_KEY = re.compile(r"[0-9a-f]{40}")
_DEAD = ".removed-"
# Backup programs leave such folders out: https://bford.info/cachedir/
_TAG = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# The cache of streamer; safe to remove.\n"


@dataclass(frozen=True)
class Held:
    """An object in the cache."""

    key: str  # the name of its folder
    identity: Identity | None  # what the object is; None if its description is missing or damaged
    disk_bytes: int  # bytes that the object occupies on the disk
    used_at: float  # unix time when the object was last used


class Lock:
    """A lock of an object's folder, held until the process ends or this object is deleted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)


class CacheFolder:
    """One cache on the disk; `opened` creates this object.

    Attributes:
        path: The folder as the user named it, as an absolute path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._objects = os.path.join(path, FORMAT)

    @classmethod
    def opened(cls, path: str, *, makes: bool = True) -> CacheFolder:
        """Open the folder of a cache."""
        folder = cls(absolute_path(path))
        if makes:
            with suppress(FileExistsError):
                os.makedirs(folder.path, PRIVATE)
        _check_private(folder.path)
        if makes:
            with suppress(FileExistsError, PermissionError):
                os.mkdir(folder._objects, PRIVATE)
                with draft_of(os.path.join(folder.path, _TAG), is_flushed=False) as draft, open(draft, "x") as file:
                    file.write(_SIGNATURE)
        if os.path.lexists(folder._objects):
            _check_private(folder._objects)
        return folder

    def salt(self) -> bytes:
        """Return the secret of this cache, which only this user can read; the first process makes it."""
        path = os.path.join(self.path, SALT)
        salt = _read_salt(path)
        if salt is None:
            with locked_folder(self.path):  # another process may make it at the same time
                salt = _read_salt(path)
                if salt is None:
                    salt = secrets.token_bytes(SALT_BYTES)
                    with draft_of(path, is_flushed=False) as draft, open(draft, "xb", opener=_privately) as file:
                        file.write(salt)
        return salt

    def folder_of(self, identity: Identity) -> str:
        """Return the path of an object's folder, whether or not the folder exists."""
        return os.path.join(self._objects, identity.key)

    def has(self, identity: Identity) -> bool:
        """Whether the object has a folder."""
        return os.path.isdir(self.folder_of(identity))

    def use(self, identity: Identity, digest: str = "") -> tuple[str, Lock]:
        """Make the folder of an object if it is missing, and lock it against removal; note the `digest_of` it."""
        path = self.folder_of(identity)
        while True:
            with suppress(FileExistsError):
                os.mkdir(path, PRIVATE)
            lock = _locked(path, fcntl.LOCK_SH)
            if lock is not None:
                break  # else another process removed the folder between the two calls
        with suppress(OSError):  # the cache may be read-only
            self._describe(path, identity)
            if digest and not os.path.exists(os.path.join(path, DIGEST)):
                with draft_of(os.path.join(path, DIGEST), is_flushed=False) as draft, open(draft, "x") as file:
                    file.write(digest)
        return path, lock

    def digests(self) -> dict[str, str]:
        """Return the path of each object's folder by its `digest_of`; an object without one is left out."""
        found = {}
        for key in self._keys():
            path = os.path.join(self._objects, key)
            with suppress(OSError), open(os.path.join(path, DIGEST)) as file:
                found[file.read(len(key))] = path
        return found

    def held(self) -> list[Held]:
        """List the objects; the most recently used one comes last."""
        return sorted((self._held(key) for key in self._keys()), key=lambda each: each.used_at)

    def is_used(self, key: str) -> bool:
        """Whether a process uses an object."""
        return self._locked_alone(key) is None

    def remove(self, key: str) -> bool:
        """Remove an object, unless a process uses it; say whether it was removed."""
        path, lock = os.path.join(self._objects, key), self._locked_alone(key)
        if lock is None:
            return False
        dead = os.path.join(self._objects, f"{_DEAD}{secrets.token_hex(8)}")
        os.rename(path, dead)  # in one step, so no process finds half of the object
        shutil.rmtree(dead, ignore_errors=True)
        return True

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """Keep other processes from making room at the same time; first remove what a killed process left."""
        with locked_folder(self._objects):
            for name in os.listdir(self._objects):
                if name.startswith(_DEAD):
                    shutil.rmtree(os.path.join(self._objects, name), ignore_errors=True)
            yield

    def free_bytes(self) -> int:
        """Return what this user may still write on the disk."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def _locked_alone(self, key: str) -> Lock | None:
        try:
            return _locked(os.path.join(self._objects, key), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):
            return None

    def _keys(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._objects) if _KEY.fullmatch(name)]
        except FileNotFoundError:
            return []

    def _held(self, key: str) -> Held:
        path = os.path.join(self._objects, key)
        description = os.path.join(path, DESCRIPTION)
        used_at, identity = 0.0, None
        with suppress(OSError, ValueError, TypeError):
            used_at = os.stat(description).st_mtime
            with open(description, encoding="utf-8") as file:
                identity = Identity(**json.load(file))
        return Held(key, identity, _disk_bytes(path), used_at)

    def _describe(self, path: str, identity: Identity) -> None:
        """Note what the object is, and that it is used now."""
        description = os.path.join(path, DESCRIPTION)
        try:
            os.utime(description)
        except FileNotFoundError:
            with draft_of(description, is_flushed=False) as draft, open(draft, "x", encoding="utf-8") as file:
                json.dump(asdict(identity), file)


def absolute_path(path: str) -> str:
    """Return the path of a cache as every process of this user sees it; ``~`` is the home of this user."""
    return os.path.abspath(os.path.expanduser(path))


def _locked(path: str, operation: int) -> Lock | None:
    """Lock a folder; None if the folder was removed or replaced meanwhile."""
    lock = Lock(descriptor := os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW))
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        # Without locks, objects can be used, but are never removed automatically.
        if isinstance(error, BlockingIOError) or error.errno not in NO_LOCKS or operation & fcntl.LOCK_EX:
            raise BlockingIOError(error.errno, "in use, or without locks") from error
    try:
        is_same = os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return None
    return lock if is_same else None


def _read_salt(path: str) -> bytes | None:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        salt = file.read()
        return salt if len(salt) == SALT_BYTES else None  # else a crash of the machine left it
    return None


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _check_private(path: str) -> None:
    status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
    if status.st_uid != os.geteuid():
        raise StorageError("the folder of the cache belongs to another user", uri=path, hint="Name one of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StorageError(
            "other users may write the folder of the cache", uri=path, hint=f"Name another one, or: chmod go-w {path}"
        )


def _disk_bytes(path: str) -> int:
    total = 0
    for name in (DATA, JOURNAL):
        with suppress(OSError):
            total += os.stat(os.path.join(path, name)).st_blocks * 512
    return total
