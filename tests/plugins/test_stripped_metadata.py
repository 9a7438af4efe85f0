"""What belongs to this package is found without the metadata of its distribution, which images and bundles strip."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streamer.backends.builtin_storages import BUILTIN_MODULES
from streamer.core import VERSION
from streamer.plugins import examine, examine_formats
from streamer.plugins.formats import OUR_FORMATS

PROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")

PROGRAM = """
import importlib.metadata, json, sys
find = importlib.metadata.MetadataPathFinder.find_distributions
importlib.metadata.MetadataPathFinder.find_distributions = lambda *arguments, **named: (
    each for each in find(*arguments, **named) if each.metadata["Name"] != "streamer"
)
assert not importlib.metadata.entry_points(group="vllm.general_plugins")
from dataclasses import asdict
import streamer
from streamer import plugins
from streamer.backends.s3.options import user_agent_of
print(json.dumps({
    "storages": [asdict(each) for each in plugins.examine()],
    "formats": [asdict(each) for each in plugins.examine_formats()],
    "loaded": streamer.load(sys.argv[1], framework="np")["a"].tolist(),
    "agent": user_agent_of(None, "shop", None),
}))
"""


def test_storages_and_formats_are_found_without_metadata_regression(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.arange(4))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "a.npz")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    found = json.loads(done.stdout)
    ours = [each for each in found["storages"] if each["backend"]["builtin"]]
    assert {each["backend"]["scheme"] for each in ours} == {*BUILTIN_MODULES}
    assert all(each["backend"]["version"] == VERSION and each["is_used"] and not each["error"] for each in ours)
    assert [each["format"] for each in found["formats"]] == ["DCP", "GGUF", "NumPy", "Tensorizer", "PyTorch"]
    assert not any(each["error"] for each in found["formats"])
    assert found["loaded"] == [0, 1, 2, 3]
    assert found["agent"] == f"streamer/{VERSION} app/shop"


def test_the_version_is_that_of_the_project() -> None:
    assert re.search(r'^version = "(.*)"$', PROJECT, re.MULTILINE)[1] == VERSION  # type: ignore[index]


def test_an_older_or_stale_metadata_folder_adds_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "streamer-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: streamer\nVersion: 0.0.1\n")
    lines = ["[streamer.backends]", *(f"{name} = {module}" for name, module in BUILTIN_MODULES.items())]
    lines += ["[streamer.formats]", *(f"{name} = {module}" for name, module in OUR_FORMATS.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    schemes = [each.backend.scheme for each in examine() if each.backend.builtin]
    assert sorted(schemes) == sorted(BUILTIN_MODULES)
    assert len([each for each in examine_formats() if each.builtin]) == len(OUR_FORMATS)
