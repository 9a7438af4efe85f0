"""Encrypts the bytes of a shard on their way to the storage.

Guarantees: every piece is encrypted once, with a key of its file alone, so no nonce occurs twice: a shard yields its
bytes only once, and no more of them than its header says. Memory holds the encrypted bytes of the parts in flight, and
a run for each thread that encrypts. The threads read one piece of a tensor at a time, as the parts of a plain file do,
while the thread that makes the parts hands on the runs before. After `SealingThreads.close`, no thread reads the memory
of a tensor. A run whose thread failed raises the failure where it is taken. Without a free processor, or if the system
gives no thread, the caller encrypts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate, pairwise
from queue import SimpleQueue
from typing import TYPE_CHECKING

from streamer import _native
from streamer._save.parts import Segments, ShardBytes, tensor_changed
from streamer._save.saved_tensors import SavedTensors
from streamer.core.conditions import Event
from streamer.core.encryption.keys import KeySource
from streamer.core.encryption.sealed_files import (
    HEADER_TENSOR,
    PAYLOAD_TENSOR,
    TAG_BYTES,
    TAGS_TENSOR,
    SealedFile,
    SealedParameters,
    cipher_of,
    new_parameters,
    parsed_parameters,
    reserved_name,
    tags_digest,
    tensor_name,
)
from streamer.core.encryption.secret_keys import SecretKey
from streamer.core.errors import EngineError
from streamer.core.format.header_entries import ENCRYPTION_METADATA
from streamer.core.format.header_writer import TensorLayout, render_header
from streamer.core.options.machine import processors

if TYPE_CHECKING:
    from streamer._save.rank_saves import RankSave

WORTH_A_THREAD_BYTES = 1 << 20  # to hand over less takes longer than to encrypt it


class SealedRun:
    """A run of whole pieces that is encrypted once."""

    def __init__(self, cipher: _native.PieceCipher, plain: memoryview, position: int, first: int) -> None:
        self._cipher, self._position, self._first = cipher, position, first
        self._plain: memoryview | None = plain
        self._sealed: tuple[_native.Memory, bytes] | None = None
        self._failure: BaseException | None = None
        self._done = Event()

    def encrypt(self) -> None:
        """Encrypt the run; called once."""
        assert self._plain is not None
        try:
            self._sealed = self._cipher.encrypt(self._plain, self._position, self._first)
        except BaseException as error:
            self._failure = error
        finally:
            self._plain = None
            self._done.set()

    def wait(self) -> None:
        """Wait until the bytes of the tensor are not needed any more; encryption waits for nothing."""
        self._done.wait()

    def take(self) -> tuple[memoryview, bytes]:
        """Wait for the run; return its encrypted bytes, and the tags of its pieces."""
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        assert self._sealed is not None
        data, tags = self._sealed
        return memoryview(data), tags


class SealingThreads:
    """Threads that encrypt the runs of one file; they start when they are needed."""

    def __init__(self, count: int) -> None:
        self._count, self._threads = count, list[threading.Thread]()
        self._waiting: SimpleQueue[SealedRun | None] = SimpleQueue()

    def put(self, run: SealedRun, size_bytes: int) -> None:
        """Encrypt a run on a thread, or here if it is small."""
        if size_bytes < WORTH_A_THREAD_BYTES or not self._started():
            run.encrypt()
        else:
            self._waiting.put(run)

    def close(self) -> None:
        """Join the threads; runs that were put are encrypted before."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _started(self) -> bool:
        """Start another thread, as long as there may be more; say whether there is any."""
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name=f"streamer-seal{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left: those that run encrypt this run, too
                self._count = len(self._threads)
            else:
                self._threads.append(thread)
        return bool(self._threads)

    def _work(self) -> None:
        while (run := self._waiting.get()) is not None:
            run.encrypt()
            del run  # which may hold memory, while this thread waits


# Most bytes that are encrypted at a time: a part of an upload, so that a part is one run and is not copied.
RUN_BYTES = 16 << 20
# For each file that is sent, of which there are several at a time. Each takes the memory of a run, and a processor
# encrypts some GB/s.
MOST_THREADS = 2


def sealed_shards(
    groups: list[list[TensorLayout]],
    tensors: SavedTensors,
    metadata: Mapping[str, str],
    key: KeySource,
    *,
    hides_names: bool,
    has_digests: bool,
    ranks: RankSave | None = None,
) -> list[SealedShard]:
    """Lay out the encrypted files of one checkpoint, on all ranks of a group with the parameters of rank 0."""
    reserved = [each.name for group in groups for each in group if each.name.startswith("streamer.")]
    if reserved:
        raise reserved_name(reserved[0])
    parameters = list[SealedParameters]()
    if ranks is None or ranks.member.rank == 0:
        new_key = key.new_key()
        secret = new_key.key
        parameters = new_parameters(new_key, len(groups), hides_names=hides_names, context=key.context)
    told = [] if ranks is None else ranks.member.gather([each.rendered() for each in parameters])[0]
    if not parameters:
        found = [parsed_parameters({ENCRYPTION_METADATA: each}, "") for each in told]
        parameters = [each for each in found if each is not None]
        secret = key.key_for(parameters[0].key_id, parameters[0].wrapped, "")
    return [
        SealedShard(each, secret, group, tensors, metadata, has_digests=has_digests)
        for each, group in zip(parameters, groups, strict=True)
    ]


class SealedShard(ShardBytes):
    """The bytes of one encrypted shard; see docs/encryption.md for their format."""

    def __init__(
        self,
        parameters: SealedParameters,
        key: SecretKey,
        inner: list[TensorLayout],
        tensors: SavedTensors,
        metadata: Mapping[str, str],
        *,
        has_digests: bool,
    ) -> None:
        self._parameters, self._inner = parameters, inner
        self.new_tags: list[tuple[int, bytes]] = []  # of the pieces that `sealed` has encrypted, and their first number
        self._inner_header = render_header(inner, metadata) if parameters.hides_names else b""
        outer = {} if parameters.hides_names else dict(metadata)
        outer[ENCRYPTION_METADATA] = parameters.rendered()
        size_bytes = parameters.piece_bytes
        most = 3 + sum(each.size_bytes // size_bytes + 2 for each in inner) + len(self._inner_header) // size_bytes
        least_bytes = len(render_header(self._layouts(most), outer))  # pieces depend on where the first tensor begins
        layouts = self._layouts(1 + self._count_pieces(least_bytes))
        header = render_header(layouts, outer, least_bytes=least_bytes)
        super().__init__(header, tensors, layouts, has_digests=has_digests)
        self.prefix, self.inner, self.tail_bytes = header + self._inner_header, inner, layouts[-1].size_bytes
        self._cipher = cipher_of(key, parameters, header)
        self._tags, self._digest = bytearray(TAG_BYTES), tags_digest(key, parameters, header)
        self._position, self._next_piece = len(header), 1  # tag 0 is no piece's
        self._most_ahead = MOST_THREADS if processors() > 1 else 0  # runs that are encrypted before they are taken
        self._threads = SealingThreads(self._most_ahead)
        self._is_begun = False

    @property
    def held_bytes(self) -> int:
        """Most memory of a tensor that is read, or copied, and of the runs that are encrypted."""
        runs_bytes = min((1 + self._most_ahead) * RUN_BYTES, self.size_bytes)
        return runs_bytes + max((self._tensors.held_bytes(each) for each in self._inner), default=0)

    @property
    def content(self) -> Iterable[memoryview]:
        """The pieces, which are made once."""
        return self.pieces()

    @cached_property
    def _numbers(self) -> tuple[Segments, SealedFile]:
        """Which tensors lie where, and the numbers of their pieces."""
        begin, first = len(self.header), len(self._inner_header)
        inner = [TensorLayout("", "U8", (first,), first), *self._inner]
        ranges = pairwise(accumulate((each.size_bytes for each in inner), initial=begin))
        return Segments(begin, inner), SealedFile(self._parameters, self._cipher, b"", ranges)

    def sealed(self, offset_bytes: int, plain: memoryview) -> memoryview:
        """Encrypt a part of whole pieces, once; fill in the tags, which must all be noted by then."""
        segments, file = self._numbers
        for _, low, high, at in segments.between(offset_bytes, offset_bytes + plain.nbytes):
            begin, end = offset_bytes + at, offset_bytes + at + high - low
            first = file.first_piece(begin, end)
            assert first is not None, "parts consist of whole pieces"
            data, tags = self._cipher.encrypt(plain[at : at + high - low], begin, first)
            self.note_tags(first, tags)
            self.new_tags.append((first, tags))
            if end - begin == plain.nbytes:
                return memoryview(data)
            plain[at : at + high - low] = memoryview(data)
        begin = self.size_bytes - self.tail_bytes
        if offset_bytes + plain.nbytes > begin:
            digest = self._digest.copy()
            digest.update(self._tags[TAG_BYTES:])
            self.note_tags(0, digest.digest()[:TAG_BYTES])
            low = max(offset_bytes, begin)
            plain[low - offset_bytes :] = self._tags[low - begin : offset_bytes + plain.nbytes - begin]
        return plain

    def note_tags(self, first: int, tags: bytes) -> None:
        """Note the tags of some pieces."""
        self._tags.extend(bytes(self.tail_bytes - len(self._tags)))
        self._tags[TAG_BYTES * first : TAG_BYTES * first + len(tags)] = tags

    def contents(self) -> Iterator[tuple[TensorLayout, Iterable[memoryview]]]:
        """Yield each tensor of the file with its encrypted pieces, and last the tags."""
        if self._is_begun:
            raise EngineError("an encrypted shard is written once: its pieces would be encrypted twice")
        self._is_begun = True
        try:
            if self._inner_header:
                yield self.layouts[0], self._encrypted([memoryview(self._inner_header)], self.layouts[0])
                yield self.layouts[1], (run for each in self._inner for run in self._of_tensor(each))
            else:
                for each in self._inner:
                    yield each, self._of_tensor(each)
        finally:
            self._threads.close()
        self._tags[:TAG_BYTES] = self._digest.digest()[:TAG_BYTES]
        yield self.layouts[-1], [memoryview(self._tags)]

    def _layouts(self, tags: int) -> list[TensorLayout]:
        shard, shards = self._parameters.shard, self._parameters.shards

        def layout(kind: str, size_bytes: int) -> TensorLayout:
            return TensorLayout(tensor_name(kind, shard, shards), "U8", (size_bytes,), size_bytes)

        last = layout(TAGS_TENSOR, TAG_BYTES * tags)
        if not self._parameters.hides_names:
            return [*self._inner, last]
        payload = layout(PAYLOAD_TENSOR, sum(each.size_bytes for each in self._inner))
        return [layout(HEADER_TENSOR, len(self._inner_header)), payload, last]

    def _count_pieces(self, position: int) -> int:
        size, count = self._parameters.piece_bytes, 0
        for size_bytes in (len(self._inner_header), *(each.size_bytes for each in self._inner)):
            end = position + size_bytes
            count += -(-end // size) - position // size if size_bytes else 0
            position = end
        return count

    def _of_tensor(self, layout: TensorLayout) -> Iterator[memoryview]:
        return self._encrypted(self._tensors.pieces(layout), layout)

    def _encrypted(self, plain: Iterable[memoryview], layout: TensorLayout) -> Iterator[memoryview]:
        """Encrypt one tensor in runs of whole pieces, a few of them ahead of the one that is handed on."""
        begin, ahead = self._position, deque[SealedRun]()
        for run in _runs(_one_after_the_other(plain, ahead), begin, self._parameters.piece_bytes):
            end = self._position + run.nbytes
            if end - begin > layout.size_bytes:  # what follows would be encrypted with the numbers of other pieces
                raise tensor_changed(layout, end - begin)
            ahead.append(SealedRun(self._cipher, run, self._position, self._next_piece))
            self._threads.put(ahead[-1], run.nbytes)
            self._next_piece += self._cipher.pieces_in(self._position, end)
            self._position = end
            if len(ahead) > self._most_ahead:
                yield self._taken(ahead.popleft())
        while ahead:
            yield self._taken(ahead.popleft())
        if self._position - begin != layout.size_bytes:
            raise tensor_changed(layout, self._position - begin)

    def _taken(self, run: SealedRun) -> memoryview:
        data, tags = run.take()
        self._tags += tags
        self._digest.update(tags)
        return data


def _one_after_the_other(plain: Iterable[memoryview], ahead: Iterable[SealedRun]) -> Iterator[memoryview]:
    """Let go of each piece of a tensor before the next one is read: it may be as large as memory has room for."""
    for each in plain:
        yield each
        del each
        for run in ahead:
            run.wait()


def _runs(plain: Iterable[memoryview], position: int, piece_bytes: int) -> Iterator[memoryview]:
    """Join and cut the bytes of a tensor, which begins at a position of the file, into runs of whole pieces.

    Example:
        >>> [bytes(run) for run in _runs([memoryview(b"abc"), memoryview(b"defghij")], 2, 4)]
        [b'ab', b'cdef', b'ghij']
    """
    rest = bytearray()
    for each in plain:
        begin = 0
        if rest:
            begin = min(each.nbytes, piece_bytes - (position + len(rest)) % piece_bytes)
            rest += each[:begin]
            if (position + len(rest)) % piece_bytes:
                continue
            yield memoryview(rest)
            position, rest = position + len(rest), bytearray()
        while begin < each.nbytes:
            end = min((position // RUN_BYTES + 1) * RUN_BYTES, position + each.nbytes - begin) // piece_bytes
            size_bytes = end * piece_bytes - position
            if size_bytes <= 0:
                rest = bytearray(each[begin:])
                break
            yield each[begin : begin + size_bytes]
            begin, position = begin + size_bytes, position + size_bytes
    if rest:
        yield memoryview(rest)
