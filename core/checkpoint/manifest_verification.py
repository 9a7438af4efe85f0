"""``verify="manifest"``: the engine compares each tensor with the manifest before the tensor is handed out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

from streamer import _native
from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.checkpoint.verification import Pieces
from streamer.core.format.manifest import ALGORITHM, ShardManifest

__all__ = ["ManifestVerification", "checks_of_shards"]


class ManifestVerification:
    """Compares tensors with the digests of their manifest; see `streamer.core.checkpoint.verification.Verification`."""

    needs_order = False

    def __init__(self, catalog: Catalog, wanted: Sequence[ShardTensor], manifests: Sequence[ShardManifest]) -> None:
        self._catalog = catalog
        self._wanted = wanted
        self._awaited: Counter[int] = Counter(each.shard for each in wanted)
        self._partial = {each.shard for each in wanted if not catalog.is_read_whole(each)}
        self.digests = _native.DigestPlan()
        for shard_tensor in wanted:
            digest = manifests[shard_tensor.shard].tensors[shard_tensor.entry.name]
            is_whole = catalog.is_read_whole(shard_tensor)
            self.digests.add_item(
                shard_tensor.shard, ALGORITHM if is_whole else None, digest.crc32c if is_whole else None
            )

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Count the item; the engine has already compared it."""
        del data, pieces
        self._awaited[self._wanted[item].shard] -= 1

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Return for each shard whether its tensors were compared."""
        del compares_answers
        return checks_of_shards(self._catalog, self._awaited, self._partial, "only some rows of a tensor were read")


def checks_of_shards(
    catalog: Catalog, awaited: Mapping[int, int], incomplete: Set[int], remark: str
) -> tuple[ObjectCheck, ...]:
    """Return for each shard whether its tensors were compared with the manifest."""

    def check(shard: int, uri: str) -> ObjectCheck:
        if shard not in awaited:
            return ObjectCheck(uri, None, "none of its tensors was read")
        if awaited[shard]:
            return ObjectCheck(uri, None, "not all of its tensors were read yet")
        if shard in incomplete:
            return ObjectCheck(uri, None, remark)
        return ObjectCheck(uri, f"manifest ({ALGORITHM})", None)

    return tuple(check(shard, each.uri) for shard, each in enumerate(catalog.shards))
