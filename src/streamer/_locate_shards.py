"""Locates the shards of a request's URI: a file, folder, index or glob, or a list of these."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, TypeAlias

from streamer.core.errors import OptionError, StreamerError
from streamer.core.load_status import LOCATING, LoadStatus
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.request.request import Request, StorageOptions
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.shards.format_choice import NO_FORMATS, Formats
from streamer.core.shards.search import (
    LISTED_PER_FILE,
    are_of_one_folder,
    is_named_after,
    shards_in,
    shards_of_files,
)
from streamer.core.shards.shards import Shards, joined
from streamer.core.store.names import scheme_of
from streamer.core.store.parallel import AnswerTimeoutError, in_parallel
from streamer.core.store.sources import ObjectInfo, RemoteStore, Store
from streamer.plugins.registry import enabled, open_checked_store, refuse_accidental_file_systems

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from streamer.core.outages.outage_waits import OutageWaits
    from streamer.core.verification.strategy import Strategy

_log = OwnLogger()

_Wanted: TypeAlias = "tuple[str, Mapping[str, Any] | None]"


def locate(
    request: Request,
    settings: Settings,
    strategy: Strategy | None,
    listed: Sequence[ObjectInfo] | None = None,
    *,
    formats: Formats = NO_FORMATS,
) -> Shards:
    """Find the shards, and their expected digests if they are verified; wait while a server is unavailable."""
    uris = request.uris
    options = options_by_uri(request.storage_options, uris)
    refuse_accidental_file_systems(uris)
    how: dict[str, Any] = {"strategy": strategy, "listed": listed, "formats": formats}
    with settings.traced("locate", "find files"), closing(LoadStatus(redact(uris[0]), 0, LOCATING)) as status:
        lookup = _Lookup(settings, request.fs, enabled(uris=uris), show=status.note, **how)
        return joined(lookup.find_all(list(zip(uris, options, strict=True))))


class _Lookup:
    """How one call locates its URIs; `backends` are all entry points, because reading them takes long."""

    def __init__(
        self,
        settings: Settings,
        fs: AbstractFileSystem | None,
        backends: list[EntryPoint],
        *,
        strategy: Strategy | None = None,
        listed: Sequence[ObjectInfo] | None = None,
        formats: Formats = NO_FORMATS,
        show: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        self.settings, self.fs, self.backends = settings, fs, backends
        self._strategy, self._listed, self._formats = strategy, listed, formats
        self._show = show
        self._guard = threading.Lock()
        self._waits: OutageWaits | None = None
        self.is_wanted = True

    def waits(self) -> OutageWaits:
        """Return the waits of this call for servers that are unavailable; files need none."""
        from streamer.core.outages.outage_waits import OutageWaits  # noqa: PLC0415 (as needed)

        with self._guard:
            self._waits = self._waits or OutageWaits(self.settings.block_deadline_s, self._show)
            if not self.is_wanted:
                self._waits.end()
            return self._waits

    def end(self) -> None:
        """Stop waiting: the answers are not needed any more."""
        self.is_wanted = False
        if self._waits is not None:
            self._waits.end()

    def find_all(self, wanted: list[_Wanted]) -> list[Shards]:
        """Locate all URIs in parallel, until the load's own deadline."""
        deadline = self.settings.deadline
        groups = [wanted] if len(wanted) == 1 else list(self._groups(wanted))
        try:
            found = in_parallel(self._find, groups, role="locate", give_up_at=deadline.ends_at)
            return [shards for group in found for shards in group]
        except AnswerTimeoutError:
            message = f"the checkpoint was not found in time{self._waits.describe() if self._waits else ''}"
            raise deadline.error(message, redact(wanted[0][0])) from None
        finally:
            self.end()
            if self._waits is not None:
                self.settings.earlier.add(self._waits.stats())

    def _groups(self, wanted: list[_Wanted]) -> Iterator[list[_Wanted]]:
        """Yield groups of consecutive URIs that one store can serve."""
        group: list[_Wanted] = []
        for each in wanted:
            if group and not (self.fs is None and each[1] is group[0][1] and are_of_one_folder(group[0][0], each[0])):
                yield group
                group = []
            group.append(each)
        yield group

    def _find(self, group: list[_Wanted]) -> list[Shards]:
        uris = [uri for uri, _ in group]
        most_entries = LISTED_PER_FILE * len(group) if len(group) > 1 else None
        with _opened(self, *group[0], most_entries) as store:
            if len(group) > 1 and not is_named_after(store, uris[0]):
                return [shards for each in group for shards in self._find([each])]
            if len(group) > 1:
                found = shards_of_files(store, uris)
            else:
                found = [shards_in(store, uris[0], self.settings, self._listed, self._formats)]
            if self._strategy is None:
                return found
            expected = self._strategy.expected_of(store, found, self.settings)
            return [
                shards._replace(expected=each) if each else shards for shards, each in zip(found, expected, strict=True)
            ]


@contextmanager
def _opened(
    lookup: _Lookup, uri: str, storage_options: Mapping[str, Any] | None, most_entries: int | None = None
) -> Iterator[Store]:
    options = getattr(lookup.fs, "storage_options", storage_options)
    secrets = SecretTexts(uri, options)
    limits = lookup.settings.limits._replace(is_wanted=lambda: lookup.is_wanted)
    if most_entries is not None:
        limits = limits._replace(listing_entries=min(limits.listing_entries, most_entries))
    with secrets.masking_errors():
        store = open_checked_store(uri, storage_options, lookup.fs, lookup.backends, limits)
    if scheme_of(uri) != "file" or isinstance(store, RemoteStore):
        from streamer.plugins.waiting_store import waiting  # noqa: PLC0415 (as needed)

        store = waiting(store, uri, options, lookup.waits(), secrets, findings=lookup.settings.findings)
    try:
        yield store
    finally:
        close_store(store)


@contextmanager
def opened_store(
    uri: str,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
    settings: Settings,
    backends: list[EntryPoint] | None = None,
) -> Iterator[Store]:
    """Open the store of one URI for a ``with`` block; its requests wait while the server is unavailable."""
    request = Request(uri=uri, storage_options=storage_options, fs=fs)
    (uri,), options = request.uris, request.storage_options
    if backends is None:
        refuse_accidental_file_systems([uri])
        backends = enabled(uris=[uri])
    lookup = _Lookup(settings, request.fs, backends)
    try:
        with _opened(lookup, uri, options if isinstance(options, Mapping) else None) as store:
            yield store
    finally:
        lookup.end()


def close_store(store: Store) -> None:
    """Close a store; if a plug-in's store cannot be closed, log it and raise no error."""
    try:
        store.close()
    except StreamerError as error:
        _log.warning("a store could not be closed: %s", error)


def options_by_uri(storage_options: StorageOptions, uris: Sequence[str]) -> list[Mapping[str, Any] | None]:
    """Return the options of each URI."""
    if storage_options is None:
        return [None] * len(uris)
    if isinstance(storage_options, Mapping):
        is_mixed = any(scheme_of(each) != "file" for each in uris)
        for_files = _by_scheme(storage_options) if is_mixed else storage_options
        return [for_files if scheme_of(each) == "file" else storage_options for each in uris]
    options = list(storage_options)
    if len(options) != len(uris):
        there_are = "is 1 URI" if len(uris) == 1 else f"are {len(uris)} URIs"
        raise OptionError(
            f"storage_options is a list of {len(options)}, and there {there_are}",
            hint="Pass one mapping for all URIs, or a list that has a mapping or None for each URI",
        )
    return options


def _by_scheme(storage_options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep only options under the name of a scheme: the others are for the URLs, not for local files."""
    return {name: each for name, each in storage_options.items() if isinstance(each, Mapping)}
