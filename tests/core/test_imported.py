"""A module that another thread is still importing is waited for: it lacks its later names."""

from __future__ import annotations

import importlib
import sys
import threading
from concurrent import futures
from pathlib import Path

import pytest
import sizes

from streamer.core.imported import if_imported

SLOW = """
import threading
may_end = threading.Event()
may_end.wait(60)
later = 7
"""


def test_a_module_that_another_thread_imports_is_waited_for_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two first loads at a time, one imported torch, and the other failed, as torch lacked some of its names."""
    (tmp_path / "imported_slowly.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    with futures.ThreadPoolExecutor(2) as pool:
        importing = pool.submit(importlib.import_module, "imported_slowly")
        while not hasattr(sys.modules.get("imported_slowly"), "may_end"):
            threading.Event().wait(0.001)
        module = sys.modules["imported_slowly"]
        looking = pool.submit(if_imported, "imported_slowly")
        with pytest.raises(futures.TimeoutError):
            looking.result(0.05)
        module.may_end.set()
        assert looking.result(60) is importing.result(60) is module
    assert looking.result().later == 7
    monkeypatch.delitem(sys.modules, "imported_slowly")


def test_no_other_code_looks_for_a_module_that_may_be_half_imported() -> None:
    files = [path for folder in sizes.PRODUCT_FOLDERS for path in (sizes.ROOT / folder).rglob("*.py")]
    looking = {path.stem for path in files if "sys.modules.get(" in path.read_text()}
    assert looking == {"search_path"}  # for `site`, which is imported at the start
