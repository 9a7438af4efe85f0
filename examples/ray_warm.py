"""Fills the cache of each node of a Ray cluster, and loads on each: ``python examples/ray_warm.py URI [FOLDER]``.

It connects to the cluster of ``RAY_ADDRESS``, or starts one on this machine. FOLDER is the cache's folder on each node;
without it, each node has it in ``STREAMER_CACHE_DIR``.
"""

from __future__ import annotations

import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import streamer


@ray.remote(num_cpus=0)
def load(uri: str) -> str:
    """Load the checkpoint on the node of this task; return how many bytes its cache gave."""
    options = streamer.ray.node_options()
    with streamer.stream(uri, framework="np", options=options, progress=False) as tensors:
        count = sum(1 for _ in tensors)
    report = tensors.report
    return f"{count} tensors, {report.cached_bytes} of {report.bytes} bytes from the cache"


def main(uri: str, folder: str | None = None) -> None:
    ray.init(ignore_reinit_error=True)
    report = streamer.ray.warm(uri, cache_dir=folder)
    for node in report.nodes:
        print(f"{node.address}: {node.outcome}, {node.read_bytes} of {node.bytes} bytes were missing")
    for node in report.nodes:
        strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        print(ray.get(load.options(scheduling_strategy=strategy).remote(uri)))
    streamer.ray.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
