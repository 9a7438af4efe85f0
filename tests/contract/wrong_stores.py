"""A plug-in whose stores are wrong, each in one way: ``shelf://Kind/folder/name``.

The objects are this process's own, and have versions.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from dataclasses import replace

from streamer.plugins import (
    ChangedError,
    HttpSource,
    ObjectDigest,
    ObjectInfo,
    ObjectNotFoundError,
    PartDigest,
    PythonSource,
    hookimpl,
)

OBJECTS = {}  # path to (data, version)
VERSIONS = itertools.count()
NEVER = threading.Event()


@hookimpl
def streamer_open_store(uri, storage_options):
    kind, _, root = uri.removeprefix("shelf://").partition("/")
    return globals()[kind](kind, root, storage_options)


class Right:
    """The store that is not wrong."""

    def __init__(self, kind, root, options):
        self.kind, self.root, self.options = kind, root, options

    def info(self, path):
        if path not in OBJECTS:
            raise ObjectNotFoundError("The shelf holds no such object", uri=self.uri(path))
        data, version = OBJECTS[path]
        return ObjectInfo(path, self.uri(path), len(data), version)

    def find(self, prefix):
        return [self.info(path) for path in sorted(OBJECTS) if path.rpartition("/")[0] == prefix]

    def source(self, info):
        def read_into(buffer, offset):
            data = self.data(info)[offset : offset + len(buffer)]
            buffer[: len(data)] = data
            return len(data)

        return PythonSource(read_into, confirm=lambda: self.data(info) and None)

    def close(self):
        pass

    def data(self, info):
        data, version = OBJECTS.get(info.path, (b"", None))
        if version != info.version:
            raise ChangedError("The object was replaced", uri=info.uri)
        return data

    def uri(self, path):
        return f"shelf://{self.kind}/{path}"


class UnknownSizes(Right):
    """Right as well: a listing need not tell sizes, and need not be a list."""

    def find(self, prefix):
        return (replace(info, size_bytes=None) for info in super().find(prefix))


class CloseKills(Right):
    is_closed = False

    def close(self):
        self.is_closed = True

    def data(self, info):
        if self.is_closed:
            raise RuntimeError("the connection is closed")
        return super().data(info)


class CloseRaises(Right):
    def close(self):
        raise RuntimeError("nothing to close")


class RecursiveFind(Right):
    def find(self, prefix):
        return [self.info(path) for path in sorted(OBJECTS) if path.startswith(f"{prefix}/")]


class UnsortedFind(Right):
    def find(self, prefix):
        return super().find(prefix)[::-1]


class StaleFind(Right):
    kept = None

    def find(self, prefix):
        self.kept = self.kept or super().find(prefix)
        return self.kept


class AbsentFolderRaises(Right):
    def find(self, prefix):
        if not (listed := super().find(prefix)):
            raise LookupError(prefix)
        return listed


class EndlessFind(Right):
    def find(self, prefix):
        return (ObjectInfo(f"{prefix}/{number}.bin", "", 1) for number in itertools.count())


class ShortReads(Right):
    def source(self, info):
        def read_into(buffer, offset):
            data = self.data(info)[offset : offset + min(len(buffer), 1000)]
            buffer[: len(data)] = data
            return len(data)

        return PythonSource(read_into)


class WrongOffset(Right):
    def source(self, info):
        read_into = super().source(info).read_into
        return PythonSource(lambda buffer, offset: read_into(buffer, offset and offset - 1))


class WrongSize(Right):
    def info(self, path):
        info = super().info(path)
        return replace(info, size_bytes=info.size_bytes - 1)


class OtherBytes(Right):
    """Reads what is there now, whichever version was opened."""

    def data(self, info):
        return OBJECTS[info.path][0]


class ConstantVersion(OtherBytes):
    def info(self, path):
        return replace(super().info(path), version="1")


class RestlessVersion(Right):
    def info(self, path):
        return replace(super().info(path), version=str(time.monotonic_ns()))


class MutableVersion(Right):
    def info(self, path):
        return replace(super().info(path), version=[1])


class HangingRead(Right):
    def source(self, info):
        return PythonSource(lambda buffer, offset: NEVER.wait() or 0)


class StrangeError(BaseException):
    """As pyo3 raises where Rust panics."""


class StrangeExceptions(Right):
    def info(self, path):
        if path not in OBJECTS:
            raise StrangeError
        return super().info(path)


class FolderIsObject(Right):
    def info(self, path):
        return super().info(path) if path in OBJECTS else ObjectInfo(path, self.uri(path), 0)


class LineEndInHeader(Right):
    def source(self, info):
        return HttpSource("http://127.0.0.1:9/", {"Authorization": "Bearer x\r\nX-Evil: 1"})


class KeepsBuffer(Right):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.kept = []

    def source(self, info):
        read_into = super().source(info).read_into
        return PythonSource(lambda buffer, offset: self.kept.append(buffer[:1]) or read_into(buffer, offset))


class ReturnsNothing(Right):
    def source(self, info):
        read_into = super().source(info).read_into
        return PythonSource(lambda buffer, offset: read_into(buffer, offset) and None)


class SharedPosition(Right):
    """One position for all threads, as a file object has."""

    position = 0

    def source(self, info):
        def read_into(buffer, offset):
            type(self).position = offset
            time.sleep(0.001)
            begin = type(self).position
            data = self.data(info)[begin : begin + len(buffer)].ljust(len(buffer))
            buffer[:] = data
            return len(data)

        return PythonSource(read_into)


class WrongDigest(Right):
    def digest(self, info):
        value = hashlib.md5(self.data(info)[:-1], usedforsecurity=False).hexdigest()
        return ObjectDigest("md5", (PartDigest(info.size_bytes, value),))


class ShowsSecret(Right):
    def __repr__(self):
        return f"ShowsSecret({self.options})"
