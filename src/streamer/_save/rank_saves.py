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
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from streamer import _native
from streamer._save.parts import PART_BYTES, PartSums, SentParts, ShardBytes, combine_digests, part_bytes_for
from streamer._save.place import Place
from streamer._save.rank_parts import agree
from streamer._save.rank_plan import Held, Piece, RankFile, SentPart, exchanged, steps_of
from streamer._save.saved_tensors import SavedTensors
from streamer._save.saving import Saving
from streamer._save.sealed_shards import SealedShard
from streamer._save.writing import COPIES_OF_PART, Writing, most_parallel
from streamer.core.conditions import Event
from streamer.core.errors import LoadCancelledError, StreamerError
from streamer.core.format.header_writer import TensorLayout
from streamer.core.format.manifest import ALGORITHM
from streamer.core.group.assembly import bytes_before, unpack
from streamer.core.group.member import BEAT_S, Member, State
from streamer.core.options.options import Options
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.part_sender import PartSender, PartStream, Traced
from streamer.core.store.uploads import MOST_PARALLEL_PARTS
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
        "resume=": saving.resume,
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
    how["traced"] = partial(saving.settings.traced, "upload", "send a part")
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
        traced: Traced,
    ) -> None:
        self.member, self._tensors, self._own, self._held = member, tensors, own, held
        self._most_at_a_time, self._is_cancelled, self._silence_s = most_at_a_time, is_cancelled, silence_s
        self._torch, self._traced, self.leads = sys.modules["torch"], traced, member.rank == 0
        self._last_beat = time.monotonic()
        self._checksums: list[tuple[int, str, int, int, int]] = []  # number of the shard, name, begin, end, CRC32C

    def aside(self, work: Callable[[], Result]) -> Result:
        """Run work while the other ranks wait for this one; they are told at once if it fails."""
        with self._telling():
            return self.member.meanwhile(work, self._is_cancelled.set)

    def sums(self, shards: Sequence[ShardBytes], numbers: Sequence[int] = ()) -> dict[int, int]:
        """Compute the CRC-32C of the shards with the numbers that rank 0 passes; return them there."""
        with self._telling():
            asked = [_Begun(number, "", True, MOST_PARALLEL_PARTS) for number in self.member.gather(list(numbers))[0]]
            sums = {each.number: PartSums() for each in asked}
            self._send(shards, asked, sums, lambda _: self._check_wanted())
            parts: list[tuple[int, int, int, int]] = []  # number of the shard, offset, size, CRC-32C
            for told in self.member.gather([(number, *part) for number, each in sums.items() for part in each.parts]):
                parts += map(tuple, told)
        found = dict.fromkeys(sums, 0)
        for number, _, size_bytes, value in sorted(parts):
            found[number] = _native.crc_combine(ALGORITHM, found[number], value, size_bytes)
        return found

    def lead(
        self, writing: Writing, place: Place, shards: Sequence[ShardBytes], *, keeps: bool
    ) -> list[tuple[str, OwningUpload]]:
        """Begin the missing files, and send them with the other ranks; return them by name, ready to show up.

        With `keeps`, they show up on the way, and so stay if an error follows.
        """
        missing = [number for number, name in enumerate(place.shards) if name not in place.left]
        paths = [place.folder + name for name in place.shards]

        def begun_file(number: int) -> Any:
            return writing.begin(paths[number], shards[number].size_bytes, place.existing.get(place.shards[number]))

        def show(numbers: Sequence[int]) -> None:
            for number in numbers:
                writing.show(paths[number], uploads.pop(number), place.existing.get(place.shards[number]))
                writing.keep_shown()

        uploads = self.aside(lambda: {number: begun_file(number) for number in missing})
        begun = [
            _Begun(number, paths[number], getattr(each, "share", lambda: None)(), each.parallel_parts)
            for number, each in uploads.items()
        ]
        # Files that one rank sends in order are sent by all ranks at the same time, one by each.
        at_a_time = 1 if all(each.parallel_parts > 1 for each in begun) else self.member.size
        rounds = _rounds(begun, at_a_time if keeps else max(1, len(begun)))
        with self._telling():
            self.member.gather({"begun": begun, "at_a_time": len(rounds[0]) if rounds else 1})
            self._begin_to_send(begun)
            for some in rounds:
                self._send(shards, some, uploads, writing.note_sent)
                for told in self.member.gather([])[1:]:
                    for number, sent in told:
                        uploads[number].add(sent)
                if keeps:
                    self.aside(partial(show, [each.number for each in some]))
            self._check_unchanged()
            for told in self.member.gather(self._checksums)[1:]:
                self._checksums += map(tuple, told)
        combine_digests(shards, self._checksums)
        return [(place.shards[number], upload) for number, upload in uploads.items()]

    def follow(self, store: Any, shards: Sequence[ShardBytes], *, resumes: bool) -> Mapping[str, Any]:
        """Send this rank's parts of the files that rank 0 begins; return what rank 0 reports when all is over."""
        uploads: dict[int, Any] = {}
        try:
            if resumes:
                self.sums(shards)
            with self._telling():
                told = self.member.gather(None)[0]
                begun = [_Begun(*each) for each in told["begun"]]
                self._begin_to_send(begun)
                for each in begun:
                    part_bytes = part_bytes_for(shards[each.number].size_bytes)
                    joined = None if each.shared is None else store.join_upload(each.path, part_bytes, each.shared)
                    uploads[each.number] = joined and owning(joined, store, each.path, None)
                for some in _rounds(begun, told["at_a_time"]):
                    self._send(shards, some, uploads, lambda _: self._check_wanted())
                    sent = self.aside(partial(_sent, {each.number: uploads[each.number] for each in some}))
                    self.member.gather(sent)
                self._check_unchanged()
                self.member.gather(self._checksums)
                report: Mapping[str, Any] = self.member.gather(None)[0]
                self.member.is_over = True
                return report
        except BaseException:
            for upload in filter(None, uploads.values()):  # rank 0 may be dead
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

    def _begin_to_send(self, begun: Sequence[_Begun]) -> None:
        """Forget checksums of files that are sent again, and give up ranks that are silent: whoever works says so."""
        numbers = {each.number for each in begun}
        self._checksums = [each for each in self._checksums if each[0] not in numbers]
        self.member.silence_s, self.member.silence_option = self._silence_s, "first_byte_timeout_s"

    def _check_unchanged(self) -> None:
        self.member.meanwhile(self._tensors.check_unchanged, lambda: None)

    def _check_wanted(self) -> None:
        if self._is_cancelled.is_set():
            raise LoadCancelledError("the save was cancelled")

    def _send(
        self,
        shards: Sequence[ShardBytes],
        begun: Sequence[_Begun],
        uploads: Mapping[int, Any],
        note: Callable[[int], None],
    ) -> None:
        """Send this rank's parts of some files."""
        if not begun:
            return
        files = [RankFile(0, (), PART_BYTES)] * len(shards)
        for each in begun:
            shard = shards[each.number]
            files[each.number] = RankFile(
                len(shard.prefix),
                shard.inner,
                part_bytes_for(shard.size_bytes),
                is_in_order=each.parallel_parts == 1,
                sender=0 if each.shared is None else None,
                tail_bytes=shard.tail_bytes,
            )
        parallel_parts = min(each.parallel_parts for each in begun)
        with PartSender(min(self._most_at_a_time, parallel_parts), self._traced) as sender:
            parts = SentParts(uploads, parallel_parts)
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

    def _send_step(
        self,
        step: Sequence[SentPart],
        shards: Sequence[ShardBytes],
        parts: SentParts,
        sender: PartSender,
        stream: PartStream,
    ) -> None:
        """Exchange the bytes of one step, and begin to send this rank's part of it, if it has one."""
        rank, meanwhile = self.member.rank, self.member.meanwhile
        own = next((part for part in step if part.sender == rank), None)
        if own is not None:
            meanwhile(lambda: sender.take_place(stream), sender.stop)
        given, got = [0] * self.member.size, [0] * self.member.size
        for part, piece in exchanged(step):
            given[part.sender] += piece.size_bytes if piece.rank == rank else 0
            got[piece.rank] += piece.size_bytes if part.sender == rank else 0
        received = np.empty(0, np.uint8)
        if next(exchanged(step), None):
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
            sender.put(stream, parts.number_of(own.file, own.offset), data)

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
        for part, piece in exchanged(step):
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
                unpack(buffer, piece.at, piece.part, (piece.begin, piece.end), source)
        data = shard.sealed(part.offset, data)
        if shard.has_digests:
            for name, begin, end, at in shard.segments.between(part.offset, part.offset + part.size_bytes):
                value = _native.crc(ALGORITHM, data[at : at + end - begin])
                self._checksums.append((part.file, name, begin, end, value))
        return data


def _sent(uploads: Mapping[int, Any]) -> list[tuple[int, Any]]:
    return [(number, each.sent()) for number, each in uploads.items() if each]


def _rounds(begun: Sequence[_Begun], at_a_time: int) -> list[Sequence[_Begun]]:
    return [begun[first : first + at_a_time] for first in range(0, len(begun), at_a_time)]
