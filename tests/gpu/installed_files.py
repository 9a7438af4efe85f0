"""Where pip put the files of NVIDIA's wheels, which are of one machine type and install anywhere."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

__all__ = ["installed_file"]


def installed_file(distribution: str, name: str) -> Path:
    """Find a file of a distribution by its name; skips, and says so, where pip had no wheel of it for this machine."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed: nothing was compared with NVIDIA's own")
    return next(Path(str(file.locate())) for file in files if file.name == name)
