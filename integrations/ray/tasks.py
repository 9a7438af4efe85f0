"""Tasks of Ray that each write one file, on any nodes of a cluster.

The largest files come first, some for each node at a time. If a node is lost, Ray runs its tasks on others. After an
error no task begins, and those that run end first. The error names the node on which it happened, and the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from streamer.core.errors import StorageError, StreamerError
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import redact
from streamer.integrations.ray.warming import of_node

FILES_PER_NODE = 2  # at a time: while one ends, the other one sends


@dataclass(frozen=True)
class FileTasks:
    """The tasks of one call."""

    ray: Any
    verb: str  # what the nodes do with a file, for messages
    uri: str  # the place of the files that the nodes write
    resources: Mapping[str, Any]  # options of each task

    def run(
        self, work: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]], sizes: Mapping[str, int]
    ) -> Iterator[tuple[str, str, Any]]:
        """Call `work` for each file with its arguments; yield name, address of the node and result as they end."""
        waiting, running = sorted(arguments, key=lambda name: sizes[name]), dict[Any, str]()
        task = self.ray.remote(_on_node).options(**{"scheduling_strategy": "SPREAD", **self.resources})
        failure: StreamerError | None = None
        while running or (waiting and failure is None):
            most = FILES_PER_NODE * sum(bool(each["Alive"]) for each in self.ray.nodes())
            while waiting and failure is None and len(running) < most:
                name = waiting.pop()
                running[task.remote(work, arguments[name])] = name
            for ended in self.ray.wait([*running], timeout=1.0)[0]:
                name = running.pop(ended)
                try:
                    result = self._result(ended, name)
                except StreamerError as error:
                    failure = error
                    continue
                yield name, *result
        if failure is not None:
            raise failure

    def _result(self, task: Any, name: str) -> tuple[str, Any]:
        label, what = redact(self.uri), f"{self.verb} {quoted(name)}"
        try:
            address, result = self.ray.get(task)
        except self.ray.exceptions.RayTaskError as failed:
            raise of_node(f"a node could not {what}", failed.cause, label) from failed
        except self.ray.exceptions.RayError as ended:
            hint = "Run it again: files that were sent are kept"
            reason = str(ended).strip().partition("\n")[0]
            raise StorageError(f"the nodes that were to {what} were lost: {reason}", uri=label, hint=hint) from ended
        if isinstance(result, StreamerError):
            raise of_node(f"node {address} could not {what}", result, label) from result
        return address, result


def _on_node(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Return the address of this node, and the result, or what failed."""
    import ray  # noqa: PLC0415 (as needed)

    address = ray.util.get_node_ip_address()
    try:
        return address, work(*arguments)
    except StreamerError as error:
        return address, error
