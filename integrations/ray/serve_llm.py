"""A callback of Ray Serve LLM that warms the nodes of an engine before it starts: ``LLMConfig(callback_config=…)``.

Guarantee: if the engine starts, each of its nodes has the whole checkpoint in its cache. Ray makes the object from the
name of its class, and needs no more than the methods here; its own base class is a private name of Ray.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from streamer.core.errors import StreamerError
from streamer.core.log import OwnLogger
from streamer.core.peers.ray_actors import connected_ray
from streamer.integrations.ray.warming import warm

LONGEST_WAIT_S = 600.0  # for bundles of an engine that are not placed yet: a new machine takes minutes

_log = OwnLogger()


class WarmNodes:
    """Fills the caches of the nodes on which an engine will run; ``callback_kwargs`` are arguments of `warm`.

    Without ``uri`` it is the model's source. Without ``cache_dir`` it is the ``STREAMER_CACHE_DIR`` of the engine's
    ``runtime_env``, or else that of each node.

    Example:
        >>> callback = {"callback_class": "streamer.integrations.ray.serve_llm:WarmNodes"}         # doctest: +SKIP
        >>> LLMConfig(callback_config=callback, ...)                                               # doctest: +SKIP
    """

    def __init__(
        self,
        llm_config: Any,
        raise_error_on_callback: bool = True,
        ctx_kwargs: dict[str, Any] | None = None,
        **how: Any,
    ) -> None:
        self._config, self._raises, self._how = llm_config, raise_error_on_callback, how
        self.ctx = SimpleNamespace(custom_data={}, run_init_node=True, **(ctx_kwargs or {}))  # Ray reads and fills it

    async def run_callback(self, method_name: str) -> None:
        """Warm the nodes, in the process of the replica, if Ray says that it begins to prepare them."""
        if method_name != "on_before_node_init":
            return
        try:
            await asyncio.to_thread(self._warm)
        except StreamerError as error:
            if self._raises:
                raise
            _log.warning("the engine starts with cold caches: %s", error)

    def run_callback_sync(self, method_name: str) -> None:
        """Do nothing: Ray calls this on each node before it downloads files."""

    def _warm(self) -> None:
        group = self.ctx.placement_group
        group.wait(LONGEST_WAIT_S)
        nodes = connected_ray().util.placement_group_table(group)["bundles_to_node_id"].values()
        source = self._config.model_loading_config.model_source or self._config.model_id
        environment = (self.ctx.runtime_env or {}).get("env_vars", {})
        how = {
            "uri": getattr(source, "bucket_uri", source),
            "cache_dir": environment.get("STREAMER_CACHE_DIR"),
            "progress": False,
        }
        warm(**{**how, **self._how, "nodes": [*{*nodes}]})
