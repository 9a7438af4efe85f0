"""Copies a checkpoint from one storage to another with all nodes of a Ray cluster: each sends some of its files.

The files are tasks of Ray, the largest first, some for each node at a time; if a node is lost, Ray runs its tasks on
others. Guarantees: each file is sent by `streamer.copy`, and, with `verify`, compared with its source when it is there.
The index shows up last, when all other files are there and no file of the source has changed. A second call sends only
what is missing. An error names the node on which it happened, and what was sent stays.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from streamer._pull.record import PullArguments
from streamer._push.copies import patterns_of, place_of
from streamer._push.push import Target, push
from streamer._push.report import PushReport
from streamer.compat.hooks import imported
from streamer.core.errors import StorageError, StreamerError
from streamer.core.peers.ray_actors import connected_ray
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import redact
from streamer.integrations.ray.warming import of_node

if TYPE_CHECKING:
    from streamer.core.options.options import Options

FILES_PER_NODE = 2  # at a time: while one ends, the other one sends


@dataclass(frozen=True)
class FleetCopyReport:
    """The result of `copy`."""

    files: PushReport  # of all files, as `streamer.copy` returns it
    nodes: Mapping[str, int]  # bytes that each node sent, by its address; the driver sends what shows up last


def copy(
    source: str | os.PathLike[str],
    uri: str | os.PathLike[str],
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    verify: bool = True,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    resources: Mapping[str, Any] | None = None,
) -> FleetCopyReport:
    """Copy files from one storage to another with the nodes of a Ray cluster; the index of a checkpoint shows up last.

    A second call continues where the first one stopped. No file is replaced.

    Args:
        source: As for `streamer.copy`; a folder of a disk must be there on each node.
        uri: As for `streamer.copy`.
        include: As for `streamer.copy`.
        exclude: As for `streamer.copy`.
        verify: Whether the node that sent a file compares it afterwards: by the digests that both storages keep, or,
            if these cannot be compared, by reading it.
        source_options: Storage options of the source. Best are none: then each node uses its own login.
        target_options: Storage options of the target.
        options: As for `load`; ``max_bytes_per_second`` limits each file.
        resources: Options of a task of Ray for each file, such as ``{"num_cpus": 4}`` or a ``label_selector``; one CPU
            by default.

    Raises:
        UsageError: As for `streamer.copy`, or this process is not connected to a cluster.
        StorageError: As for `streamer.copy`; what other nodes have begun is ended before.

    Example:
        >>> streamer.ray.copy("hf://org/model", "s3://bucket/model").files.sent_bytes       # doctest: +SKIP
        809000000000
    """
    imported("ray")
    source, source_options = place_of(source, source_options)
    uri, target_options = place_of(uri, target_options)
    wanted = PullArguments(
        include=patterns_of(include),
        exclude=patterns_of(exclude),
        is_verified=verify,
        storage_options=source_options,
        options=options,
    )
    target = Target(uri, target_options)
    fleet = _Copies(connected_ray(), source, target, wanted, resources or {})
    return FleetCopyReport(push(source, target, wanted, progress=False, divide=fleet.send), fleet.nodes)


@dataclass
class _Copies:
    """The tasks of one call of `copy`."""

    ray: Any
    source: str
    target: Target
    wanted: PullArguments
    resources: Mapping[str, Any]
    nodes: dict[str, int] = field(default_factory=dict)

    def send(self, sizes: Mapping[str, int]) -> None:
        """Have the nodes send files."""
        waiting, running = sorted(sizes, key=lambda name: sizes[name]), dict[Any, str]()
        task = self.ray.remote(_send).options(**{"scheduling_strategy": "SPREAD", **self.resources})
        failure: StreamerError | None = None
        while running or (waiting and failure is None):
            most = FILES_PER_NODE * sum(bool(each["Alive"]) for each in self.ray.nodes())
            while waiting and failure is None and len(running) < most:
                name = waiting.pop()
                running[task.remote(self.source, self.target, self.wanted, name)] = name
            for ended in self.ray.wait([*running], timeout=1.0)[0]:
                name = running.pop(ended)
                failure = self._take(ended, name, sizes[name]) or failure
        if failure is not None:
            raise failure

    def _take(self, task: Any, name: str, size_bytes: int) -> StreamerError | None:
        label = redact(self.target.uri)
        try:
            address, error = self.ray.get(task)
        except self.ray.exceptions.RayError as ended:
            hint = "Run it again: files that were sent are kept"
            reason = str(ended).strip().partition("\n")[0]
            return StorageError(f"the nodes that were to send {quoted(name)} were lost: {reason}", uri=label, hint=hint)
        if error is None:
            self.nodes[address] = self.nodes.get(address, 0) + size_bytes
            return None
        failure = of_node(f"node {address} could not copy {quoted(name)}", error, label)
        failure.__cause__ = error
        return failure


def _send(source: str, target: Target, wanted: PullArguments, name: str) -> tuple[str, StreamerError | None]:
    """Send one file, and compare it; return the address of this node, and what failed."""
    import ray  # noqa: PLC0415 (as needed)

    address = ray.util.get_node_ip_address()
    part = replace(wanted, include=[glob.escape(name)], is_part=True)
    try:
        for _ in range(1 + wanted.is_verified):  # the second time it is there, and compared
            push(source, target, part, progress=False)
    except StreamerError as error:
        return address, error
    return address, None
