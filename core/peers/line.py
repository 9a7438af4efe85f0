"""The line to one peer: an HTTP connection over which one question after the other is asked."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streamer.core.peers.answers import HELD
from streamer.core.peers.discovery import split_address
from streamer.core.peers.names import tls_files

PATIENCE_S = 0.8  # without a byte; a peer on the same network needs some milliseconds


class NoPeerError(OSError):
    """What answers is no peer of this process: it has another token or authority, or does something else."""


class Line:
    """The line to a peer. No proxy is used, and a peer without a right certificate gets not even the token."""

    def __init__(self, address: str, token: str) -> None:
        self._address, self._token = address, token
        self._connection: http.client.HTTPConnection | None = None
        self.is_cut = False

    def ask(self, question: str, most_bytes: int) -> Mapping[str, Any]:
        """Return the answer, which is JSON of this size at most; raises OSError, HTTPException, or ValueError."""
        if self._connection is not None:
            with suppress(ConnectionError, http.client.HTTPException):  # the peer has closed it since the last question
                return self._answer(self._connection, question, most_bytes)
            self._connection.close()
        connection = self._connection = self._connected()
        if self.is_cut:  # while it connected
            raise ConnectionAbortedError
        return self._answer(connection, question, most_bytes)

    def cut(self) -> None:
        """End what another thread waits for: a peer that sends a byte now and then would keep it."""
        self.is_cut = True
        if self._connection is not None and self._connection.sock is not None:
            with suppress(OSError):  # the method of TLS is for the connection's own thread
                socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _connected(self) -> http.client.HTTPConnection:
        files = tls_files()
        if files is None:
            connection = http.client.HTTPConnection(*split_address(self._address), timeout=PATIENCE_S)
            connection.connect()
            return connection
        from streamer.core.peers.tls import context_of, what_failed  # noqa: PLC0415 (imports ssl)

        context = context_of(files)
        connection = http.client.HTTPSConnection(*split_address(self._address), timeout=PATIENCE_S, context=context)
        try:
            connection.connect()
        except OSError as error:
            if reason := what_failed(error):
                raise NoPeerError(reason) from error
            raise
        return connection

    def _answer(self, connection: http.client.HTTPConnection, question: str, most_bytes: int) -> Mapping[str, Any]:
        connection.request("POST", HELD, question, {"Authorization": f"Bearer {self._token}"})
        answer = connection.getresponse()
        if answer.status == 401:
            raise NoPeerError("it has another token")
        if answer.status != 200:
            raise NoPeerError(f"it answers with HTTP {answer.status}, as no peer does")
        text = answer.read(most_bytes + 1)
        told = json.loads(text) if len(text) <= most_bytes else {}
        if not isinstance(told, dict) or not isinstance(told.get("objects"), dict):
            raise ValueError("no answer")
        return told
