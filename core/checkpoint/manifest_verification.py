"""``verify="manifest"``: each tensor is compared with the manifest by the engine, before it is handed out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from streamer import _native
from streamer.core.checkpoint.catalog import Catalog, Located
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.checkpoint.verification import Pieces
from streamer.core.format.manifest import ALGORITHM, ShardManifest

__all__ = ["ManifestVerification"]


class ManifestVerification:
    """Compares tensors with their manifest's digests; see `streamer.core.checkpoint.verification.Verification`.

    Args:
        catalog: All tensors of the checkpoint; they were found to fit their manifests.
        wanted: The items to be read: tensors of the catalog, or rows of them, which are not compared.
        manifests: By shard.
    """

    needs_order = False

    def __init__(self, catalog: Catalog, wanted: Sequence[Located], manifests: Sequence[ShardManifest]) -> None:
        self._catalog = catalog
        self._wanted = wanted
        self._awaited: Counter[int] = Counter(located.shard for located in wanted)
        self._partial = {each.shard for each in wanted if not self._is_whole(each)}
        self.digests = _native.DigestPlan()
        for located in wanted:
            digest = manifests[located.shard].tensors[located.entry.name]
            is_whole = self._is_whole(located)
            self.digests.add_item(located.shard, ALGORITHM if is_whole else None, digest.crc32c if is_whole else None)

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Count the item: the engine hands out only what it found to be right."""
        del data, pieces
        self._awaited[self._wanted[item].shard] -= 1

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Tell of each shard whether its tensors were compared."""
        del compares_answers
        return tuple(self._check(shard, known.uri) for shard, known in enumerate(self._catalog.shards))

    def _check(self, shard: int, uri: str) -> ObjectCheck:
        if shard not in self._awaited:
            return ObjectCheck(uri, None, "none of its tensors was read")
        if self._awaited[shard]:
            return ObjectCheck(uri, None, "not all of its tensors were read yet")
        if shard in self._partial:
            return ObjectCheck(uri, None, "only some rows of a tensor were read")
        return ObjectCheck(uri, f"manifest ({ALGORITHM})", None)

    def _is_whole(self, located: Located) -> bool:
        entry = self._catalog.tensors[located.entry.name].entry
        return (entry.begin, entry.end) == (located.entry.begin, located.entry.end)
