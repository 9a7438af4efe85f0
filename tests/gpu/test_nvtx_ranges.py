"""NVIDIA's own NVTX library gets the stages of a load; a recorder takes Nsight's place behind it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from servers.scripted_http import ScriptedServer

from gpu.fake_devices import cxx_compiler
from gpu.installed_files import installed_file

HERE = Path(__file__).resolve().parent
WARNING = "NVTX_INJECTION64_PATH is set, but there is no libabsent.so.1"
LOADS = """
import logging, sys, time
import streamer
logging.basicConfig()
with streamer.stream(sys.argv[1], framework="np", progress=False) as stream:
    for name, tensor in stream:
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory) -> Path:
    headers = installed_file("nvidia-nvtx", "nvToolsExt.h").parent.parent
    library = tmp_path_factory.mktemp("nvtx") / "recorder.so"
    command = [cxx_compiler(), "-std=c++20", "-shared", "-fPIC", f"-isystem{headers}", "-o", library]
    subprocess.run([*command, HERE / "nvtx_recorder.cc"], check=True)
    return library


def loaded(injection: Path, record: Path, before: str = "") -> str:
    """Load over HTTP in a process that a profiler has prepared; return what the process printed."""
    environment = os.environ | {"NVTX_INJECTION64_PATH": str(injection), "NVTX_RECORD": str(record)}
    with ScriptedServer(save({f"{at}": np.zeros(1 << 20, np.float32) for at in range(3)})) as server:
        command = [sys.executable, "-c", before + LOADS, server.url]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout + done.stderr


def test_a_profiler_sees_the_stages_of_a_load(recorder, tmp_path):
    record = tmp_path / "ranges"
    assert loaded(recorder, record) == ""
    lines = record.read_text().splitlines()
    for name in ("find files", "read headers", "hand over"):
        assert f"push streamer: {name}" in lines
    for name in ("wait for bytes", "consumer"):
        assert f"start streamer: {name}" in lines
    pushed, started = ([each for each in lines if each.startswith(word)] for word in ("push", "start"))
    assert lines.count("pop ") == len(pushed)
    assert len([each for each in lines if each.startswith("end")]) == len(started)
    assert "end last" in lines  # its number came back whole


def test_a_profiler_without_nvidias_library_is_told_so_and_the_load_goes_on(recorder, tmp_path):
    record = tmp_path / "ranges"
    other = "from streamer.core.trace import nvtx\nnvtx.NAMES = ('libabsent.so.1',)\n"
    assert WARNING in loaded(recorder, record, other)
    assert not record.exists()
