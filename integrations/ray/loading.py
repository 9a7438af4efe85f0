"""Loads in actors and tasks of Ray, which find the cache of their node."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamer._load import load as load_checkpoint
from streamer.core.options.options import Options
from streamer.core.store.parallel import AnswerTimeoutError, in_parallel
from streamer.integrations.ray.node_cache import NAMESPACE, actor_name, connected_ray

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from streamer._arguments import LoadArguments
    from streamer.core.request.request import UriOption

LONGEST_LOOKUP_S = 5.0  # Ray's look-up of a name has no time-out, and waits while the head is down
_last_folder: dict[str, str] = {}  # by the id of the node


def load(uri: UriOption, *, framework: str = "pt", **how: Unpack[LoadArguments]) -> dict[str, Any]:
    """Load a checkpoint as `streamer.load` does, with the cache of this node that `warm` has filled.

    Example:
        >>> @ray.remote                                                                          # doctest: +SKIP
        ... def count(uri):
        ...     return len(streamer.ray.load(uri))
    """
    how["options"] = node_options(how.get("options"))
    return load_checkpoint(uri, framework=framework, **how)


def node_options(options: Options | None = None) -> Options:
    """Return options that name the cache of this node, for `streamer.load_into`, `streamer.stream` and others.

    A cache that they name already stays. If this node has no actor of `warm`, they stay as they are.

    Example:
        >>> streamer.load_into(model, uri, options=streamer.ray.node_options())                # doctest: +SKIP
    """
    options = options or Options()
    if options.cache_dir is not None:
        return options
    return replace(options, cache_dir=_folder_of_node() or None)


def _folder_of_node() -> str:
    """Ask the actor of this node for its folder; if it does not answer in time, the last answer counts."""
    ray = connected_ray()
    node_id = ray.get_runtime_context().get_node_id()

    def ask(name: str) -> str:
        try:
            actor = ray.get_actor(name, NAMESPACE)
        except ValueError:  # there is none
            return ""
        return str(ray.get(actor.folder.remote(), timeout=LONGEST_LOOKUP_S))

    try:
        give_up_at = time.monotonic() + LONGEST_LOOKUP_S
        (_last_folder[node_id],) = in_parallel(ask, [actor_name(node_id)], role="ray", give_up_at=give_up_at)
    except (AnswerTimeoutError, ray.exceptions.RayError):
        pass
    return _last_folder.get(node_id, "")
