"""Opens the checkpoint of a request: locates it, reads its headers, and selects the wanted tensors.

What only some checkpoints need (encryption, parts of tensors, other formats, digests) is imported when one needs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from streamer._locate_shards import locate, options_by_uri
from streamer.core.cache.cache import Cache, open_cache
from streamer.core.checkpoint.catalog import Catalog, ShardTensor, read_catalog, remarks_on_parts
from streamer.core.checkpoint.selection import select
from streamer.core.errors import ChecksumError, FormatError, ObjectNotFoundError, TruncatedError
from streamer.core.log import OwnLogger
from streamer.core.options.arguments import chosen_verification
from streamer.core.options.settings import Settings, resolve
from streamer.core.quoting import names_text, printable, quoted
from streamer.core.request.request import Request
from streamer.core.secrets.redact import redact
from streamer.core.shards.format_choice import NO_FORMATS, Formats
from streamer.core.shards.shards import Shards, name_of
from streamer.core.store.sources import ObjectInfo
from streamer.core.tensors.frameworks import Framework, framework_of
from streamer.plugins.registry import folder_of

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.engine.native_session import SourceObject
    from streamer.core.engine.plan import ReadPlan
    from streamer.core.format.manifest import TensorDigest
    from streamer.core.group.member import Member
    from streamer.core.other_formats.interface import Format
    from streamer.core.verification.strategy import Strategy, Verification

_log = OwnLogger()


class OpenedCheckpoint:
    """A checkpoint whose headers were read; all public functions that load use one."""

    member: Member | None = None  # this rank of the group that reads it together, or None
    logs_reads = True  # whether each read logs its report

    def __init__(
        self,
        shards: Shards,
        catalog: Catalog,
        settings: Settings,
        stages: Mapping[str, float],
        strategy: Strategy | None,
        *,
        cache: Cache,
    ) -> None:
        self.label = shards.label
        self.infos = shards.infos
        self.index_path = shards.index_path
        self.kind = shards.kind
        self.format_name = "safetensors" if shards.format is None else shards.format.name
        self.remarks = (*shards.remarks, *catalog.remarks)
        if catalog.differing:
            keys = names_text([*map(quoted, sorted(catalog.differing))])
            self.remarks += (f"the shards differ in their metadata {keys}: the last shard's count",)
        if catalog.sealed and strategy is not None:
            self.remarks += ("verify= is not used for an encrypted checkpoint: each piece is authenticated",)
        self.catalog = catalog
        self.settings = settings
        self.is_sealed = bool(catalog.sealed)
        self.stages = stages
        self.cache = cache
        self._strategy = strategy
        self._expected = shards.expected

    def verification(self, wanted: list[ShardTensor]) -> Verification | None:
        """Return the verification of one read; None if nothing is compared."""
        if self.is_sealed:  # each piece is authenticated, and digests are of encrypted bytes
            return None
        strategy = self._strategy
        verification = None if strategy is None else strategy.verification(self.catalog, self._expected, wanted)
        if self.catalog.checksums:
            from streamer.core.verification.by_store import with_checksums  # noqa: PLC0415 (as needed)

            verification = with_checksums(self.catalog, wanted, verification)
        if verification is None:
            return None
        from streamer.core.verification.strategy import Watched  # noqa: PLC0415 (as needed)

        return Watched(verification, wanted, self._refuse_mismatch)

    def _refuse_mismatch(self, shard: int, error: ChecksumError) -> NoReturn:
        self.cache.distrust(shard)
        raise error

    def seal_plan(self, plan: ReadPlan) -> _native.SealPlan | None:
        """Return what the engine needs to decrypt the items of a plan; None if nothing is encrypted."""
        if not self.is_sealed:
            return None
        from streamer.core.checkpoint.sealed_catalog import seal_plan  # noqa: PLC0415 (as needed)

        return seal_plan(self.catalog, plan)

    def tensor_digests(self) -> list[Mapping[str, TensorDigest]]:
        """Return the digests that the manifest has for each shard's tensors; empty if no manifest is compared."""
        from streamer.core.shards.shards import ManifestOfShard  # noqa: PLC0415 (as needed)

        expected = (each for each in self._expected if isinstance(each, ManifestOfShard))
        return [each.manifest.shards[each.shard].tensors for each in expected]


def open_checkpoint(
    request: Request,
    listed: Sequence[ObjectInfo] | None = None,
    member: Member | None = None,
    *,
    uses_cache: bool = True,
    is_raw: bool = False,
    any_format: bool = False,
) -> OpenedCheckpoint:
    """Locate the shards and read their headers; raises as `streamer.load` does."""
    settings, strategy = resolve(request.options), _strategy_of(chosen_verification(request.verify))
    if not uses_cache:
        settings = replace(settings, cache_dir=None, peers=None)

    def opened(settings: Settings) -> OpenedCheckpoint:
        with settings.watched("load", redact(request.uris[0])):
            return found(settings)

    def found(settings: Settings) -> OpenedCheckpoint:
        pinned_request = pinned(request, settings)
        formats = Formats(cache(partial(_formats_for, pinned_request.uris))) if any_format else NO_FORMATS
        try:
            return _opened(pinned_request, settings, strategy, listed, formats, is_raw=is_raw)
        except ObjectNotFoundError as error:
            from streamer._versions import explain_missing  # noqa: PLC0415 (as needed)

            explain_missing(error, pinned_request.uris)
            raise

    if member is None:
        return opened(settings)
    from streamer.core.group.agreement import opened_together  # noqa: PLC0415 (as its caller has)

    checkpoint = opened_together(member, request, settings, opened)
    checkpoint.member = member
    return checkpoint


Pinned = TypeVar("Pinned", bound=Request)


def pinned(request: Pinned, settings: Settings | None = None) -> Pinned:
    """Replace ``run@latest`` by the folder of the version that it names now, so that all that follows uses this one."""
    if not any("@" in each for each in request.uris):
        return request
    from streamer._versions import pinned_uri  # noqa: PLC0415 (as needed)

    settings = resolve(request.options) if settings is None else settings
    uris = zip(request.uris, options_by_uri(request.storage_options, request.uris), strict=True)
    found = [pinned_uri(uri, options, request.fs, settings) for uri, options in uris]
    return replace(request, uri=found[0] if isinstance(request.uri, str) else found)


def _strategy_of(word: str) -> Strategy | None:
    if word == "off":
        return None
    from streamer.core.verification.strategy import strategy_of  # noqa: PLC0415 (as needed)

    return strategy_of(word)


def _formats_for(uris: Sequence[str]) -> Sequence[Format]:
    from streamer.plugins.formats import formats_for  # noqa: PLC0415 (as needed)

    return formats_for(map(folder_of, uris))


def _opened(
    request: Request,
    settings: Settings,
    strategy: Strategy | None,
    listed: Sequence[ObjectInfo] | None,
    formats: Formats,
    *,
    is_raw: bool,
) -> OpenedCheckpoint:
    started = time.perf_counter()
    shards = locate(request, settings, strategy, listed, formats=formats)
    located = time.perf_counter()
    # Requests ask for checksums only with `compares_answers`, and are then as small as the checksums require.
    objects = shards.objects
    compares_objects = strategy is not None and strategy.compares_objects
    if compares_objects:
        objects = [replace(each, compares_answers=True) for each in objects]
    cache = opened_cache(objects, settings)

    def read() -> Catalog:
        if shards.format is not None:
            return _catalog_of_format(shards.format, shards, cache, settings, request)
        keeps_headers = compares_objects or request.key is not None
        catalog = read_catalog(cache.objects, settings, choice=shards.choice, keeps_headers=keeps_headers)
        if strategy is not None:
            strategy.check_headers(catalog, shards.expected)
        if is_raw:
            return catalog
        if formats is not NO_FORMATS:  # a file of one rank is given as it is by safetensors' own names
            catalog = _with_parts_remarked(catalog, shards.label)
        return _decrypted(catalog, shards, settings, request)

    catalog = _read_catalog(cache, settings, read)
    if shards.format is not None and compares_objects:
        from streamer.core.store.digests import NoDigest  # noqa: PLC0415 (as needed)

        reason = NoDigest(f"{shards.format.name} has bytes that belong to no tensor, and are not read")
        shards = shards._replace(expected=[reason] * len(catalog.shards))
    stages = {"locate": located - started, "headers": time.perf_counter() - located}
    return OpenedCheckpoint(shards, catalog, settings, stages, strategy, cache=cache)


def opened_cache(objects: Sequence[SourceObject], settings: Settings) -> Cache:
    """Return objects their places in the cache of the settings, and these their peers."""
    cache = open_cache(objects, settings)
    if settings.peers:
        from streamer.core.peers.joining import join_peers  # noqa: PLC0415 (few loads have peers)

        join_peers(cache, settings)
    return cache


def _catalog_of_format(format_: Format, shards: Shards, cache: Cache, settings: Settings, request: Request) -> Catalog:
    from streamer.core.checkpoint.format_catalog import read_format_catalog  # noqa: PLC0415 (as needed)

    names = [name_of(info) for info in shards.infos]
    return read_format_catalog(format_, cache.objects, names, settings, shards.choice, key=request.key_source)


def _decrypted(catalog: Catalog, shards: Shards, settings: Settings, request: Request) -> Catalog:
    if request.key is None and not catalog.may_be_encrypted:
        return catalog
    from streamer.core.checkpoint.sealed_catalog import opened_catalog  # noqa: PLC0415 (as needed)

    is_whole = shards.kind in ("folder", "index")
    return opened_catalog(catalog, request.key_source, settings, is_whole=is_whole)


def _with_parts_remarked(catalog: Catalog, label: str) -> Catalog:
    remarks = remarks_on_parts(catalog)
    for remark in remarks:
        _log.warning("%s: %s", printable(label), printable(remark))
    return catalog._replace(remarks=(*catalog.remarks, *remarks))


def _read_catalog(cache: Cache, settings: Settings, read: Callable[[], Catalog]) -> Catalog:
    """Read the headers; if they are malformed, read them again without the cache, which may hold malformed ones."""
    with settings.traced("locate", "read headers", files=len(cache.objects)):
        try:
            return read()
        except (FormatError, TruncatedError):
            if not cache.distrust_headers(settings.header_bytes):
                raise
        return read()


def framework_for(request: Request, device: Any = None, dtype: Any = None, *, fills_targets: bool = False) -> Framework:
    """Return the framework of a request; `device` and `dtype` replace those of the request unless they are None."""
    return framework_of(
        request.framework,
        request.device if device is None else device,
        request.dtype if dtype is None else dtype,
        map(folder_of, request.uris),
        fills_targets=fills_targets,
    )


def wanted_tensors(checkpoint: OpenedCheckpoint, request: Request, *, is_lazy: bool = False) -> list[ShardTensor]:
    """Return the requested tensors, or the requested parts of them, in file order."""
    available = list(checkpoint.catalog.tensors)
    chosen = select(request.names, available, checkpoint.label)
    wanted = list(checkpoint.catalog.in_file_order(chosen))
    if request.slices is not None:
        from streamer.core.checkpoint.slices import sliced  # noqa: PLC0415 (as needed)

        wanted = sliced(wanted, request.slices, available, checkpoint.label)
    if is_lazy or not checkpoint.is_sealed:
        return wanted
    from streamer.core.checkpoint.sealed_catalog import with_whole_pieces  # noqa: PLC0415 (as needed)

    return with_whole_pieces(checkpoint.catalog, wanted)
