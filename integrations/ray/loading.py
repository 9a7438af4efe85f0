"""Loads in actors and tasks of Ray, which find the cache of their node."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamer._load import load as load_checkpoint
from streamer.compat.hooks import imported
from streamer.core.options.options import Options
from streamer.core.peers.discovery import RAY
from streamer.core.peers.ray_actors import Place, connected_ray, place_of_node
from streamer.core.store.parallel import AnswerTimeoutError, in_parallel

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from streamer._arguments import LoadArguments
    from streamer.core.request.request import UriOption

LONGEST_LOOKUP_S = 6.0  # Ray's look-up of a name has no time-out, and waits while the head is down
_places: dict[str, Place | None] = {}  # by the id of the node


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
    """Return options with the cache of this node and its peers, for `streamer.load_into`, `streamer.stream` and others.

    A cache that they name already stays. If this node has no actor of `warm`, they stay as they are.

    Example:
        >>> streamer.load_into(uri, model, options=streamer.ray.node_options())                # doctest: +SKIP
    """
    options = options or Options()
    imported("ray")
    ray = connected_ray()
    if options.cache_dir is not None:
        return options
    node_id = ray.get_runtime_context().get_node_id()
    with suppress(AnswerTimeoutError, ray.exceptions.RayError):  # then the last answer counts
        give_up_at = time.monotonic() + LONGEST_LOOKUP_S
        (_places[node_id],) = in_parallel(lambda _: place_of_node(), [None], role="ray", give_up_at=give_up_at)
    place = _places.get(node_id)
    if place is None or not place.cache_dir:
        return options
    options = replace(options, cache_dir=place.cache_dir)
    return replace(options, peers=RAY) if place.address and options.peers is None else options
