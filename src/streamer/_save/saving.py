"""One save, from its tensors to its report: first shards, then the manifest, last the file that completes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from streamer._checkpoint_headers import open_checkpoint
from streamer._progress import Progress
from streamer._save.parts import SentFile, ShardBytes
from streamer._save.place import Place, Resumed, old_manifest, place_of, writers_errors
from streamer._save.saved_tensors import SavedTensors, divided, index_text
from streamer._save.sealed_shards import sealed_shards
from streamer._save.writing import Writing, uploading_store
from streamer.core.conditions import Event
from streamer.core.encryption.keys import KeySource
from streamer.core.errors import ChangedError, FormatError, ObjectNotFoundError, StreamerError
from streamer.core.format.header_writer import TensorLayout, in_file_order, render_header
from streamer.core.format.manifest import Manifest, ShardManifest, render_manifest
from streamer.core.format.shard_names import SHARD_SUFFIX
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.quoting import counted, printable, size_text
from streamer.core.request.request import Request
from streamer.core.secrets.redact import redact
from streamer.core.store.names import name_in
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import Store
from streamer.core.store.uploads import UploadingStore

if TYPE_CHECKING:
    from streamer._save.rank_parts import Description

Result = TypeVar("Result")


@dataclass(frozen=True)
class SaveReport:
    """The result of `streamer.save`.

    Attributes:
        uri: Where the checkpoint is, without secrets.
        files: Names of the written files; the last file makes the checkpoint complete.
        tensors: Number of tensors.
        bytes: Bytes of these files.
        seconds: Duration of the call.
        not_removed: Files of an older checkpoint that could not be removed; the new checkpoint does not name them.
        kept_bytes: The part of `bytes` that an earlier save, which ended early, had sent; with ``resume=True``.
        remarks: What the tensors had beside their values, and the checkpoint has not; and whether nothing was written.
    """

    uri: str
    files: tuple[str, ...]
    tensors: int
    bytes: int
    seconds: float
    not_removed: tuple[str, ...] = ()
    kept_bytes: int = 0
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        kept = f", {size_text(self.kept_bytes)} of it was there" if self.kept_bytes else ""
        speed = size_text(round(self.bytes / max(self.seconds, 1e-9)))
        rate = f"{size_text(self.bytes)} in {self.seconds:.2f} s, {speed}/s"
        left = f"; note: could not remove {', '.join(map(printable, self.not_removed))}" if self.not_removed else ""
        notes = "".join(f"; note: {printable(each)}" for each in self.remarks)
        return f"{printable(self.uri)}: {counted(self.tensors, 'tensor')}, {rate}{kept}{left}{notes}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)


_log = OwnLogger()
# If an error occurs after the checkpoint is complete, its message begins with one of these texts.
_NO_MANIFEST = "the checkpoint is saved, but its manifest is not"
_LEFT = "the checkpoint is saved, but the older one is not removed"
MOST_MANIFESTS = 4  # of other programs that are replaced


class Together(Protocol):
    """Those that send the shards of one save: the ranks of a group, or the nodes of a cluster."""

    leads: bool  # whether this process begins the files, and lets the last ones show up

    def aside(self, work: Callable[[], Result]) -> Result:
        """Run work while the others wait for this process."""

    def sums(self, shards: Sequence[ShardBytes], numbers: Sequence[int] = ()) -> Mapping[int, int]:
        """Compute the CRC-32C of the shards with some numbers."""

    def lead(
        self, writing: Writing, place: Place, shards: Sequence[ShardBytes], *, keeps: bool
    ) -> list[tuple[str, OwningUpload]]:
        """Have the missing shards sent, with their digests; return those that have not shown up."""

    def follow(self, store: Any, shards: Sequence[ShardBytes], *, resumes: bool) -> Mapping[str, Any]:
        """Send a part for the process that leads, and return its report."""

    def tell_end(self, report: Mapping[str, Any]) -> None:
        """Note that the checkpoint is saved."""


@dataclass(frozen=True)
class Saving:
    """What is saved, and how."""

    request: Request  # where to save to, with which options
    tensors: SavedTensors  # what is saved
    metadata: Mapping[str, str]  # metadata for the headers
    most_shard_bytes: int  # maximum number of bytes of tensors in one file
    overwrite: bool  # whether an existing checkpoint may be replaced
    has_digests: bool  # whether a manifest is written
    resume: bool  # whether shards that are whole are kept, now and if the save ends early
    settings: Settings  # limits and time-outs
    key: KeySource | None = None  # the key with which the files are encrypted, or None
    hides_names: bool = False  # whether the headers are encrypted, too
    parts: Mapping[str, Description | None] | None = None  # with a group, what this rank holds of DTensors
    dropped: Mapping[str, str] = field(default_factory=dict)  # name of a tensor that is left out to that of its memory
    ranks: Together | None = None  # those that save together with this process, or None
    is_cancelled: Event = field(default_factory=Event)  # set when the caller wants the save to end

    def run(self, store: Store) -> SaveReport:
        """Save to a store that is opened for the URI; raises as `streamer.save`."""
        began = time.perf_counter()
        (uri,) = self.request.uris
        writable = uploading_store(store, uri)
        is_file = store.root.endswith(SHARD_SUFFIX)
        shards = self._shards(is_file=is_file)
        if self.ranks is not None and not self.ranks.leads:
            told = self.ranks.follow(writable, shards, resumes=self.resume)
            known: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in told.items()}
            return SaveReport(**known)
        resumed = Resumed(store, self.settings, shards) if self.resume else None
        if resumed is not None and self.ranks is not None:
            resumed = replace(resumed, sums=self.ranks.sums(shards, self._aside(resumed.candidates)))
        how = {"is_file": is_file, "overwrite": self.overwrite}
        place = self._aside(lambda: place_of(store, len(shards), self.settings, **how, resumed=resumed))
        kept_bytes = sum(each.size_bytes for each, name in zip(shards, place.shards, strict=True) if name in place.left)
        total_bytes = sum(shard.size_bytes for shard in shards) - kept_bytes
        with (
            Progress(self.request.progress, total_bytes, f"save {redact(uri)}") as progress,
            Writing(writable, self.settings, progress, self.is_cancelled, resumes=self.resume) as writing,
        ):
            files = self._write(writing, store, place, shards)
            not_removed = self._aside(lambda: self._finished(writing, writable, place))
        seconds = time.perf_counter() - began
        tensors, sent_bytes = len(self.tensors.layouts), writing.sent_bytes
        size_bytes, remarks = sent_bytes + kept_bytes, self.tensors.remarks()
        remarks += self.tensors.lost_protection(self.key, hides_names=self.hides_names)
        report = SaveReport(redact(uri), tuple(files), tensors, size_bytes, seconds, not_removed, kept_bytes, remarks)
        if self.ranks is not None:
            self.ranks.tell_end(report.to_dict())
        self.settings.trace_end("save", report.uri, size_bytes, seconds, tensors=tensors)
        return report

    def _aside(self, work: Callable[[], Result]) -> Result:
        """Do what the other ranks of a group wait for."""
        return work() if self.ranks is None else self.ranks.aside(work)

    def _shards(self, *, is_file: bool) -> list[ShardBytes]:
        """Lay out the files, so that all errors except those of reading or sending bytes are raised here."""
        layouts = [self.tensors.layouts] if is_file else divided(self.tensors.layouts, self.most_shard_bytes)
        groups = [in_file_order(group) for group in layouts]
        if self.key is None:
            return [self._shard(group) for group in groups]
        how: dict[str, Any] = {"hides_names": self.hides_names, "has_digests": self.has_digests, "ranks": self.ranks}
        return [*sealed_shards(groups, self.tensors, self.metadata, self.key, **how)]

    def _shard(self, layouts: list[TensorLayout]) -> ShardBytes:
        return ShardBytes(render_header(layouts, self.metadata), self.tensors, layouts, has_digests=self.has_digests)

    def _write(self, writing: Writing, store: Store, place: Place, shards: list[ShardBytes]) -> list[str]:
        """Write all files, and return their names in the order in which readers can see them."""
        if place.has_old_shards_without_index and not writing.commits:
            place = self._aside(lambda: self._with_old_index(writing, store, place))
        if self.ranks is None:
            return self._complete(writing, store, place, shards, self.send_shards(writing, place, shards))
        sent = self.ranks.lead(writing, place, shards, keeps=self.resume and place.index is not None)
        return self.ranks.aside(lambda: self._complete(writing, store, place, shards, sent))

    def _complete(
        self,
        writing: Writing,
        store: Store,
        place: Place,
        shards: list[ShardBytes],
        sent: list[tuple[str, OwningUpload]],
    ) -> list[str]:
        """Let the shards and the small files show up; return the names of all files."""
        has_both = self.has_digests and place.index is not None and not writing.commits  # for a moment
        old = old_manifest(store, place, self.settings) if has_both else None
        if old is not None:
            place = self._with_old_digests(writing, store, place, old, shards)
        for name, text in self._small_files(place, shards):
            replaced = place.existing.get(name)
            sent.append((name, writing.send(place.folder + name, len(text), [memoryview(text)], replaced)))
        # If the manifest fits the older checkpoint alone, it stays until the new one is complete.
        is_first = not place.existing
        order = {place.commit: 2, place.manifest: 1 if is_first else 3}
        sent.sort(key=lambda each: order.get(each[0], 0))
        first = [each for each in sent if each[0] not in order]
        # Of two saves to one place, the one whose first shard shows up goes on, and the other has nothing to remove.
        for some in (first[:1], first[1:]):
            writing.show_all([(place.folder + name, upload, place.existing.get(name)) for name, upload in some])
        uploads = dict(sent[len(first) :])
        for name, upload in uploads.items():
            if name == place.manifest and not is_first:
                self._show_last_manifest(writing, store, place, uploads, shards)
                continue
            if order[name] > 1:
                writing.confirm()
                self.tensors.check_unchanged()
            is_last = name == place.commit
            writing.show(place.folder + name, upload, place.existing.get(name), names_others=is_last)
            if is_last:
                is_stale = self.has_digests and not is_first and old is None
                stale = place.existing.get(place.manifest) if is_stale else None
                writing.keep_shown(failure=_LEFT if old is not None else _NO_MANIFEST, stale=stale)
        shown = [name for name, _ in sent]
        return [*(name for name in place.shards if name not in shown), *shown]

    def _show_last_manifest(
        self,
        writing: Writing,
        store: Store,
        place: Place,
        uploads: Mapping[str, OwningUpload],
        shards: list[ShardBytes],
    ) -> None:
        """Let the manifest show up after the file that completes the checkpoint, if that file is still ours.

        The manifest of another program that saves here is replaced, if that program wrote its other file before ours.
        """
        path, text = place.folder + place.manifest, render_manifest(_manifest(place, shards))
        upload, replaced = uploads[place.manifest], place.existing.get(place.manifest)
        for more in range(MOST_MANIFESTS, -1, -1):
            try:
                writing.show(path, upload, replaced)
                break
            except ChangedError:
                uploads[place.commit].confirm()
                if not more:
                    raise
            replaced = info_if_present(store, path)
            upload = writing.send(path, len(text), [memoryview(text)], replaced)
        try:
            uploads[place.commit].confirm()
        except ChangedError:
            upload.withdraw()
            raise

    def send_shards(
        self, writing: Writing, place: Place, shards: Sequence[ShardBytes]
    ) -> list[tuple[str, OwningUpload]]:
        """Send the missing shards; return the shards that have not shown up yet, in their order."""
        missing = [each for each in zip(place.shards, shards, strict=True) if each[0] not in place.left]
        is_kept = self.resume and place.index is not None
        sent: dict[int, OwningUpload] = {}
        shown: list[int] = []

        def note(number: int, upload: OwningUpload) -> None:
            sent[number] = upload
            # Of two saves to one place, only the one whose first shard shows up may leave others: no reader sees both.
            while is_kept and sent and (shown or 0 in sent):
                shown.append(min(sent))
                name = missing[shown[-1]][0]
                writing.show(place.folder + name, sent.pop(shown[-1]), place.existing.get(name))
                writing.keep_shown()

        files = [
            SentFile(place.folder + name, each.size_bytes, each.content, place.existing.get(name), each.held_bytes)
            for name, each in missing
        ]
        writing.send_all(files, note)
        return [(missing[number][0], sent[number]) for number in sorted(sent)]

    def _small_files(self, place: Place, shards: list[ShardBytes]) -> list[tuple[str, bytes]]:
        named = dict(zip(place.shards, shards, strict=True))
        files = []
        if self.has_digests:
            files.append((place.manifest, render_manifest(_manifest(place, shards))))
        if place.index is not None:
            files.append((place.index, index_text({name: each.layouts for name, each in named.items()})))
        return files

    def _with_old_index(self, writing: Writing, store: Store, place: Place) -> Place:
        """Name the old shards in an index: without one, readers would take old and new shards for one checkpoint."""
        assert place.index is not None
        try:
            with writers_errors((ChangedError,)):
                old = open_checkpoint(self.request, is_raw=True)
        except (FormatError, ObjectNotFoundError):  # the older checkpoint is incomplete, so there is nothing to keep
            return place
        shards: dict[str, list[TensorLayout]] = {}
        for each in old.catalog.in_file_order():
            entry, name = each.entry, old.infos[each.shard].path.rpartition("/")[2]
            layout = TensorLayout(entry.name, entry.dtype, tuple(entry.shape), entry.end - entry.begin)
            shards.setdefault(name, []).append(layout)
        return self._written(writing, store, place, place.index, index_text(shards))

    def _with_old_digests(
        self, writing: Writing, store: Store, place: Place, old: Manifest, shards: list[ShardBytes]
    ) -> Place:
        """Write a manifest that fits the older checkpoint and the new one: their shards have different names."""
        both = Manifest(_manifest(place, shards).shards, older=old.shards)
        return self._written(writing, store, place, place.manifest, render_manifest(both))

    def _written(self, writing: Writing, store: Store, place: Place, name: str, text: bytes) -> Place:
        path, replaced = place.folder + name, place.existing.get(name)
        upload = writing.send(path, len(text), [memoryview(text)], replaced)
        if name == place.index:
            writing.guarding = path
        writing.show(path, upload, replaced)
        return place.with_existing(name, store.info(path))

    def _finished(self, writing: Writing, store: UploadingStore, place: Place) -> tuple[str, ...]:
        """Remove files that only the older checkpoint names, and complete the writing; return names of files left."""
        left = []
        for name in place.unnamed(has_manifest=self.has_digests):
            try:
                store.remove(place.folder + name)
            except StreamerError as error:
                _log.warning("%s of an older checkpoint could not be removed: %s", name, error)
                left.append(name)
        writing.complete()
        return tuple(left)


def _manifest(place: Place, shards: list[ShardBytes]) -> Manifest:
    names = [name_in(place.folder + name) for name in place.shards]
    return Manifest(
        {name: ShardManifest(each.size_bytes, each.digests) for name, each in zip(names, shards, strict=True)}
    )
