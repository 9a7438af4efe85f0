"""The examples with Ray Serve, Ray Data and Ray Train run as they are, each as a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils", reason="Ray is installed by make test-ray alone")

from servers.one_file import place_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("_actors_end")]
EXAMPLES = Path(__file__).parents[2] / "examples"


def printed_by(example, nodes, *arguments):
    command = [sys.executable, EXAMPLES / f"{example}.py", *arguments]
    environment = {**os.environ, "RAY_ADDRESS": nodes.cluster.address}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_replicas_of_ray_serve_load_from_the_cache_of_their_node(nodes, server, tmp_path):
    printed = printed_by("ray_serve", nodes, place_of("http", server)[0], tmp_path / "shared")
    assert printed.count("from a replica with 8000000 bytes from its cache") == 8


def test_workers_of_ray_data_load_once_each(nodes, server, tmp_path):
    reads = nodes.add()  # a whole processor; the workers have half of the others
    try:
        printed = printed_by("ray_data", nodes, place_of("http", server)[0], tmp_path / "shared")
    finally:
        nodes.kill(reads)
    mean = 8 * 124_999.5
    assert f"64 predictions, from {mean:.0f} to {mean + 63:.0f}" in printed


def test_workers_of_ray_train_save_one_checkpoint_and_load_it(nodes, tmp_path):
    printed = printed_by("ray_train", nodes, tmp_path / "saved")
    assert "2 tensors were saved by two workers, and loaded again by both" in printed
