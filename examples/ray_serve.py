"""A deployment of Ray Serve that loads from the cache of its node: ``python examples/ray_serve.py URI [FOLDER]``.

Each replica calls `warm` first, which takes a second on nodes that have everything: a replica on a new node reads from
the others. FOLDER is the cache's folder on each node; without it, each node has it in ``STREAMER_CACHE_DIR``.
"""

from __future__ import annotations

import sys

import ray
from ray import serve

import streamer


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.5})
class Model:
    """Answers with the mean of a tensor; a real one would build its model, and call `streamer.load_into`."""

    def __init__(self, uri: str, folder: str | None) -> None:
        streamer.ray.warm(uri, cache_dir=folder, progress=False)
        with streamer.stream(uri, framework="np", options=streamer.ray.node_options(), progress=False) as tensors:
            self.tensors = dict(tensors)
        self.cached_bytes = tensors.report.cached_bytes

    def __call__(self, name: str) -> tuple[float, int]:
        """Return the mean, and how many bytes the cache gave to this replica."""
        return float(self.tensors[name].mean()), self.cached_bytes


def main(uri: str, folder: str | None = None) -> None:
    ray.init(ignore_reinit_error=True)
    handle = serve.run(Model.bind(uri, folder), name="model", route_prefix=None)
    with streamer.open(uri, framework="np") as checkpoint:
        names = list(checkpoint)
    for name in names:
        mean, cached_bytes = handle.remote(name).result()
        print(f"{name}: {mean:.2f}, from a replica with {cached_bytes} bytes from its cache")
    serve.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
