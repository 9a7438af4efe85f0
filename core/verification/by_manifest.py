"""``verify="manifest"``: the engine compares each tensor with the manifest before the tensor is handed out.

Guarantees: a manifest is used only if it fits the checkpoint's headers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from shlex import quote
from threading import Lock

from streamer import _native
from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import FormatError, ManifestError, ObjectNotFoundError, StorageError
from streamer.core.format.header_entries import TensorEntry
from streamer.core.format.manifest import (
    ALGORITHM,
    HASH,
    MAX_MANIFEST_BYTES,
    Manifest,
    ShardManifest,
    check_shard,
    parse_manifest,
)
from streamer.core.format.shard_names import INDEX_SUFFIX, MANIFEST_SUFFIX, USUAL_MANIFEST
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.shards.shards import Expected, ManifestOfShard, Shards
from streamer.core.store.identities import identity_of
from streamer.core.store.names import is_url, unquoted
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.verification.strategy import Pieces, Verification


class ByManifest:
    """``"manifest"``: each tensor is compared with the manifest beside the checkpoint."""

    compares_objects = False

    def expected_of(self, store: Store, found: Sequence[Shards], settings: Settings) -> list[list[Expected]]:
        manifests = Manifests(store, settings)  # reads each manifest once, also if many URIs share it

        def of_uri(shards: Shards) -> list[Expected]:
            if shards.format is not None:
                raise _no_manifests(shards.format.name, shards.infos[0].uri)
            return [*manifests.of_shards(shards.infos, shards.index_path, is_whole=shards.kind in ("folder", "index"))]

        return in_parallel(of_uri, found, role="digest")

    def verification(
        self, catalog: Catalog, expected: Sequence[Expected], wanted: Sequence[ShardTensor]
    ) -> Verification:
        manifests = [each.manifest.shards[each.shard] for each in _manifests(expected)]
        return ManifestVerification(catalog, wanted, manifests)

    def check_headers(self, catalog: Catalog, expected: Sequence[Expected]) -> None:
        check_fit(catalog, _manifests(expected))


def _no_manifests(name: str, uri: str) -> FormatError:
    what = f"a manifest has the digests of safetensors files, and this checkpoint is of the format {name}"
    return FormatError(
        what,
        uri=uri,
        hint='Leave verify="manifest" out; or save the tensors with streamer.save, which writes a manifest',
    )


def _manifests(expected: Sequence[Expected]) -> list[ManifestOfShard]:
    return [each for each in expected if isinstance(each, ManifestOfShard)]


class ManifestVerification:
    """Compares tensors with the digests of their manifest; see `streamer.core.verification.strategy.Verification`."""

    needs_order = False

    def __init__(self, catalog: Catalog, wanted: Sequence[ShardTensor], manifests: Sequence[ShardManifest]) -> None:
        self._catalog = catalog
        self._wanted = wanted
        self._awaited: Counter[int] = Counter(each.shard for each in wanted)
        self._partial = {each.shard for each in wanted if not catalog.is_read_whole(each)}
        self._checksummed, self._hashed = set[int](), set[int]()  # shards with a tensor that has no SHA-256, and one
        self.digests = _native.DigestPlan()
        for shard_tensor in wanted:
            digest = manifests[shard_tensor.shard].tensors[shard_tensor.entry.name]
            if not catalog.is_read_whole(shard_tensor):
                self.digests.add_item(shard_tensor.shard, None, None)
            elif digest.sha256 is not None:
                self._hashed.add(shard_tensor.shard)
                self.digests.add_item(shard_tensor.shard, None, None, digest.sha256)
            else:
                self._checksummed.add(shard_tensor.shard)
                self.digests.add_item(shard_tensor.shard, ALGORITHM, digest.crc32c)

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Count the item; the engine has already compared it."""
        del data, pieces
        self._awaited[self._wanted[item].shard] -= 1

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Return for each shard whether its tensors were compared."""
        del compares_answers
        remark, hashed = "only some rows of a tensor were read", self._hashed - self._checksummed
        return checks_of_shards(self._catalog, self._awaited, self._partial, remark, hashed)


def checks_of_shards(
    catalog: Catalog,
    awaited: Mapping[int, int],
    incomplete: Set[int],
    remark: str,
    hashed: Set[int] = frozenset(),
) -> tuple[ObjectCheck, ...]:
    """Return for each shard whether its tensors were compared with the manifest."""

    def check(shard: int, uri: str) -> ObjectCheck:
        if shard not in awaited:
            return ObjectCheck(uri, None, "none of its tensors was read")
        if awaited[shard]:
            return ObjectCheck(uri, None, "not all of its tensors were read yet")
        if shard in incomplete:
            return ObjectCheck(uri, None, remark)
        return ObjectCheck(uri, f"manifest ({HASH if shard in hashed else ALGORITHM})", None)

    return tuple(check(shard, each.uri) for shard, each in enumerate(catalog.shards))


def manifest_paths(infos: Sequence[ObjectInfo], index_path: str | None) -> list[str]:
    """Return the paths at which the manifest of these shards may lie; a new manifest is written to the first."""
    first = infos[0].path
    folder = first[: len(first) - len(first.rpartition("/")[2])]
    if index_path is not None:
        return [index_path.removesuffix(INDEX_SUFFIX) + MANIFEST_SUFFIX]
    own = [first + MANIFEST_SUFFIX] if len(infos) == 1 else []
    return list(dict.fromkeys([*own, folder + USUAL_MANIFEST]))


def name_in_manifest(path: str, manifest_path: str) -> str:
    """Return the path of a shard relative to the folder of its manifest."""
    name = path[len(manifest_path) - len(manifest_path.rpartition("/")[2]) :]
    return unquoted(name) if is_url(path) else name


class Manifests:
    """The manifests in one store, each read once."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._read: dict[ObjectInfo, Manifest] = {}
        self._lock = Lock()

    def of_shards(
        self, infos: Sequence[ObjectInfo], index_path: str | None, *, is_whole: bool
    ) -> list[ManifestOfShard]:
        """Return the manifest of the shards of one URI, once for each; that of a whole checkpoint names no others."""
        info = _find(self._store, infos, index_path)
        with self._lock:  # so that several threads read one manifest once
            if info not in self._read:
                self._read[info] = _parsed(self._store, info, self._settings)
            manifest = self._read[info]
        names = [name_in_manifest(each.path, info.path) for each in infos]
        manifest = manifest.of(names)
        missing = [name for name in manifest.shards if name not in names] if is_whole else []
        if missing:
            raise ManifestError(
                f"the manifest does not fit: it has shard {quoted(missing[0])}, which is not loaded",
                uri=info.uri,
                hint="A shard is missing; or write the manifest anew: python -m streamer manifest URI",
            )
        return [ManifestOfShard(manifest, info.uri, name) for name in names]


def _parsed(store: Store, info: ObjectInfo, settings: Settings) -> Manifest:
    if info.size_bytes is None or not 0 <= info.size_bytes <= MAX_MANIFEST_BYTES:
        raise ManifestError(
            f"a manifest of {info.size_bytes} bytes is not read",
            uri=info.uri,
            hint="It is damaged, or no manifest of streamer. Write it again: python -m streamer manifest URI",
        )
    source = store.source(info)
    identity = identity_of(store, info, source)
    manifest_object = SourceObject(info.uri, source, info.size_bytes, identity=identity)
    content, _ = read_ranges([manifest_object], [(0, 0, info.size_bytes)], settings, what="manifests")
    return parse_manifest(bytes(content[0]), uri=info.uri)


def check_fit(catalog: Catalog, manifests: Sequence[ManifestOfShard]) -> None:
    """Check that the headers of a checkpoint fit the manifests of its shards."""
    entries: dict[int, list[TensorEntry]] = {}
    for shard_tensor in catalog.tensors.values():
        entries.setdefault(shard_tensor.shard, []).append(shard_tensor.entry)
    for shard, of_shard in enumerate(manifests):
        size_bytes = catalog.shards[shard].size_bytes
        check_shard(of_shard.shard, size_bytes, entries.get(shard, []), of_shard.manifest, uri=of_shard.uri)


def _find(store: Store, infos: Sequence[ObjectInfo], index_path: str | None) -> ObjectInfo:
    refusal: StorageError | None = None
    for path in manifest_paths(infos, index_path):
        try:
            return store.info(path)
        except ObjectNotFoundError as error:
            refusal = error
    raise ObjectNotFoundError(
        f"there is no manifest beside {infos[0].uri}",
        hint=f"Write one: python -m streamer manifest {quote(_example_of(infos, index_path))}",
    ) from refusal


def _example_of(infos: Sequence[ObjectInfo], index_path: str | None) -> str:
    uri = infos[0].uri
    return uri if len(infos) == 1 and index_path is None else uri.rpartition("/")[0]
