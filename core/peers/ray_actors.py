"""The actors of `streamer.ray.warm`, as processes of the same Ray cluster find them: by the name of a node."""

from __future__ import annotations

from typing import Any, NamedTuple

from streamer.core.errors import UsageError
from streamer.core.imported import if_imported

NAMESPACE = "streamer"
ANSWER_S = 5.0


class Place(NamedTuple):
    """What a node offers to the loads on it."""

    cache_dir: str  # "" if neither the call of `warm` nor the node's environment named a folder
    address: str  # where it serves its cache, or "" if it has no token
    peers: tuple[str, ...]  # where the others serve theirs


def actor_name(node_id: str) -> str:
    """Return the name of the actor of a node."""
    return f"cache-{node_id}"


def connected_ray() -> Any:
    """Return Ray, if this process belongs to a cluster."""
    ray = if_imported("ray")
    if ray is None or not ray.is_initialized():
        hint = 'Call ray.init(address="auto") first; actors and tasks belong to their cluster already'
        raise UsageError("this process is not connected to a Ray cluster", hint=hint)
    return ray


def place_of_node() -> Place | None:
    """Ask the actor of this node; None if it has none. Waits for ever while the head is down."""
    ray = connected_ray()
    try:
        actor = ray.get_actor(actor_name(ray.get_runtime_context().get_node_id()), NAMESPACE)
    except ValueError:
        return None
    return Place(*ray.get(actor.place.remote(), timeout=ANSWER_S))


def addresses_of_actors() -> list[str]:
    """Return where the actors serve their caches, that of this node first."""
    place = place_of_node()
    return [place.address, *place.peers] if place and place.address else []
