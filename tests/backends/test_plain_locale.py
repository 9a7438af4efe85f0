"""Under a locale that is not UTF-8, text of an index, a URL or a listing means UTF-8 bytes on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

SHARDS = ["gewicht-ü日-1.safetensors", "gewicht-ü日-2.safetensors"]
LOAD = """
import json, sys, streamer
print(json.dumps(sorted(streamer.load(sys.argv[1], framework="np", progress=False))))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "Modèle日"
    folder.mkdir()
    for number, shard in enumerate(SHARDS):
        save_file({f"t{number}": np.ones(3, "f4")}, folder / shard)
    weight_map = {f"t{number}": shard for number, shard in enumerate(SHARDS)}
    index = json.dumps({"metadata": {}, "weight_map": weight_map}, ensure_ascii=False)
    (folder / "model.safetensors.index.json").write_bytes(index.encode())
    return folder


@pytest.fixture(params=["C", "en_US.ISO-8859-1"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    of_locale = {"LC_ALL": request.param, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    if request.param != "C":
        command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(tmp_path / request.param)]
        subprocess.run(command, capture_output=True, check=False)
        if not (tmp_path / request.param).is_dir():
            pytest.skip("localedef cannot make this locale here")
        of_locale["LOCPATH"] = str(tmp_path)
    return {**os.environ, **of_locale}


def ran(environment: dict[str, str], *arguments: Any) -> str:
    command = [sys.executable, *map(os.fsencode, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("ascii", "backslashreplace")


def test_a_folder_whose_index_names_shards_regression(environment: dict[str, str], model: Path) -> None:
    assert json.loads(ran(environment, "-c", LOAD, str(model))) == ["t0", "t1"]


def test_percent_codes_of_a_file_url_regression(environment: dict[str, str], model: Path) -> None:
    assert json.loads(ran(environment, "-c", LOAD, (model / SHARDS[0]).as_uri())) == ["t0"]


def test_a_manifest_names_the_shards_as_the_index_does_regression(environment: dict[str, str], model: Path) -> None:
    ran(environment, "-m", "streamer", "manifest", str(model))
    written = json.loads((model / "model.safetensors.manifest.json").read_bytes())
    assert sorted(written["shards"]) == SHARDS
    assert '"fits"' in ran(environment, "-m", "streamer", "check", str(model), "--json")


def test_a_pull_writes_the_names_that_the_source_has_regression(
    environment: dict[str, str], model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "kopie"
    for _ in range(2):
        ran(environment, "-m", "streamer", "pull", str(model), str(copy), "--quiet")
    assert {each.name for each in copy.iterdir() if each.is_file()} == {each.name for each in model.iterdir()}
    (model / "model.safetensors.index.json").unlink()
    (model / SHARDS[0]).unlink()
    assert "removed" in ran(environment, "-m", "streamer", "pull", str(model), str(copy))
    assert [each.name for each in copy.iterdir() if each.is_file()] == [SHARDS[1]]


@pytest.mark.parametrize("path", ["{model}/{shard}", "{model}/*-1.safetensors", "./{name}/{shard}"])
def test_a_path_as_text_that_the_locale_cannot_write_regression(
    environment: dict[str, str], model: Path, path: str
) -> None:
    text = path.format(model=model, name=model.name, shard=SHARDS[0])
    code = f"import os, sys\nos.chdir(os.fsencode(sys.argv[1]))\nsys.argv[1] = {text!a}\n{LOAD}"
    assert json.loads(ran(environment, "-c", code, str(model.parent))) == ["t0"]


def test_a_cache_of_fsspec_names_the_locale_that_cannot_write_a_path_regression(
    environment: dict[str, str], model: Path
) -> None:
    uri = f"simplecache::file://{model}/{SHARDS[0]}"
    code = f"""
import streamer
try:
    streamer.load({uri!a}, framework="np", progress=False)
except streamer.StorageError as error:
    print(ascii(str(error)))
"""
    reported = ran(environment, "-c", code)
    assert "The locale of this process cannot write the path" in reported
    assert "PYTHONUTF8=1" in reported
