"""How the backends' tables of errors are read."""

from __future__ import annotations

import errno
import ssl
from types import SimpleNamespace

from streamer.backends.client.error_rows import ErrorRow, row_for
from streamer.core.engine.native_errors import error_from_native
from streamer.core.errors import ConnectError, StorageError, TlsError, UsageError

TABLE = {
    (FileNotFoundError,): ErrorRow(StorageError, "first", "look"),
    (OSError, KeyError): ErrorRow(ConnectError, "second", "hint"),
}


def test_the_first_row_that_matches_counts():
    assert row_for(FileNotFoundError(), TABLE) == ErrorRow(StorageError, "first", "look")
    assert row_for(KeyError(), TABLE) == row_for(PermissionError(), TABLE) == ErrorRow(ConnectError, "second", "hint")
    assert row_for(ValueError(), TABLE) is None
    assert row_for(None, TABLE) is None


def test_a_handshake_with_a_server_without_tls_has_a_hint_of_its_own():
    table = {(ConnectionError,): ErrorRow(TlsError, "handshake", "check the CA")}
    failure = ConnectionError()
    assert row_for(failure, table).hint == "check the CA"
    failure.__cause__ = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    failure.__cause__.reason = "WRONG_VERSION_NUMBER"
    assert "http://" in row_for(failure, table).hint


def test_an_error_keeps_the_facts_that_its_class_has():
    error = ErrorRow(StorageError, "no {what}", "look").filled(what="bucket").error("s3://b", status=404, attempts=3)
    assert (error.message, error.hint, error.uri, error.status) == ("no bucket", "look", "s3://b", 404)
    assert ErrorRow(UsageError, "bad name", "look").error("s3://b", status=400).uri == "s3://b"


def test_names_of_a_message_are_filled_with_any_text():
    row = ErrorRow(StorageError, "no {bucket!r}", "look").filled(bucket="{x}")
    assert row.after(" at {h}").message == "no '{x}' at {h}"


def test_no_thread_and_no_memory_have_different_hints():
    failure = SimpleNamespace(code="out_of_memory", detail="there is none", begin=0, end=0, os_error=errno.EAGAIN)
    assert "pids.max" in str(error_from_native(failure, uri="s3://b/k", object_size=None))
    failure.os_error = 0
    assert "memory_limit_bytes, let go" in str(error_from_native(failure, uri="s3://b/k", object_size=None))
