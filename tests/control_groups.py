"""Real control groups of the kernel's, where this process may make them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MOUNT = Path("/sys/fs/cgroup")
IS_UNIFIED = (MOUNT / "cgroup.controllers").exists()


@contextmanager
def group_with(controller: str, limit: str, legacy_limit: str, value: str) -> Iterator[Path]:
    """Make a group with one limit; skip the test where that cannot be done.

    Args:
        controller: The first version's folder: ``"cpu"``, ``"memory"``.
        limit: The file of the limit in the unified version.
        legacy_limit: The same in the first version.
        value: What is written there.
    """
    group = MOUNT / ("" if IS_UNIFIED else controller) / f"streamer-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        file = group / (limit if IS_UNIFIED else legacy_limit)
        if not file.exists():
            pytest.skip(f"the {controller} controller is not given to groups here")
        file.write_text(value)
        yield group
    finally:
        group.rmdir()
