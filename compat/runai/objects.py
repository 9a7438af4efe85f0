"""The files of one streamer: each is looked up once, and all reads until the streamer's end have one version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamer._locate_shards import opened_store
from streamer.compat.runai.variables import storage_options_for
from streamer.core.checkpoint.shards import source_object
from streamer.core.engine.session import SourceObject
from streamer.core.errors import StreamerError
from streamer.core.options.settings import Settings
from streamer.core.secrets.hidden_arguments import hidden_uri
from streamer.core.store.parallel import in_parallel
from streamer.plugins.registry import enabled, refuse_accidental_file_systems

__all__ = ["Objects"]


class Objects:
    """Looks up files once. Thread-safe: two threads may look up the same file at the same time.

    Attributes:
        credentials: As for `storage_options_for`.
    """

    def __init__(self) -> None:
        self.credentials: Mapping[str, str] = {}
        self._found: dict[str, SourceObject] = {}

    def found(self, paths: Iterable[str], settings: Settings) -> dict[str, SourceObject | StreamerError]:
        """Return the file, or the error of its storage, for each path."""
        distinct = list(dict.fromkeys(paths))
        missing = [path for path in distinct if path not in self._found]
        looked_up: dict[str, SourceObject | StreamerError] = {}
        if missing:
            backends = enabled(uris=missing)

            def look_up(path: str) -> SourceObject | StreamerError:
                try:
                    refuse_accidental_file_systems([path])
                    options = storage_options_for(path, self.credentials)
                    with opened_store(hidden_uri(path), options, None, settings, backends) as store:
                        return source_object(store, store.info(store.root))
                except StreamerError as error:
                    return error

            looked_up = dict(zip(missing, in_parallel(look_up, missing, role="open"), strict=True))
        self._found.update({path: each for path, each in looked_up.items() if isinstance(each, SourceObject)})
        return {path: self._found.get(path) or looked_up[path] for path in distinct}

    def pin(self, paths: Iterable[str], pinned: Iterable[SourceObject]) -> None:
        """Keep the versions of a read, which later reads must have, too."""
        self._found.update(zip(paths, pinned, strict=True))
