"""``sqlite:///models.db/folder``: objects in a table ``objects(name TEXT PRIMARY KEY, data BLOB, version INTEGER)``."""

import sqlite3
from contextlib import closing

from streamer.plugins import ChangedError, ObjectInfo, ObjectNotFoundError, PythonSource, hookimpl


@hookimpl
def streamer_open_store(uri):
    return SqliteStore(uri)


@hookimpl
def streamer_source_kind():
    return PythonSource


class SqliteStore:
    def __init__(self, uri):
        file, suffix, name = uri.removeprefix("sqlite://").partition(".db/")
        self._file = file + suffix.rstrip("/")
        self.root = name.strip("/")

    def info(self, path):
        rows = self._rows("SELECT name, length(data), version FROM objects WHERE name = ?", path)
        if not rows:
            raise ObjectNotFoundError("The database holds no such object", uri=self._uri(path))
        return self._described(*rows[0])

    def find(self, prefix):
        folder = f"{prefix}/" if prefix else ""
        rows = self._rows(
            "SELECT name, length(data), version FROM objects WHERE substr(name, 1, length(?)) = ? ORDER BY name",
            folder,
            folder,
        )
        return [self._described(*row) for row in rows if "/" not in row[0][len(folder) :]]

    def source(self, info):
        def read_into(buffer, offset):
            data, version = self._piece(info, offset, len(buffer))
            check(version)
            buffer[: len(data)] = data
            return len(data)

        def check(version):
            if str(version) != info.version:
                raise ChangedError("The object was replaced while it was read", uri=info.uri)

        return PythonSource(read_into, confirm=lambda: check(self._piece(info, 0, 0)[1]))

    def close(self):
        pass

    def _piece(self, info, offset, length):
        # SQLite counts from 1. `data` and `version` come from one statement, so from one version of the row.
        rows = self._rows(
            "SELECT substr(data, ?, ?), version FROM objects WHERE name = ?", offset + 1, length, info.path
        )
        if not rows:
            raise ObjectNotFoundError("The object was deleted while it was read", uri=info.uri)
        return rows[0]

    def _rows(self, query, *values):
        # A connection belongs to one thread, and the engine reads from several: each statement opens its own.
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as connection:
            return connection.execute(query, values).fetchall()

    def _described(self, name, size, version):
        return ObjectInfo(name, self._uri(name), size_bytes=size, version=str(version))

    def _uri(self, name):
        return f"sqlite://{self._file}/{name}"
