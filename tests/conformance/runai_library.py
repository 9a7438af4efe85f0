"""A pytest plug-in: says which library Run:ai's tests have loaded, and how many requests our engine was asked for.

``pytest -p conformance.runai_library``, with STREAMER_LIBRARY.
"""

from __future__ import annotations

import pytest

from streamer.compat.runai import entry_point as door

requests = 0
_request = door.request


def _counted(*arguments: int) -> int:
    global requests  # noqa: PLW0603
    requests += 1
    return _request(*arguments)


door.request = _counted


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    import runai_model_streamer.libstreamer as loaded  # theirs, and it loads the library

    terminalreporter.write_line(f"library: {loaded.STREAMER_LIBRARY}")
    terminalreporter.write_line(f"requests to the engine: {requests}")
