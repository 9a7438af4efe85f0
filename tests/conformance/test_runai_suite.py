"""Run:ai's own Python package, unmodified, passes its own tests on our library; they come with its wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.runai_fixtures import write_fixtures
from servers.seaweedfs import SeaweedServer

from streamer.compat.runai import library_path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / ".venv/runai/runai_model_streamer"
PASSED = 280  # of 0.17.0, as on its own engine; one skips itself on both
PASSED_ON_A_RANK = 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its package with the checkpoints that its tests read, and without its own engine."""
    assert PACKAGE.exists(), "make .venv/.runai"
    folder = tmp_path_factory.mktemp("runai")
    package = folder / "runai_model_streamer"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(PACKAGE.parent / "humanize", folder / "humanize")
    write_fixtures(package / "safetensors_streamer/tests/test_files")
    return folder


def run(folder: Path, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{folder}:{ROOT / 'tests'}",
            "STREAMER_LIBRARY": library_path(),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    reported = done.stdout[-4000:] + done.stderr[-6000:]
    assert done.returncode == 0, reported
    return reported


def test_the_tests_of_runai_pass_on_our_library(folder: Path) -> None:
    quietly = ["pytest", "-q", "-p", "no:cacheprovider"]
    reported = run(folder, *quietly, "-p", "conformance.runai_library", "runai_model_streamer")
    assert re.search(rf"\b{PASSED} passed, 1 skipped", reported), reported
    assert f"library: {library_path()}" in reported, reported
    requests = re.search(r"requests to the engine: (\d+)", reported)
    assert requests, reported
    assert int(requests[1]) > 100


def test_the_distributed_tests_of_runai_pass_on_two_ranks(folder: Path) -> None:
    ranks = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "conformance.runai_ranks"]
    reported = run(folder, *ranks, str(folder))
    for rank in (0, 1):
        assert f"rank {rank}: {PASSED_ON_A_RANK} run, 0 skipped" in reported, reported


def test_the_runai_streamer_loads_a_checkpoint_of_a_disk(
    folder: Path, checkpoint: Path, reference: dict[str, object]
) -> None:
    reported = run(folder, "conformance.runai_load", str(checkpoint), str(checkpoint))
    assert f"{len(reference)} tensors are equal" in reported


@pytest.mark.server
def test_the_runai_streamer_loads_a_checkpoint_of_s3(
    folder: Path, checkpoint: Path, reference: dict[str, object], s3_server: SeaweedServer, s3_checkpoint: str
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": s3_server.access_key, "AWS_SECRET_ACCESS_KEY": s3_server.secret_key}
    reported = run(
        folder,
        *("conformance.runai_load", str(checkpoint), s3_checkpoint),
        **keys,
        AWS_ENDPOINT_URL=s3_server.endpoint_url,
        AWS_DEFAULT_REGION="us-east-1",
    )
    assert f"{len(reference)} tensors are equal" in reported
