"""Fills the caches of the nodes of a Ray cluster, each by an actor of its own, and watches the nodes meanwhile.

If nodes serve their caches, they divide what they read from the storage, as all loads with peers do
(`core/peers/guide.py`). So that each of them asks all that read, few nodes begin, and others follow.

Guarantees: a node that joins during the call gets an actor. The report names lost nodes, and no other node waits for
them. If the process of an actor dies, its node is asked again. `warm` returns only if every remaining node has the
whole checkpoint. Ray keeps no secret: storage options are arguments of calls, and not of an actor's creation. No log
shows them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamer._progress import Progress
from streamer.compat.hooks import imported
from streamer.core.errors import StorageError, StreamerError, UsageError
from streamer.core.peers.asking import MOST_ASKED
from streamer.core.peers.ray_actors import ANSWER_S, NAMESPACE, Place, actor_name, connected_ray
from streamer.core.quoting import counted
from streamer.core.request.request import ProgressOption, Request
from streamer.core.secrets.redact import redact
from streamer.integrations.ray.node_cache import NodeCache

if TYPE_CHECKING:
    from streamer.core.options.options import Options
    from streamer.core.request.request import OneUri, StorageOptions

LOOK_EVERY_S = 1.0  # at the nodes, and at what each has read
PAUSE_S = 2.0  # before an actor that did not answer is asked again: Ray starts a process in two seconds
FOLLOWERS = 4  # nodes that read at the same time from one that has everything
ATTEMPTS = 30  # a lost node is reported as such after 12 s or less, so a node that is there fails after a minute

NodesOption = Sequence[str] | Callable[[dict[str, Any]], bool] | None


@dataclass(frozen=True)
class NodeReport:
    """What became of one node."""

    node_id: str
    address: str  # its IP address
    outcome: str  # "warm", "lost" or "failed"
    bytes: int = 0  # bytes of the checkpoint's tensors
    read_bytes: int = 0  # the part of them that was missing in the cache
    peer_bytes: int = 0  # the part of these that other nodes gave
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class FleetReport:
    """The result of `warm`."""

    uri: str  # the URI of the checkpoint, without secrets
    nodes: tuple[NodeReport, ...]  # in the order in which they were found
    seconds: float

    @property
    def lost(self) -> tuple[NodeReport, ...]:
        """The nodes that left the cluster before they had everything."""
        return tuple(each for each in self.nodes if each.outcome == "lost")


def warm(
    uri: OneUri,
    *,
    nodes: NodesOption = None,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: StorageOptions = None,
    options: Options | None = None,
    progress: ProgressOption = None,
) -> FleetReport:
    """Fill the caches of the nodes of a Ray cluster with a checkpoint.

    Each node has one detached actor, which needs no CPU and stays until `stop`; a second call uses it again. Nodes that
    join during the call are warmed, too. An interrupt ends the call, and the nodes go on.

    Args:
        uri: As for ``python -m streamer cache warm``; only safetensors.
        nodes: None for all nodes that are alive, ids of some, or a function of an entry of ``ray.nodes()`` that says
            whether the node is wanted: ``lambda node: "GPU" in node["Resources"]``.
        cache_dir: The folder on each node. None for the node's ``STREAMER_CACHE_DIR``.
        storage_options: As for `streamer.load`. Best are none: then each node uses its own login.
        options: As for `streamer.load`; its ``cache_dir`` is that of `cache_dir`.
        progress: As for `streamer.load`, of all nodes together.

    Raises:
        UsageError: Ray is not installed, this process is not connected to a cluster, no node is wanted, a node has no
            folder, or its actor has another.
        StorageError: some nodes could not read the checkpoint, and are still there; the first error is the cause.

    Example:
        >>> report = streamer.ray.warm("s3://bucket/model", cache_dir="/nvme/streamer")       # doctest: +SKIP
    """
    request = Request(uri=uri, storage_options=storage_options, options=options, progress=progress)
    folder = None if cache_dir is None else os.fspath(cache_dir)
    imported("ray")
    fleet = _Fleet(connected_ray(), request, nodes, folder)
    try:
        while fleet.step():
            pass
    finally:
        fleet.close()
    return fleet.report()


def of_node(where: str, error: BaseException | None, label: str) -> StreamerError:
    """Return an error that names a node, for one that happened there."""
    hint = error.hint if isinstance(error, StreamerError) else None
    message = error.message if isinstance(error, StreamerError) else str(error).strip().partition("\n")[0]
    kind = UsageError if isinstance(error, UsageError) else StorageError
    return kind(f"{where}: {message}", uri=label, hint=hint)


def stop() -> int:
    """End the actors of all nodes, and return how many there were; what their caches hold stays.

    Example:
        >>> streamer.ray.stop()                                                                  # doctest: +SKIP
        8
    """
    imported("ray")
    ray, ended = connected_ray(), 0
    for each in ray.util.list_named_actors(all_namespaces=True):
        if each["namespace"] == NAMESPACE:
            with suppress(ValueError):  # its node was lost meanwhile
                ray.kill(ray.get_actor(each["name"], NAMESPACE))
                ended += 1
    return ended


@dataclass
class _Member:
    """A node, its actor, and the call that is under way: for its place, then for the checkpoint."""

    node_id: str
    address: str
    actor: Any
    call: Any = None
    place: Place | None = None
    again_at: float = 0.0
    attempts: int = 0
    asked: Any = None  # the call for `done`
    done: tuple[int, int] = (0, 0)
    report: NodeReport | None = None
    error: BaseException | None = field(default=None, repr=False)


class _Fleet:
    """The nodes of one call of `warm`."""

    def __init__(self, ray: Any, request: Request, nodes: NodesOption, cache_dir: str | None) -> None:
        self._ray, self._request, self._nodes, self._cache_dir = ray, request, nodes, cache_dir
        self._arguments = {name: getattr(request, name) for name in ("uri", "storage_options", "options")}
        self._label = ", ".join(redact(each) for each in request.uris)
        self._members: dict[str, _Member] = {}
        self._alive: set[str] = set()
        self._others: dict[
            Any, str
        ] = {}  # the actors of the other nodes of the cluster, with the addresses of their servers
        self._told: tuple[str, ...] = ()  # addresses, to all
        self._looked = -LOOK_EVERY_S
        self._began = time.monotonic()
        self._total_bytes, self._shown = 0, Progress(False, 0, "")

    def step(self) -> bool:
        """Start what is due, and wait a moment for what is under way; return whether anything is."""
        if time.monotonic() >= self._looked + LOOK_EVERY_S:
            self._look()
        waiting = [each for each in self._members.values() if each.report is None]
        self._introduce(waiting)
        for each in waiting:
            if each.call is None and time.monotonic() >= each.again_at:
                each.call = self._next_call(each)
        calls = {each.call: each for each in waiting if each.call is not None}
        if calls:
            for call in self._ray.wait([*calls], timeout=LOOK_EVERY_S / 2)[0]:
                self._take(calls[call])
        elif waiting:
            time.sleep(LOOK_EVERY_S / 2)
        return bool(waiting)

    def close(self) -> None:
        """Stop showing the progress."""
        self._shown.close()

    def report(self) -> FleetReport:
        """Return the report; raise an error if a node failed that is still there."""
        reports = tuple(each.report for each in self._members.values() if each.report is not None)
        failed = [each for each in self._members.values() if each.report and each.report.outcome == "failed"]
        if failed:
            first, error = failed[0], failed[0].error
            where = f"{len(failed)} of {counted(len(reports), 'node')} could not be warmed; node {first.address}"
            raise of_node(where, error, self._label) from error
        return FleetReport(self._label, reports, time.monotonic() - self._began)

    def _look(self) -> None:
        """Give each node that joined its actor, and show what was read."""
        is_first, self._looked = not self._members, time.monotonic()
        alive = {each["NodeID"]: each for each in self._ray.nodes() if each["Alive"]}
        self._alive = {*alive}
        for node_id, node in alive.items():
            if node_id not in self._members and self._is_wanted(node):
                self._members[node_id] = _Member(node_id, node["NodeManagerAddress"], self._actor(node))
        if not self._members:
            raise UsageError("no node of the cluster is wanted", hint="Look at ray.nodes(), and change nodes=")
        if is_first:
            self._find_others()
        self._show()

    def _find_others(self) -> None:
        """Find the actors of nodes that are not wanted: they give what they have."""
        names = {actor_name(node_id) for node_id in self._alive - self._members.keys()}
        calls: dict[Any, Any] = {}
        for each in self._ray.util.list_named_actors(all_namespaces=True):
            if each["namespace"] == NAMESPACE and each["name"] in names:
                with suppress(ValueError):  # it ended meanwhile
                    actor = self._ray.get_actor(each["name"], NAMESPACE)
                    calls[actor.place.remote()] = actor
        answered = self._ray.wait([*calls], num_returns=len(calls), timeout=ANSWER_S)[0] if calls else []
        for call in answered:
            with suppress(self._ray.exceptions.RayError):
                self._others[calls[call]] = Place(*self._ray.get(call)).address

    def _introduce(self, waiting: Sequence[_Member]) -> None:
        """Once all nodes that are there have answered, tell everybody of each that serves."""
        if any(each.place is None for each in waiting):
            return
        addresses = {each.place.address for each in self._left() if each.place} | {*self._others.values()}
        serving = tuple(sorted(addresses - {""}))
        if serving != self._told:
            self._told = serving
            for actor in [*(each.actor for each in self._left()), *self._others]:
                actor.meet.remote(serving)

    def _left(self) -> list[_Member]:
        return [each for each in self._members.values() if each.report is None or each.report.outcome == "warm"]

    def _next_call(self, member: _Member) -> Any:
        """Start the next call to a node: for its place, or, when its turn has come, for the checkpoint."""
        if member.place is not None:
            left = self._left()
            having = sum(each.report is not None for each in left)
            reading = sum(each.place is not None and each.call is not None for each in left)
            is_late = len(self._told) > 1 and reading >= max(MOST_ASKED, FOLLOWERS * having)
            if is_late or any(each.place is None for each in left):
                return None
        member.attempts += 1
        if member.place is None:
            return member.actor.place.remote()
        return member.actor.warm.remote(self._arguments, self._cache_dir, self._told)

    def _is_wanted(self, node: dict[str, Any]) -> bool:
        if callable(self._nodes):
            return bool(self._nodes(node))
        return self._nodes is None or node["NodeID"] in self._nodes

    def _actor(self, node: dict[str, Any]) -> Any:
        """Return the actor of a node, and start it if there is none."""
        node_id = node["NodeID"]
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        return (
            self._ray.remote(NodeCache)
            .options(
                name=actor_name(node_id),
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=8,
                scheduling_strategy=strategy,
            )
            .remote(self._cache_dir, node["NodeManagerAddress"])
        )

    def _take(self, member: _Member) -> None:
        """Take the result of a call, or ask again if the process of the actor died."""
        errors, call, member.call = self._ray.exceptions, member.call, None
        try:
            result = self._ray.get(call)
        except errors.RayTaskError as error:
            self._end(member, "failed", error.cause)
        except errors.ActorUnschedulableError as error:  # no RayActorError
            self._end(member, "lost", error)
        except errors.RayError as error:
            member.again_at, member.place, self._told = time.monotonic() + PAUSE_S, None, ()
            if member.node_id not in self._alive:
                self._end(member, "lost", error)
            elif isinstance(error, errors.ActorDiedError) or member.attempts >= ATTEMPTS:
                self._end(member, "failed", error)
        else:
            self._go_on(member, result)

    def _go_on(self, member: _Member, result: Any) -> None:
        """Take what a call has returned."""
        if isinstance(result, tuple):
            member.place = Place(*result)
        else:
            figures = (result.bytes, result.read_bytes, result.peer_bytes, time.monotonic() - self._began)
            member.done = (result.read_bytes, result.read_bytes)
            member.report = NodeReport(member.node_id, member.address, "warm", *figures)

    def _end(self, member: _Member, outcome: str, error: BaseException) -> None:
        text = str(error).strip().partition("\n")[0]
        member.report, member.error = NodeReport(member.node_id, member.address, outcome, error=text), error
        member.done = (0, 0)

    def _show(self) -> None:
        """Show the bytes of all nodes; each is asked once, and answers when it can."""
        for each in self._members.values():
            if each.asked is not None and self._ray.wait([each.asked], timeout=0)[0]:
                with suppress(self._ray.exceptions.RayError):  # the next look asks again
                    each.done = self._ray.get(each.asked)
                each.asked = None
            if each.asked is None and each.report is None:
                each.asked = each.actor.done.remote()
        done, total = (sum(counts) for counts in zip(*(each.done for each in self._members.values()), strict=True))
        if total != self._total_bytes:  # a node has begun, joined or gone
            self._shown.close()
            self._total_bytes = total
            label = f"{self._label} on {counted(len(self._members), 'node')}"
            self._shown = Progress(self._request.progress, total, label)
        self._shown.update(lambda: done)
