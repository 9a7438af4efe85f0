"""Distributions with a plug-in: real ones as far as `importlib.metadata` can see, with a ``dist-info`` each."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

from streamer.plugins.registry import GROUP

__all__ = ["install_plugin"]


def install_plugin(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, *schemes: str
) -> list[EntryPoint]:
    """Install a distribution of one module, and return the entry points of all those in the folder."""
    module = f"{name.replace('-', '_')}_module"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{name.replace('-', '_')}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{scheme} = {module}\n" for scheme in schemes))
    return [point for found in distributions(path=[str(folder)]) for point in found.entry_points.select(group=GROUP)]
