"""One rank of a process group during one load: small messages, and the exchange of bytes between ranks.

Guarantees: two rounds of messages precede each exchange. In the first, each rank reports whether it is ready, so one
failed rank ends the load on all ranks. A rank may time out while it waits in the first round, so in the second round
each rank confirms that it takes part. Every wait for other ranks ends. Nothing but the group that the caller passed is
used.
Every collective is `all_to_all_single`: each rank has a connection to each other one in it, so all notice at once when
one rank dies.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from streamer.core.errors import GroupError, StreamerError
from streamer.core.load_status import RANKS, LoadStatus
from streamer.core.options.limits import Deadline

if TYPE_CHECKING:
    from streamer.core.trace.watcher import Watcher

Result = TypeVar("Result")

ROW_BYTES = 1024
STATE_BYTES, LENGTH_BYTES = 1, 8  # at the start of a row; text follows
FAREWELL_S = 1.0  # a rank that waits for the others joins a round after a quarter of a second
LATE_S = 1.0  # a round takes longer only if a rank does not take part, or waits for one
MOST_SHOWN = 16  # ranks on the status page
BEAT_S = 0.25  # how often a rank that waits for its storage asks the others whether they failed
LOOK_S = 0.05  # between two checks whether a collective is done; Ctrl-C takes effect at these times, too
SILENCE_S = 125.0  # until the options are known: a little longer than a rank waits for a server


class State(IntEnum):
    """What a rank says of itself in a round."""

    READY = 1
    WAITING = 2  # for the storage
    FAILED = 3
    LEFT = 4  # its consumer wants no more tensors


class Member:
    """See the module's docstring.

    Attributes:
        rank: Rank of this process in the group.
        size: Number of ranks.
        device: Where the tensors of a collective lie.
        silence_s: How long the other ranks may be silent.
        silence_option: The option that says so.
        deadline: Deadline of this rank's load, or None.
        status: Status of the load that reads, or None; without it, each wait has its own.
        awaited: Ranks that are not ready, as far as this rank knows.
        processes: By rank, the numbers of processes of this machine.
        watchers: The watchers of this rank's load.
        waited_s: How long this rank has waited for others.
    """

    def __init__(self, group: Any) -> None:
        self._torch = sys.modules["torch"]
        self._distributed = self._torch.distributed
        self._group = group
        self.rank, self.size = self._distributed.get_rank(group), self._distributed.get_world_size(group)
        self.device = self._device()
        self.silence_s, self.silence_option = SILENCE_S, "block_deadline_s"
        self.deadline: Deadline | None = None
        self.watchers: tuple[Watcher, ...] = ()
        self.waited_s = 0.0
        self.is_over = self.size == 1
        self.status: LoadStatus | None = None
        self.awaited: list[int] = []
        self.processes: dict[int, int] = {}
        self._is_committed = False  # the next collective of all ranks is an exchange: no message may take its place

    def round(self, state: State, text: str = "", payload_bytes: int = 0) -> list[tuple[State, int]]:
        """Send the state of this rank to the others, and receive their states.

        Returns:
            By rank, the state and the number of bytes of the rank's payload.
        """
        told = self._finished(*self._begin_round(state, text, payload_bytes))
        rows = [told[rank * ROW_BYTES : (rank + 1) * ROW_BYTES].cpu().numpy().tobytes() for rank in range(self.size)]
        states = [(State(row[0]), int.from_bytes(row[1 : 1 + LENGTH_BYTES], "little")) for row in rows]
        for rank, row in enumerate(rows):
            if states[rank][0] in (State.FAILED, State.LEFT):
                self.is_over = True
                text = row[STATE_BYTES + LENGTH_BYTES :].rstrip(b"\0").decode(errors="replace")
                raise GroupError(f"{self.name_of(rank)} {text}", rank=rank)
        return states

    def until_ready(self, payload_bytes: int = 0, check: Callable[[], None] = lambda: None) -> list[int]:
        """Wait until all ranks are ready; return the bytes of their payloads, by rank."""
        with self._waiting():
            while True:
                check()
                states = self.round(State.READY, payload_bytes=payload_bytes)
                self.awaited = [rank for rank, (state, _) in enumerate(states) if state is not State.READY]
                if not self.awaited:
                    return [size_bytes for _, size_bytes in states]

    def meanwhile(self, work: Callable[[], Result], stop: Callable[[], None]) -> Result:
        """Run work that may take long in a thread, and tell the other ranks meanwhile that this one waits.

        If another rank fails, `stop` is called, which ends the work; its result counts if it has one nevertheless.
        """
        results: list[Result] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="streamer-rank", daemon=True)
        thread.start()
        thread.join(BEAT_S)
        try:
            while thread.is_alive():
                self.round(State.WAITING)
                thread.join(BEAT_S)
        except BaseException as error:
            stop()
            thread.join()
            if not results or not isinstance(error, GroupError):
                raise
        if failures:
            raise failures[0]
        return results[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank; each value consists of JSON types."""
        return [json.loads(text) for text in self.gather_bytes(json.dumps(value).encode())]

    def gather_bytes(self, own: bytes) -> list[bytes]:
        """Return the bytes of all ranks, by rank."""
        lengths = self.until_ready(len(own))
        sent = self._torch.empty(len(own) * self.size, dtype=self._torch.uint8, device="cpu")
        if own:
            sent.view(self.size, -1)[:] = self._torch.frombuffer(bytearray(own), dtype=self._torch.uint8)
        got = self._torch.empty(sum(lengths), dtype=self._torch.uint8, device="cpu")
        got = self.exchange(got, sent, lengths, [len(own)] * self.size)().cpu().numpy().tobytes()
        return [got[sum(lengths[:rank]) :][: lengths[rank]] for rank in range(self.size)]

    def exchange(self, received: Any, sent: Any, received_sizes: Sequence[int], sent_sizes: Sequence[int]) -> Any:
        """Begin to send bytes to each rank, and to receive some from each.

        Returns:
            A function that waits for the end, and returns the received bytes, on `device`.
        """
        sent, received = sent.to(self.device, non_blocking=True), received.to(self.device)
        sizes = list(received_sizes), list(sent_sizes)
        self._is_committed = True
        self.round(State.READY)
        work = self._distributed.all_to_all_single(received, sent, *sizes, group=self._group, async_op=True)
        self._is_committed = False
        return lambda: self._finished(work, received)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank failed, unless the load is already over on all ranks."""
        known = isinstance(error, StreamerError)
        self._say_farewell(State.FAILED, f"failed: {type(error).__name__}{f': {error}' if known else ''}")

    def leave(self) -> None:
        """Tell the others that the consumer of this rank stopped."""
        self._say_farewell(State.LEFT, "closed its stream before the end")

    def name_of(self, rank: int) -> str:
        """Name a rank in a message."""
        return f"rank {rank} of the group ({self.size} ranks)"

    def _say_farewell(self, state: State, text: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._is_committed:  # the others notice when this process ends, or after `silence_s`
            return
        with suppress(Exception):  # the group may be broken; the error to raise is that of this rank
            work, _ = self._begin_round(state, text, 0)
            ends_at = time.monotonic() + FAREWELL_S
            while not work.is_completed() and time.monotonic() < ends_at:
                time.sleep(0.001)

    def _begin_round(self, state: State, text: str, payload_bytes: int) -> tuple[Any, Any]:
        cut = text.encode()[: ROW_BYTES - STATE_BYTES - LENGTH_BYTES]
        row = bytes([state]) + payload_bytes.to_bytes(LENGTH_BYTES, "little") + cut
        sent = self._torch.frombuffer(bytearray(row.ljust(ROW_BYTES, b"\0") * self.size), dtype=self._torch.uint8)
        sent = sent.to(self.device)
        told = self._torch.empty_like(sent)
        return self._distributed.all_to_all_single(told, sent, group=self._group, async_op=True), told

    def _finished(self, work: Any, received: Any) -> Any:
        """Wait for a collective; return what was received."""
        began = time.monotonic()
        try:
            with ExitStack() as stack:
                shown_at = began + (LATE_S if self.status and not self.watchers else 0.0)
                while not self._is_done(work):
                    if time.monotonic() > shown_at:
                        shown_at = math.inf
                        stack.enter_context(self._waiting())
                    if self.status is not None:
                        self.status.update(self._facts)
                    self._check_time(began)
            work.wait()  # raises the collective's error; later work of an accelerator's stream waits for the collective
        except StreamerError:
            raise
        except Exception as error:
            self.is_over = True
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            message = f"a rank of the group ended, or its connection did: {reason}"
            raise GroupError(message, hint="The other ranks' errors say why") from error
        finally:
            self.waited_s += time.monotonic() - began
        return received

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Show on the status page that this rank waits for others."""
        watchers = [each.session() for each in self.watchers]
        own = None if self.status else LoadStatus(self.name_of(self.rank), 0, RANKS, watchers=watchers)
        self.status = self.status or own
        assert self.status is not None
        try:
            with self.status.during(RANKS):
                yield
        finally:
            if own is not None:
                own.close()
                self.status = None

    def _facts(self) -> dict[str, Any]:
        return {"awaited_ranks": self.awaited[:MOST_SHOWN], "processes": self.processes}

    def _is_done(self, work: Any) -> bool:
        if self.device.type != "cpu":
            time.sleep(0.0005)
        else:
            with suppress(RuntimeError):  # "Operation timed out!", or an error that the next line finds, too
                work.wait(timedelta(seconds=LOOK_S))
        return bool(work.is_completed())

    def _check_time(self, began: float) -> None:
        if self.deadline is not None and self.deadline.is_over and not self._is_committed:
            raise self.deadline.error("the other ranks of the group were not ready in time", "")
        if time.monotonic() - began <= self.silence_s:
            return
        self.is_over = True
        raise GroupError(
            f"other ranks of the group did not answer for {self.silence_s:.0f} s",
            hint="Call it on all ranks with the same arguments. If one was only busy with your code between two"
            f" tensors, or stopped by its machine, raise {self.silence_option} in Options",
        )

    def _device(self) -> Any:
        backends = str(self._distributed.get_backend_config(self._group))  # "cpu:gloo,cuda:nccl"
        kinds = [each.partition(":")[0] for each in backends.split(",")]
        if "cpu" in kinds:
            return self._torch.device("cpu")
        return self._torch.device(kinds[0], getattr(self._torch, kinds[0]).current_device())
