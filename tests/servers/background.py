"""Servers of the tests' own, served by threads of this process, and what else happens on a thread meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingTCPServer

__all__ = ["begun", "served"]

POLL_S = 0.05  # between two looks at whether to stop


@contextmanager
def served(*servers: ThreadingTCPServer) -> Iterator[None]:
    """Serve inside the block; behind it they are closed, and their threads are gone."""
    threads = []
    for server in servers:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        threads.append(thread)
    try:
        yield
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


@contextmanager
def begun(thread: threading.Thread) -> Iterator[None]:
    """Start it inside `pytest.raises`: on a busy machine, an interrupt that it sends could else come before that."""
    thread.start()
    yield
