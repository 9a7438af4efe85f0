"""Parts of several objects, sent at the same time: in bounded memory, in order where that is needed, failures first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamer.core.store.part_sender import PartSender


class Recorded:
    """An upload that notes what is sent, and how much at the same time."""

    needs_equal_parts = True

    def __init__(self, parallel_parts: int, *, fails_at: int | None = None) -> None:
        self.parallel_parts, self._fails_at = parallel_parts, fails_at
        self.content = bytearray(100)
        self.offsets: list[int] = []
        self.most = self._running = 0
        self._guard = threading.Lock()

    def send(self, offset_bytes: int, part: memoryview) -> None:
        with self._guard:
            self._running += 1
            self.most = max(self.most, self._running)
            self.offsets.append(offset_bytes)
        threading.Event().wait(0.002)
        if offset_bytes == self._fails_at:
            raise ConnectionError("gone")
        self.content[offset_bytes : offset_bytes + part.nbytes] = part
        with self._guard:
            self._running -= 1

    def finish(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


def parts(made: list[int]) -> Iterator[memoryview]:
    for number in range(10):
        made.append(number)
        yield memoryview(bytes([number]) * 10)


@pytest.mark.parametrize("parallel", [1, 2, 16])
def test_all_parts_arrive_and_no_more_at_a_time_than_the_storage_takes(parallel: int) -> None:
    upload, sent = Recorded(parallel), []
    with PartSender(4) as sender:
        sender.send(upload, parts([]), sent.append)
    assert bytes(upload.content) == b"".join(bytes([number]) * 10 for number in range(10))
    assert upload.most <= min(parallel, 4)
    assert sum(sent) == 100
    assert parallel > 1 or upload.offsets == sorted(upload.offsets)


def test_objects_that_take_one_part_at_a_time_are_sent_beside_each_other() -> None:
    uploads = [Recorded(1) for _ in range(4)]
    with PartSender(4) as sender, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda upload: sender.send(upload, parts([]), lambda _: None), uploads))
    assert {bytes(upload.content) for upload in uploads} == {b"".join(bytes([n]) * 10 for n in range(10))}
    assert {upload.most for upload in uploads} == {1}


def test_a_failure_ends_the_sending_and_few_parts_are_made() -> None:
    upload, made = Recorded(2, fails_at=20), []
    with PartSender(2) as sender, pytest.raises(ConnectionError, match="gone"):
        sender.send(upload, parts(made), lambda _: None)
    assert len(made) <= 6
