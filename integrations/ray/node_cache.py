"""The actor of a node: it fills the cache of its node, and says where this is.

It has a name, by which any process of the cluster finds it, and outlives the job that started it. It is given no secret
when it is created, because Ray keeps the arguments of a creation; those of calls go from process to process.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from streamer._commands.warm import WarmReport
from streamer._commands.warm import warm as fill_cache
from streamer.compat.hooks import imported
from streamer.core.errors import UsageError
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.request.request import Request

NAMESPACE = "streamer"


def connected_ray() -> Any:
    """Return Ray, if this process belongs to a cluster."""
    ray = imported("ray")
    if not ray.is_initialized():
        hint = 'Call ray.init(address="auto") first; actors and tasks belong to their cluster already'
        raise UsageError("this process is not connected to a Ray cluster", hint=hint)
    return ray


def actor_name(node_id: str) -> str:
    """Return the name of the actor of a node."""
    return f"cache-{node_id}"


class NodeCache:
    """The actor. Ray starts it again if its process dies, with the same folder."""

    def __init__(self, cache_dir: str | None) -> None:
        path = resolve(Options(cache_dir=cache_dir)).cache_dir
        self._cache_dir = os.path.abspath(path) if path else ""
        self._done = (0, 0)

    def folder(self) -> str:
        """Return the folder of the cache, or "" if neither the call nor the node's environment named one."""
        return self._cache_dir

    def warm(self, arguments: dict[str, Any], cache_dir: str | None) -> WarmReport:
        """Read the parts of a checkpoint that the cache lacks; `cache_dir` is the folder of this actor, or None."""
        if not self._cache_dir:
            hint = "Pass cache_dir=, a folder on a disk of each node, or set STREAMER_CACHE_DIR on the nodes"
            raise UsageError("no cache folder is set on this node", hint=hint)
        if cache_dir is not None and os.path.abspath(cache_dir) != self._cache_dir:
            hint = "Name that folder, or call streamer.ray.stop() first"
            raise UsageError(f"the cache of this node is in {self._cache_dir}, not in {cache_dir}", hint=hint)
        self._done = (0, 0)
        options = replace(arguments["options"] or Options(), cache_dir=self._cache_dir)
        return fill_cache(Request(**{**arguments, "options": options, "progress": self._note}))

    def done(self) -> tuple[int, int]:
        """Return how many of the missing bytes were read, and how many were missing."""
        return self._done

    def _note(self, done_bytes: int, total_bytes: int) -> None:
        self._done = (done_bytes, total_bytes)
