"""Formats of other distributions: found by entry points, asked after ours, and their faults name them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch

import streamer
from streamer.core.errors import FormatError, PluginError
from streamer.plugins import ExaminedFormat, examine_formats
from streamer.plugins.formats import FORMATS, installed_formats

CODE = '''
from streamer.plugins import CheckpointIndex, TensorPlace, hookimpl

class Raw:
    """Numbers of 32 bits behind four letters."""

    name = "Raw"
    suffixes = (".raw", ".bin")

    def files_of(self, names):
        return [name for name in names if name.endswith(".raw")]

    def is_format(self, head):
        return head.startswith(b"RAW!")

    def read_index(self, files):
        (file,) = files
        return CheckpointIndex([TensorPlace("w", "F32", ((file.size_bytes - 4) // 4,), file, 4)], {"by": "Raw"})

@hookimpl
def streamer_format():
    return Raw()
'''

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a distribution of one format."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def installed(code: str, name: str = "acme-raw") -> None:
        module = name.replace("-", "_")
        monkeypatch.delitem(sys.modules, module, raising=False)
        (folder / f"{module}.py").write_text(code)
        info = folder / f"{module}-1.5.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[{FORMATS}]\nraw = {module}\n")

    return installed


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "x.raw").write_bytes(b"RAW!" + np.arange(5, dtype="<f4").tobytes())
    return folder


def test_a_format_of_another_distribution_loads(install: Install, raw: Path) -> None:
    install(CODE)
    for uri in (raw, raw / "x.raw"):
        assert torch.equal(streamer.load(uri)["w"], torch.arange(5.0))
    assert streamer.open(raw).metadata() == {"by": "Raw"}
    assert torch.equal(streamer.load(raw, slices={"w": streamer.Slice(0, 1, 5)})["w"], torch.ones(1))


def test_ours_come_first(install: Install, raw: Path) -> None:
    install(CODE)
    torch.save({"a": torch.ones(2)}, raw / "pytorch_model.bin")
    assert list(streamer.load(raw)) == ["a"]


def test_a_disabled_distribution_is_not_used(install: Install, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(CODE)
    monkeypatch.setenv("STREAMER_DISABLED_PLUGINS", "acme_raw")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"holds no \*\.safetensors file, but x\.raw"):
        streamer.load(raw)


def test_a_distribution_in_the_checkpoints_folder_is_not_used(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("raise SystemExit('code of a stranger')")
    folder = tmp_path / "site"
    (folder / "x.raw").write_bytes(b"RAW!")
    monkeypatch.chdir(folder)
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(folder)


def test_it_is_listed_behind_ours(install: Install) -> None:
    install(CODE)
    *ours, last = examine_formats()
    assert [(each.format, each.error) for each in ours] == [
        (name, None) for name in ("DCP", "GGUF", "NumPy", "Tensorizer", "PyTorch")
    ]
    assert last == ExaminedFormat("Raw", (".raw", ".bin"), "acme-raw", "1.5", builtin=False, error=None)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "cannot be used (SystemExit: 3)"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("", "gave None without name, so it is not a format"),
        (CODE.replace("return Raw()", "return 7"), "gave int without name"),
        (CODE.replace('(".raw", ".bin")', '".raw"'), "has suffixes that are no tuple of texts"),
        (CODE.replace("def streamer_format()", "def streamer_format(uri)"), "cannot be used"),
    ],
)
def test_one_that_does_not_work_is_left_out_and_named(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str, said: str
) -> None:
    install(code)
    assert [said in (each.error or "") for each in examine_formats() if not each.builtin] == [True]
    torch.save({"a": torch.ones(2)}, tmp_path / "x.pt")
    with caplog.at_level(logging.WARNING):
        assert list(streamer.load(tmp_path / "x.pt")) == ["a"]
    assert said in caplog.text
    assert "acme-raw 1.5" in caplog.text


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (CODE.replace("(file,) = files", "raise KeyError('x')"), "raised KeyError: 'x' in read_index"),
        (CODE.replace("return CheckpointIndex", "return list"), "in read_index"),
        (CODE.replace("return CheckpointIndex(", "return ("), "returned tuple from read_index"),
        (CODE.replace("[TensorPlace(", "[7 or TensorPlace("), "gave int in place of a TensorPlace"),
        (CODE.replace('"F32"', "32"), "in place of a TensorPlace"),
        (CODE.replace("head.startswith", "head.begins"), "in is_format"),
        (
            CODE.replace("return [name for name", "return ['y.raw' for name"),
            "chose a file that the folder does not hold",
        ),
    ],
)
def test_what_one_does_wrong_names_it(install: Install, raw: Path, code: str, said: str) -> None:
    assert code != CODE
    install(code)
    with pytest.raises(PluginError) as caught:
        streamer.load(raw if "chose" in said else raw / "x.raw")
    assert "acme-raw 1.5" in str(caught.value)
    assert caught.value.distribution == "acme-raw"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (CODE.replace("file, 4)", "file, 8)"), "ends at byte"),
        (CODE.replace("file, 4)", "file, -4)"), "impossible shape or place"),
        (CODE.replace('"F32"', '"F31"'), "unknown dtype"),
        (CODE.replace('"w"', "7"), "no text"),
    ],
)
def test_a_wrong_place_is_refused(install: Install, raw: Path, code: str, said: str) -> None:
    install(code)
    with pytest.raises(FormatError, match=said):
        streamer.load(raw)


def test_ours_are_loaded_in_front() -> None:
    points = [
        EntryPoint("gguf", "streamer.core.other_formats.gguf", FORMATS),
        EntryPoint("torch", "streamer.core.other_formats.torch_zip", FORMATS),
    ]
    assert [each.name for each in installed_formats(reversed(points))] == ["GGUF", "PyTorch"]
