"""A Ray cluster on this machine: a head without processors, and nodes that each have a folder for their cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from pulls import wait_for
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

STORE_BYTES = 80 << 20  # of Ray's objects; none is used
# A node whose processes were killed is noticed after three seconds, not after thirteen.
HEALTH = {
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "health_check_initial_delay_ms": 0,
}
TOKEN = "token-of-the-tests"
LONG_S = 120.0  # longest wait for what other processes do; Ray starts one in two seconds, if nothing else runs


class Nodes:
    """The cluster, and the folder of each node by its id."""

    def __init__(self, root: Path) -> None:
        self.root, self.folders, self._nodes, self._added = root, dict[str, Path](), dict[str, Any](), 0
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES, "_system_config": HEALTH}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)

    def add(self, *, serves: bool = True) -> str:
        """Add a node, and return its id."""
        self._added += 1
        folder = self.root / f"cache{self._added}"
        environment = {"STREAMER_CACHE_DIR": str(folder), "STREAMER_PEERS_TOKEN": TOKEN if serves else ""}
        node = self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, env_vars=environment)
        self.folders[node.node_id], self._nodes[node.node_id] = folder, node
        return str(node.node_id)

    def kill(self, node_id: str) -> None:
        """Kill all processes of a node."""
        del self.folders[node_id]
        self.cluster.remove_node(self._nodes.pop(node_id), allow_graceful=False)

    def lose_raylet(self, node_id: str) -> None:
        """Kill Ray's own process of a node; the others end when they notice."""
        del self.folders[node_id]
        self._nodes.pop(node_id).kill_raylet()

    def are_workers(self, node: dict[str, Any]) -> bool:
        """For ``nodes=``: all but the head."""
        return node["NodeID"] in self.folders


def on_node(node_id: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a task on a node."""
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.get(ray.remote(call).options(scheduling_strategy=strategy).remote(*arguments), timeout=LONG_S)


def through(proxy: Any, storage_options: dict[str, Any]) -> dict[str, Any]:
    """Return storage options by which requests to an S3 server go through a proxy."""
    return {**storage_options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}


def actors() -> set[str]:
    """Return the names of the actors that keep caches."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {each["name"] for each in named if each["namespace"] == "streamer"}


def pids_of_actors() -> list[int]:
    """Find the processes of these actors by the title that Ray gives them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::NodeCache"):
                found.append(int(path.parent.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def until(is_so: Callable[[], Any]) -> None:
    """Wait until a function returns something true, as long as Ray may take for it."""
    wait_for(is_so, LONG_S)
