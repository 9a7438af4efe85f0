"""``verify="manifest"`` for a group: the checksums of all reads of a tensor are combined and compared.

Each byte of a tensor is read by one rank, whose engine computes the CRC32C of each read. The ranks send each other
these checksums with the bytes of a window. So every rank compares every tensor, although no rank reads all of it.
A tensor of which no rank wants some bytes cannot be compared, and its shard is reported as not verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from streamer import _native
from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.errors import ChecksumError
from streamer.core.format.manifest import ALGORITHM, TensorDigest
from streamer.core.group.windows import GroupReads, OwnRead
from streamer.core.quoting import quoted
from streamer.core.verification.by_manifest import checks_of_shards
from streamer.core.verification.strategy import Pieces

CHECKSUM_BYTES = 8  # of one read, as it is sent


class GroupVerification:
    """A `Verification`, whose checksums come from all ranks."""

    digests = None  # of whole tensors, which no session of this rank reads
    needs_order = False

    def __init__(
        self,
        catalog: Catalog,
        tensors: Sequence[ShardTensor],
        wanted: Sequence[ShardTensor],
        expected: Sequence[Mapping[str, TensorDigest]],
        distrust: Callable[[int], None],
    ) -> None:
        self._catalog, self._tensors, self._wanted = catalog, tensors, wanted
        self._expected, self._distrust = expected, distrust
        self._awaited = Counter(each.shard for each in wanted)
        self._incomplete: set[int] = set()  # shards with a tensor that the ranks did not read completely
        self._pieces: dict[int, list[tuple[int, int, int]]] = {}  # by tensor: first byte, size, checksum

    def digests_of(self, reads: GroupReads) -> _native.DigestPlan:
        """Return the digests that the engine computes of this rank's reads."""
        plan = _native.DigestPlan()
        for read in (read for window in reads.own for read in window):
            plan.add_item(self._tensors[read.piece.tensor].shard, ALGORITHM, None)
        return plan

    def note(self, read: OwnRead, checksum: int) -> None:
        """Note the checksum of one read of any rank."""
        tensor, begin, end = read.piece
        self._pieces.setdefault(tensor, []).append((begin, end - begin, checksum))

    def compare(self, tensors: Sequence[int]) -> None:
        """Compare some tensors with the manifest; all of their reads must have been noted."""
        for tensor in tensors:
            self._compare(tensor)

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Count a tensor of this rank; it was compared before it was handed out."""
        del data, pieces
        self._awaited[self._wanted[item].shard] -= 1

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Return for each shard whether its tensors were compared."""
        del compares_answers
        remark = "only a part of a tensor was read by the ranks of the group"
        return checks_of_shards(self._catalog, self._awaited, self._incomplete, remark)

    def _compare(self, tensor: int) -> None:
        shard, entry, *_ = self._tensors[tensor]
        found = end = 0
        for begin, size_bytes, checksum in sorted(self._pieces.pop(tensor, ())):
            if begin != end:
                break
            found, end = _native.crc_combine(ALGORITHM, found, checksum, size_bytes), begin + size_bytes
        if end != entry.end - entry.begin:
            self._incomplete.add(shard)
            return
        expected = self._expected[shard][entry.name].crc32c
        if found == expected:
            return
        self._distrust(shard)
        raise ChecksumError(
            f"the {ALGORITHM} of tensor {quoted(entry.name)} mismatches its manifest's: {expected:08x} expected,"
            f" {found:08x} found",
            uri=self._catalog.shards[shard].uri,
            hint="Load again; if it mismatches again, upload this file again, or write the manifest anew",
            byte_range=(entry.begin, entry.end),
            object_size=self._catalog.shards[shard].size_bytes,
            tensor=entry.name,
            algorithm=ALGORITHM,
            expected=f"{expected:08x}",
            found=f"{found:08x}",
        )
