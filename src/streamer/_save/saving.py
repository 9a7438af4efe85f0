"""One save from its tensors to its report: shards, then the manifest, and what makes the checkpoint complete last."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event

from streamer._opened_checkpoint import open_checkpoint
from streamer._progress import Progress
from streamer._save.parts import ShardBytes
from streamer._save.place import Place, place_of
from streamer._save.report import SaveReport
from streamer._save.writing import Writing, uploading_store
from streamer.core.checkpoint.saved_tensors import SavedTensors
from streamer.core.checkpoint.sharding import divided, index_text
from streamer.core.errors import FormatError, ObjectNotFoundError, StreamerError
from streamer.core.format.header_writer import TensorLayout, in_file_order, render_header
from streamer.core.format.manifest import Manifest, ShardManifest, render_manifest
from streamer.core.format.shard_names import SHARD_SUFFIX
from streamer.core.options.settings import Settings
from streamer.core.request.request import Request
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import Store
from streamer.core.store.uploads import UploadingStore

__all__ = ["Saving"]

_log = logging.getLogger("streamer")


@dataclass(frozen=True)
class Saving:
    """What is saved, and how.

    Attributes:
        request: Where to, with which options.
        tensors: What is saved.
        metadata: For the headers.
        most_shard_bytes: Of the tensors in one file.
        overwrite: Whether a checkpoint may be there.
        has_digests: Whether a manifest is written.
        settings: Bounds and times.
        is_cancelled: Set when the caller wants the save to end.
    """

    request: Request
    tensors: SavedTensors
    metadata: Mapping[str, str]
    most_shard_bytes: int
    overwrite: bool
    has_digests: bool
    settings: Settings
    is_cancelled: Event = field(default_factory=Event)

    def run(self, store: Store) -> SaveReport:
        """Save to a store that is opened for the URI; raises as `streamer.save`."""
        began = time.perf_counter()
        (uri,) = self.request.uris
        writable = uploading_store(store, uri)
        is_file = store.root.endswith(SHARD_SUFFIX)
        shards = self._shards(is_file=is_file)
        place = place_of(store, len(shards), self.settings, is_file=is_file, overwrite=self.overwrite)
        total_bytes = sum(shard.size_bytes for shard in shards)
        with (
            Progress(self.request.progress, total_bytes, f"save {redact(uri)}") as progress,
            Writing(writable, self.settings.memory_limit_bytes, progress, self.is_cancelled) as writing,
        ):
            files = self._write(writing, store, place, shards)
        not_removed = self._removed(writable, place)
        seconds = time.perf_counter() - began
        tensors = len(self.tensors.layouts)
        return SaveReport(redact(uri), tuple(files), tensors, writing.sent_bytes, seconds, not_removed)

    def _shards(self, *, is_file: bool) -> list[ShardBytes]:
        """Lay out the files; nothing but their tensors' bytes can be wrong after this."""
        groups = [self.tensors.layouts] if is_file else divided(self.tensors.layouts, self.most_shard_bytes)
        return [self._shard(in_file_order(group)) for group in groups]

    def _shard(self, layouts: list[TensorLayout]) -> ShardBytes:
        return ShardBytes(render_header(layouts, self.metadata), self.tensors, layouts, has_digests=self.has_digests)

    def _write(self, writing: Writing, store: Store, place: Place, shards: list[ShardBytes]) -> list[str]:
        """Write all files, and return their names in the order in which they show up."""
        if place.has_old_shards_without_index:
            place = self._with_old_index(writing, store, place)
        sent = []
        for name, shard in zip(place.shards, shards, strict=True):
            replaced = place.existing.get(name)
            sent.append((name, writing.send(place.folder + name, shard.size_bytes, shard.pieces(), replaced)))
        for name, text in self._small_files(place, shards):
            replaced = place.existing.get(name)
            sent.append((name, writing.send(place.folder + name, len(text), [memoryview(text)], replaced)))
        # A manifest fits one checkpoint: that of an older one stays until the new one is complete.
        is_first = not place.existing
        order = {place.commit: 2, place.manifest: 1 if is_first else 3}
        sent.sort(key=lambda each: order.get(each[0], 0))
        for name, upload in sent:
            writing.show(place.folder + name, upload, place.existing.get(name))
            if name == place.commit:
                writing.keep_shown()  # the checkpoint is complete
        return [name for name, _ in sent]

    def _small_files(self, place: Place, shards: list[ShardBytes]) -> list[tuple[str, bytes]]:
        named = dict(zip(place.shards, shards, strict=True))
        files = []
        if self.has_digests:
            manifest = Manifest({name: ShardManifest(each.size_bytes, each.digests) for name, each in named.items()})
            files.append((place.manifest, render_manifest(manifest)))
        if place.index is not None:
            files.append((place.index, index_text({name: each.layouts for name, each in named.items()})))
        return files

    def _with_old_index(self, writing: Writing, store: Store, place: Place) -> Place:
        """Name the old shards in an index, so that no reader takes the new ones beside them for a part of them."""
        assert place.index is not None
        try:
            old = open_checkpoint(self.request)
        except (FormatError, ObjectNotFoundError):  # incomplete, so that there is nothing to keep
            return place
        shards: dict[str, list[TensorLayout]] = {}
        for each in old.catalog.in_file_order():
            entry, name = each.entry, old.infos[each.shard].path.rpartition("/")[2]
            layout = TensorLayout(entry.name, entry.dtype, tuple(entry.shape), entry.end - entry.begin)
            shards.setdefault(name, []).append(layout)
        text = index_text(shards)
        path = place.folder + place.index
        writing.show(path, writing.send(path, len(text), [memoryview(text)], None), None)
        return place.with_index(store.info(path))

    def _removed(self, store: UploadingStore, place: Place) -> tuple[str, ...]:
        """Remove the files of the older checkpoint that the new one does not name; return those that are left."""
        left = []
        for name in place.unnamed(has_manifest=self.has_digests):
            try:
                store.remove(place.folder + name)
            except StreamerError as error:
                _log.warning("%s of an older checkpoint could not be removed: %s", name, error)
                left.append(name)
        return tuple(left)
