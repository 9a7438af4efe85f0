"""The SQLite storage shows the behaviour of the contract."""

import sqlite3
from contextlib import closing

import pytest

from streamer.plugins.contract import BackendContract


class TestSqlite(BackendContract):
    @pytest.fixture(autouse=True)
    def _database(self, tmp_path):
        self.file = tmp_path / "models.db"
        self.folder_uri = f"sqlite://{self.file}"
        self.change("CREATE TABLE objects(name TEXT PRIMARY KEY, data BLOB, version INTEGER)")

    def put(self, name, data):
        self.change("INSERT OR REPLACE INTO objects SELECT ?, ?, 1 + ifnull(max(version), 0) FROM objects", name, data)

    def delete(self, name):
        self.change("DELETE FROM objects WHERE name = ?", name)

    def change(self, query, *values):
        with closing(sqlite3.connect(self.file)) as connection, connection:
            connection.execute(query, values)
