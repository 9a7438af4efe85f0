"""Compares each tensor that is read whole with the CRC-32 in its own file, as other readers of the file do.

The engine compares it before the tensor is handed out. It is compared without ``verify=``, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamer import _native
from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.checkpoint.verification import Pieces, Verification

__all__ = ["ArchiveVerification", "with_checksums"]

ALGORITHM = "crc32"


def with_checksums(
    catalog: Catalog, wanted: Sequence[ShardTensor], verification: Verification | None
) -> Verification | None:
    """Return the verification of one read that also compares the checksums in the files.

    Args:
        catalog: All tensors of the checkpoint, and their checksums.
        wanted: The items to be read. A part of a tensor is not compared.
        verification: As ``verify=`` asks for, or None. It must not need digests of the engine.
    """
    digests = _native.DigestPlan()
    is_any = False
    for each in wanted:
        crc = catalog.checksums.get(each.entry.name) if catalog.is_read_whole(each) else None
        digests.add_item(each.shard, None if crc is None else ALGORITHM, crc)
        is_any = is_any or crc is not None
    return ArchiveVerification(digests, verification) if is_any else verification


class ArchiveVerification:
    """Compares each tensor that is read whole with the checksum in its file.

    See `streamer.core.checkpoint.verification.Verification`.

    Args:
        digests: The checksums of the items.
        verification: What else is compared, and reported; or None.
    """

    def __init__(self, digests: _native.DigestPlan, verification: Verification | None) -> None:
        self.digests, self._verification = digests, verification
        self.needs_order = verification is not None and verification.needs_order

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Pass the item on; the engine has already compared it."""
        if self._verification is not None:
            self._verification.take(item, data, pieces)

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Return what ``verify=`` compared."""
        return self._verification.checks(compares_answers) if self._verification is not None else ()
