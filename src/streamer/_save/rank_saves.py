"""One rank in a save of a group: it sends its parts of the files, and exchanges bytes with the other ranks for this.

Rank 0 begins the files and lets them show up, as a process that saves alone. In between, each rank sends the parts that
the plan gives it. If one rank fails or dies, all others raise, and each of them removes the parts that it can reach.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from streamer import _native
from streamer._save.parts import PART_BYTES, ShardBytes, part_bytes_for
from streamer._save.place import Place
from streamer._save.rank_parts import agree
from streamer._save.rank_plan import Held, Piece, RankFile, SentPart, steps_of
from streamer._save.saved_tensors import SavedTensors
from streamer._save.saving import Saving
from streamer._save.sealed_shards import SealedShard
from streamer._save.writing import COPIES_OF_PART, Writing, most_parallel
from streamer.core.conditions import Event
from streamer.core.errors import LoadCancelledError, StreamerError
from streamer.core.format.header_writer import TensorLayout
from streamer.core.format.manifest import ALGORITHM, TensorDigest
from streamer.core.group.assembly import bytes_before, clipped, packed
from streamer.core.group.member import BEAT_S, Member, State
from streamer.core.options.options import Options
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.part_sender import PartSender, PartStream
from streamer.core.store.uploads import Upload
from streamer.core.store.versioned_uploads import owning

Result = TypeVar("Result")


def together(saving: Saving, member: Member | None) -> Saving:
    """Agree with the other ranks of a group on what is saved; without any, this process must hold all of it."""
    assert saving.parts is not None
    own = {each.name: each for each in saving.tensors.layouts}
    facts = {
        "metadata=": saving.metadata,
        "max_shard_bytes=": saving.most_shard_bytes,
        "overwrite=": saving.overwrite,
        "digests=": saving.has_digests,
        "key=": "None" if saving.key is None else "a key",
        "context=": saving.key and saving.key.context,
        "hide_names=": saving.hides_names,
    }
    agreed = agree(member, saving.tensors, saving.parts, saving.dropped, facts)
    saving.tensors.layouts = agreed.layouts
    if member is None:
        return saving
    # The bytes of a step that are exchanged take as much memory as one part that is sent.
    most = most_parallel(saving.settings.memory_limit_bytes - COPIES_OF_PART * PART_BYTES)
    cancelled = saving.is_cancelled
    options = (saving.request.options or Options()).filled_from_environment()
    how: Any = {"most_at_a_time": most, "is_cancelled": cancelled, "silence_s": options.first_byte_timeout_s}
    ranks = RankSave(member, saving.tensors, own, agreed.held, **how)
    return replace(saving, metadata=agreed.metadata, ranks=ranks)


class _Begun(NamedTuple):
    """A file that rank 0 has begun, as all ranks know it."""

    number: int  # of the shard
    path: str
    shared: Any  # what `join_upload` takes, or None if only rank 0 can send parts
    parallel_parts: int


class RankSave:
    """See the module's docstring.

    Args:
        member: This rank.
        tensors: Its tensors.
        own: What it holds of each of them, by name, as a tensor of its own.
        held: What all ranks hold of each tensor.
        most_at_a_time: Most parts that this rank sends at the same time.
        is_cancelled: Set when the caller wants the save to end.
        silence_s: How long another rank may be silent.
    """

    def __init__(
        self,
        member: Member,
        tensors: SavedTensors,
        own: Mapping[str, TensorLayout],
        held: Mapping[str, Sequence[Held]],
        *,
        most_at_a_time: int,
        is_cancelled: Event,
        silence_s: float,
    ) -> None:
        self.member, self._tensors, self._own, self._held = member, tensors, own, held
        self._most_at_a_time, self._is_cancelled, self._silence_s = most_at_a_time, is_cancelled, silence_s
        self._torch = sys.modules["torch"]
        self._last_beat = time.monotonic()
        self._checksums: list[tuple[int, str, int, int, int]] = []  # number of the shard, name, begin, end, CRC32C

    def aside(self, work: Callable[[], Result]) -> Result:
        """Run work while the other ranks wait for this one; they are told at once if it fails."""
        with self._telling():
            return self.member.meanwhile(work, self._is_cancelled.set)

    def lead(self, writing: Writing, place: Place, shards: Sequence[ShardBytes]) -> list[tuple[str, OwningUpload]]:
        """Begin all files, and send them with the other ranks; return them by name, ready to show up."""
        paths = [place.folder + name for name in place.shards]

        def begin() -> list[OwningUpload]:
            replaced = [place.existing.get(name) for name in place.shards]
            sizes = [each.size_bytes for each in shards]
            return [writing.begin(*each) for each in zip(paths, sizes, replaced, strict=True)]

        uploads = self.aside(begin)
        shared = [getattr(each, "share", lambda: None)() for each in uploads]
        begun = [
            _Begun(number, path, shared[number], uploads[number].parallel_parts) for number, path in enumerate(paths)
        ]
        with self._telling():
            self.member.gather(begun)
            self._expect_answers()
            self._send(shards, begun, uploads, writing.note_sent)
            for told in self.member.gather({"sent": [], "checksums": self._checksums})[1:]:
                self._checksums += map(tuple, told["checksums"])
                for number, sent in told["sent"]:
                    shared_upload: Any = uploads[number]
                    shared_upload.add(sent)
        self._combine_digests(shards)
        return list(zip(place.shards, uploads, strict=True))

    def follow(self, store: Any, shards: Sequence[ShardBytes]) -> Mapping[str, Any]:
        """Send this rank's parts of the files that rank 0 begins; return what rank 0 reports when all is over."""
        uploads: list[Any] = []
        try:
            with self._telling():
                begun = [_Begun(*each) for each in self.member.gather(None)[0]]
                self._expect_answers()
                for each in begun:
                    part_bytes = part_bytes_for(shards[each.number].size_bytes)
                    joined = None if each.shared is None else store.join_upload(each.path, part_bytes, each.shared)
                    uploads.append(joined and owning(joined, store, each.path, None))
                self._send(shards, begun, uploads, lambda _: self._check_wanted())
                sent = self.aside(lambda: [(number, each.sent()) for number, each in enumerate(uploads) if each])
                self.member.gather({"sent": sent, "checksums": self._checksums})
                report: Mapping[str, Any] = self.member.gather(None)[0]
                self.member.is_over = True
                return report
        except BaseException:
            for upload in filter(None, uploads):  # rank 0 may be dead
                with suppress(StreamerError):
                    upload.abort()
            raise

    def tell_end(self, report: Mapping[str, Any]) -> None:
        """Tell the other ranks that the checkpoint is saved, if they are still there."""
        with suppress(StreamerError):
            self.member.gather(report)
        self.member.is_over = True

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the other ranks of an error in the block before anything is removed."""
        try:
            yield
        except BaseException as error:
            self.member.fail(error)
            raise

    def _expect_answers(self) -> None:
        """Give up a rank that is silent for `first_byte_timeout_s`: from now on, whoever works says so all the time."""
        self.member.silence_s, self.member.silence_option = self._silence_s, "first_byte_timeout_s"

    def _check_wanted(self) -> None:
        if self._is_cancelled.is_set():
            raise LoadCancelledError("the save was cancelled")

    def _send(
        self,
        shards: Sequence[ShardBytes],
        begun: Sequence[_Begun],
        uploads: Sequence[Upload | None],
        note: Callable[[int], None],
    ) -> None:
        files = [
            RankFile(
                len(shard.prefix),
                shard.inner,
                part_bytes_for(shard.size_bytes),
                is_in_order=each.parallel_parts == 1,
                sender=0 if each.shared is None else None,
                tail_bytes=shard.tail_bytes,
            )
            for shard, each in zip(shards, begun, strict=True)
        ]
        parallel_parts = min(each.parallel_parts for each in begun)
        with PartSender(min(self._most_at_a_time, parallel_parts)) as sender:
            parts = _Parts(uploads, parallel_parts)
            stream = sender.stream(parts, lambda _: None)
            has_tags = False
            steps = self.member.meanwhile(lambda: [*steps_of(files, self._held, self.member.size)], sender.stop)
            for step in steps:
                if step[0].is_tail and not has_tags:
                    has_tags = True
                    self._exchange_tags(shards)
                self._send_step(step, shards, parts, sender, stream)
                note(sum(each.size_bytes for each in step))
            self.member.meanwhile(lambda: sender.flush(stream), sender.stop)
        self.member.meanwhile(self._tensors.check_unchanged, lambda: None)

    def _send_step(
        self,
        step: Sequence[SentPart],
        shards: Sequence[ShardBytes],
        parts: _Parts,
        sender: PartSender,
        stream: PartStream,
    ) -> None:
        """Exchange the bytes of one step, and begin to send this rank's part of it, if it has one."""
        rank, meanwhile = self.member.rank, self.member.meanwhile
        own = next((part for part in step if part.sender == rank), None)
        if own is not None:
            meanwhile(lambda: sender.take_place(stream), sender.stop)
        given, got = [0] * self.member.size, [0] * self.member.size
        for part, piece in _exchanged(step):
            given[part.sender] += piece.size_bytes if piece.rank == rank else 0
            got[piece.rank] += piece.size_bytes if part.sender == rank else 0
        received = np.empty(0, np.uint8)
        if next(_exchanged(step), None):
            sent = meanwhile(lambda: self._given(step, given), sender.stop)
            self.member.until_ready(check=self._check_wanted)
            room = self._torch.empty(sum(got), dtype=self._torch.uint8, device=self.member.device)
            received = self.member.exchange(room, sent, got, given)().cpu().numpy()
            self._last_beat = time.monotonic()
        elif time.monotonic() - self._last_beat > BEAT_S:
            self.member.round(State.WAITING)
            self._last_beat = time.monotonic()
        if own is not None:
            data = meanwhile(lambda: self._assembled(own, shards[own.file], received, got), sender.stop)
            sender.put(stream, parts.number_of(own), data)

    def _exchange_tags(self, shards: Sequence[ShardBytes]) -> None:
        """Tell all ranks the tags of the pieces that each has encrypted."""
        sealed = {number: each for number, each in enumerate(shards) if isinstance(each, SealedShard)}
        own = [
            (number, first, base64.b64encode(tags).decode())
            for number, each in sealed.items()
            for first, tags in each.new_tags
        ]
        for told in self.member.gather(own):
            for number, first, tags in told:
                sealed[number].note_tags(first, base64.b64decode(tags))

    def _given(self, step: Sequence[SentPart], sizes: Sequence[int]) -> Any:
        """Copy the bytes that this rank gives to others, rank after rank."""
        given = np.empty(sum(sizes), np.uint8)
        ends = [sum(sizes[:rank]) for rank in range(len(sizes))]
        for part, piece in _exchanged(step):
            if piece.rank == self.member.rank:
                begin, ends[part.sender] = ends[part.sender], ends[part.sender] + piece.size_bytes
                given[begin : ends[part.sender]] = self._local(piece)
        return self._torch.from_numpy(given)

    def _local(self, piece: Piece) -> memoryview:
        first = bytes_before(piece.part, piece.begin)
        return self._tensors.bytes_between(self._own[piece.name], first, first + piece.size_bytes)

    def _assembled(self, part: SentPart, shard: ShardBytes, received: Any, sizes: Sequence[int]) -> memoryview:
        """Return the bytes of a part, and note the checksums of the tensors in it."""
        if len(part.pieces) == 1 and part.pieces[0][-2:] == (part.sender, part.size_bytes):
            data = self._local(part.pieces[0])
        else:
            buffer = self._torch.empty(part.size_bytes, dtype=self._torch.uint8, device="cpu")
            data = memoryview(buffer.numpy())
            header = shard.prefix[part.offset : part.offset + part.size_bytes]
            data[: len(header)] = header
            ends = [sum(sizes[:rank]) for rank in range(len(sizes))]
            for piece in part.pieces:
                begin, ends[piece.rank] = ends[piece.rank], ends[piece.rank] + piece.size_bytes
                is_own = piece.rank == part.sender
                source = np.frombuffer(self._local(piece), np.uint8) if is_own else received[begin : ends[piece.rank]]
                _place(buffer, piece, source)
        data = shard.sealed(part.offset, data)
        if shard.has_digests:
            for name, begin, end, at in shard.segments.between(part.offset, part.offset + part.size_bytes):
                value = _native.crc(ALGORITHM, data[at : at + end - begin])
                self._checksums.append((part.file, name, begin, end, value))
        return data

    def _combine_digests(self, shards: Sequence[ShardBytes]) -> None:
        """Compute the digests of whole tensors from those of all parts."""
        found: dict[tuple[int, str], tuple[int, int]] = {}  # by shard and name: end, and the value up to it
        for number, name, begin, end, value in sorted(self._checksums):
            before_end, before = found.get((number, name), (0, 0))
            assert before_end == begin, "each byte is sent once"
            found[number, name] = end, _native.crc_combine(ALGORITHM, before, value, end - begin)
        for number, shard in enumerate(shards):
            for each in shard.layouts if shard.has_digests else ():
                value = found.get((number, each.name), (0, 0))[1]
                shard.digests[each.name] = TensorDigest(each.dtype, each.shape, each.size_bytes, value)


class _Parts:
    """All parts that this rank sends, as those of one `Upload`; their numbers take the place of offsets."""

    def __init__(self, uploads: Sequence[Upload | None], parallel_parts: int) -> None:
        self._uploads, self.parallel_parts = uploads, parallel_parts
        self._places: list[tuple[int, int]] = []  # file and offset, by number

    def number_of(self, part: SentPart) -> int:
        """Return the number with which `send` is called for a part."""
        self._places.append((part.file, part.offset))
        return len(self._places) - 1

    def send(self, number: int, data: memoryview) -> None:
        """See `Upload.send`."""
        file, offset_bytes = self._places[number]
        upload = self._uploads[file]
        assert upload is not None, "the plan gives parts only to ranks that can send them"
        upload.send(offset_bytes, data)


def _exchanged(step: Sequence[SentPart]) -> Iterator[tuple[SentPart, Piece]]:
    """Yield the pieces that one rank gives to another."""
    for part in step:
        for piece in part.pieces:
            if piece.rank != part.sender:
                yield part, piece


def _place(buffer: Any, piece: Piece, source: Any) -> None:
    """Copy the bytes of a piece to where they belong in a part of a file."""
    at = 0
    for runs in clipped(piece.part, piece.begin, piece.end):
        size_bytes = runs.length * runs.number
        target = packed(buffer, piece.begin - piece.at, runs).numpy()
        target[...] = source[at : at + size_bytes].reshape(target.shape)
        at += size_bytes
