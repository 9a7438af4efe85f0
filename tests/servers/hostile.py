"""Answers of a server that means harm, for scripts of `ScriptedServer`."""

from __future__ import annotations

from collections.abc import Callable

from servers.scripted_http import Answer

__all__ = ["Poured", "pour", "take_over"]

PIECE_BYTES = 64 << 10


class Poured:
    """How much of endless bodies was sent: what the client took, and what sockets hold."""

    sent_bytes = 0


def take_over(answer: Answer, send: Callable[[], None]) -> None:
    """Send something else than the answer, and close the connection."""

    def send_and_close() -> None:
        answer.handler.close_connection = True
        send()

    answer.send = send_and_close  # type: ignore[method-assign]


def pour(answer: Answer, most_bytes: int, poured: Poured, *, piece: bytes = b" ", head: bytes = b"") -> None:
    """Send the status and headers of an answer, and then `piece` again and again, as far as the client takes it.

    Args:
        answer: Without Content-Length its body ends where the connection does.
        most_bytes: Where a client that is not on its guard gets its end.
        poured: Counts.
        piece: Of the body.
        head: What the body begins with.
    """
    handler = answer.handler
    many = piece * max(1, PIECE_BYTES // len(piece))

    def send() -> None:
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(head)
        while poured.sent_bytes < most_bytes:
            handler.wfile.write(many)
            poured.sent_bytes += len(many)

    take_over(answer, send)
