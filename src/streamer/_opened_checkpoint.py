"""Opens a checkpoint: from the user's URI to its headers, and to the tensors that are wanted of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from streamer._locate import StorageOptions, UriOption, locate
from streamer.core.checkpoint.catalog import Catalog, ShardTensor, read_catalog
from streamer.core.checkpoint.selection import NamesOption, select
from streamer.core.checkpoint.shards import Shards
from streamer.core.checkpoint.strategies import Strategy, VerifyOption, strategy_of
from streamer.core.checkpoint.verification import Verification
from streamer.core.collector import collector_spared
from streamer.core.options.arguments import check_file_system, check_options, check_storage_options, check_uris
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.path_objects import placed
from streamer.core.secrets.options import hidden
from streamer.core.store.sources import ObjectInfo

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["OpenedCheckpoint", "open_checkpoint", "wanted_tensors"]


class OpenedCheckpoint:
    """A checkpoint whose headers are read; every public function starts from one."""

    def __init__(
        self, shards: Shards, catalog: Catalog, settings: Settings, stages: Mapping[str, float], strategy: Strategy
    ) -> None:
        self.label = shards.label
        self.infos = shards.infos
        self.index_path = shards.index_path
        self.kind = shards.kind
        self.remarks = shards.remarks
        self.catalog = catalog
        self.settings = settings
        self.stages = stages
        self._strategy = strategy
        self._expected = shards.expected

    def verification(self, wanted: list[ShardTensor]) -> Verification | None:
        """Make the verification of one read; None where nothing is compared."""
        return self._strategy.verification(self.catalog, self._expected, wanted)


def open_checkpoint(
    uri: UriOption,
    storage_options: StorageOptions,
    options: Options | None,
    fs: AbstractFileSystem | None = None,
    verify: VerifyOption = None,
    *,
    listed: Sequence[ObjectInfo] | None = None,
) -> OpenedCheckpoint:
    """Locate the shards, with `listed` as for `locate`, and read their headers; raises as `streamer.load` does."""
    check_uris(uri)
    check_storage_options(storage_options)
    uri, storage_options, fs = placed(uri, storage_options, fs)
    storage_options = hidden(storage_options)
    check_options(options, Options)
    check_file_system(fs)
    settings = resolve(options)
    strategy = strategy_of(verify)
    with collector_spared():
        return _opened(uri, storage_options, settings, fs, strategy, listed=listed)


def _opened(
    uri: UriOption,
    storage_options: StorageOptions,
    settings: Settings,
    fs: AbstractFileSystem | None,
    strategy: Strategy,
    *,
    listed: Sequence[ObjectInfo] | None,
) -> OpenedCheckpoint:
    started = time.perf_counter()
    shards = locate(uri, storage_options, settings, fs, strategy, listed=listed)
    located = time.perf_counter()
    # Only then do requests ask for checksums of their answers, and are as small as these require.
    objects = shards.objects
    if strategy.compares_objects:
        objects = [replace(each, compares_answers=True) for each in objects]
    catalog = read_catalog(objects, settings, choice=shards.choice, keeps_headers=strategy.compares_objects)
    strategy.check_headers(catalog, shards.expected)
    stages = {"locate": located - started, "headers": time.perf_counter() - located}
    return OpenedCheckpoint(shards, catalog, settings, stages, strategy)


def wanted_tensors(checkpoint: OpenedCheckpoint, names: NamesOption) -> list[ShardTensor]:
    """Choose the tensors, in file order.

    Raises:
        UnknownTensorError: a name or pattern matches nothing.
    """
    chosen = select(names, list(checkpoint.catalog.tensors), checkpoint.label)
    return list(checkpoint.catalog.in_file_order(chosen))
