"""Copies a checkpoint from one storage to another with all nodes of a Ray cluster: each sends some of its files.

Each file is a task (`tasks.py`). Guarantees: each file is sent by `streamer.copy`, and, with `verify`, compared with
its source when it is there. The index shows up last, when all other files are there and no file of the source has
changed. A second call sends only what is missing. An error names the node on which it happened. What was sent stays.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamer._pull.record import PullArguments
from streamer._push.copies import patterns_of, place_of
from streamer._push.push import Target, push
from streamer._push.report import PushReport
from streamer.compat.hooks import imported
from streamer.core.peers.ray_actors import connected_ray
from streamer.integrations.ray.tasks import FileTasks

if TYPE_CHECKING:
    from streamer.core.options.options import Options


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
    nodes: Counter[str] = Counter()
    tasks = FileTasks(connected_ray(), "copy", uri, resources or {})

    def divide(sizes: Mapping[str, int]) -> None:
        parts = {name: replace(wanted, include=[glob.escape(name)], is_part=True) for name in sizes}
        for name, address, _ in tasks.run(_send, {each: (source, target, parts[each]) for each in sizes}, sizes):
            nodes[address] += sizes[name]

    return FleetCopyReport(push(source, target, wanted, progress=False, divide=divide), dict(nodes))


def _send(source: str, target: Target, part: PullArguments) -> None:
    """Send one file, and compare it."""
    for _ in range(1 + part.is_verified):  # the second time it is there, and compared
        push(source, target, part, progress=False)
