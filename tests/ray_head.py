"""Restarts the head of a Ray cluster that keeps its state in RocksDB, and says what loads and `warm` do meanwhile.

A program of its own, as Ray reads settings of its environment when it is imported, and may end a process that loses
its head.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray_nodes import LONG_S, Nodes

import streamer


@ray.remote(num_cpus=0)
class Loader:
    """A process that lives longer than its head."""

    def load(self, uri: str) -> tuple[int, int, int]:
        """Load; return the sizes of what was wanted, of what the cache gave, and of what peers gave."""
        with streamer.stream(uri, framework="np", options=streamer.ray.node_options(), progress=False) as tensors:
            size_bytes = sum(tensor.nbytes for _, tensor in tensors)
        return size_bytes, tensors.report.cached_bytes, sum(tensors.report.peer_bytes.values())


def main(root: str, first: str, second: str, third: str) -> None:
    """Print a line of JSON: the loads before, during and after, and the outcomes of `warm` afterwards."""
    nodes = Nodes(Path(root))
    try:
        one, _ = nodes.add(), nodes.add()
        ray.init(address=nodes.cluster.address, log_to_driver=False)
        streamer.ray.warm(first, nodes=nodes.are_workers, progress=False)
        loader = Loader.options(scheduling_strategy=NodeAffinitySchedulingStrategy(one, soft=False)).remote()
        loads = [ray.get(loader.load.remote(first), timeout=LONG_S)]
        nodes.cluster.head_node.kill_gcs_server()
        loads += [ray.get(loader.load.remote(uri), timeout=LONG_S) for uri in (first, second)]
        nodes.cluster.head_node.start_gcs_server()
        report = streamer.ray.warm(third, nodes=nodes.are_workers, progress=False)
        loads.append(ray.get(loader.load.remote(third), timeout=LONG_S))
        print(json.dumps({"loads": loads, "outcomes": [each.outcome for each in report.nodes]}))
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
