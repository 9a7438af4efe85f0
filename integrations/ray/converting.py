"""Converts a checkpoint of any format to safetensors with all nodes of a Ray cluster: each writes some of the shards.

Each shard is a task (`tasks.py`): a node reads the tensors of this shard from the source, and sends them by the code of
`streamer.save`. Guarantees: the first missing shard shows up alone, so of two conversions to one place only one goes
on. With `verify`, the node compares the CRC-32C of what it sent with that of the file. The index shows up last, when
all shards are there and no file of the source has changed. Shards of an earlier call are kept if they are equal.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from streamer import _native
from streamer._checkpoint_headers import pinned
from streamer._lazy_checkpoint import open as open_checkpoint
from streamer._locate_shards import opened_store
from streamer._pull.record import PullArguments
from streamer._push.copies import patterns_of, place_of
from streamer._push.push import Target, push
from streamer._push.report import PushReport
from streamer._save.arguments import SaveOptions
from streamer._save.parts import ShardBytes
from streamer._save.place import Place
from streamer._save.save import saved, saving_of
from streamer._save.saved_tensors import SavedTensors
from streamer._save.saving import SaveReport, Saving
from streamer._save.writing import Writing, quiet_writing
from streamer.compat.hooks import imported
from streamer.core.errors import ChecksumError, ObjectNotFoundError, UsageError
from streamer.core.format.manifest import ALGORITHM, TensorDigest
from streamer.core.format.shard_names import INDEX_SUFFIX, MANIFEST_SUFFIX, SHARD_SUFFIX
from streamer.core.options.arguments import check_switch
from streamer.core.options.settings import Settings, resolve
from streamer.core.peers.ray_actors import connected_ray
from streamer.core.request.request import Request
from streamer.core.secrets.redact import redact
from streamer.core.store.names import name_in
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import Store
from streamer.core.verification.file_bytes import FileBytes
from streamer.integrations.ray.tasks import FileTasks
from streamer.integrations.small_files import USUAL, left_behind

if TYPE_CHECKING:
    from streamer.core.options.options import Options

Result = TypeVar("Result")

# Not copied, also if `include` selects them: weights, what describes their files, and files of sub-folders.
_LEFT = (*left_behind(takes_code=True), f"*{INDEX_SUFFIX}", f"*{MANIFEST_SUFFIX}", "*/*")


@dataclass(frozen=True)
class FleetConversionReport:
    """The result of `convert`."""

    checkpoint: SaveReport  # of the new checkpoint, as `streamer.save` returns it
    nodes: Mapping[str, int]  # bytes that each node sent, by its address; the driver sends what shows up last
    files: PushReport | None  # of the other files, as `streamer.copy` returns it; None if there are none


def convert(
    source: str | os.PathLike[str],
    uri: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str = "5GB",
    dtype: Any = None,
    metadata: Mapping[str, str] | None = None,
    include: str | Sequence[str] = USUAL,
    overwrite: bool = False,
    verify: bool = True,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    resources: Mapping[str, Any] | None = None,
) -> FleetConversionReport:
    """Convert a checkpoint to safetensors with the nodes of a Ray cluster; the index shows up last.

    A second call writes the shards that the first call has not written. If the checkpoint is complete, it is an error.

    Args:
        source: A checkpoint of any format, as for `streamer.open`; a folder of a disk must be there on each node.
        uri: As for `streamer.save`.
        max_shard_bytes: As for `streamer.save`. Each shard is sent by one node; a single one is sent by this process.
        dtype: As for `streamer.open`: the dtype to which tensors are cast.
        metadata: As for `streamer.save`.
        include: Patterns of other files of the source's folder that are copied. Weights never are.
        overwrite: Replace an existing checkpoint, as for `streamer.save`, and other files with other content.
        verify: Whether the node that sent a shard compares the file afterwards: by the checksum that the storage keeps,
            or else by reading it.
        source_options: Storage options of the source. Best are none: then each node uses its own login.
        target_options: Storage options of the target.
        options: As for `streamer.open` and `streamer.save`.
        resources: Options of a task of Ray for each shard, as for `copy`.

    Raises:
        UsageError: As for `streamer.save`: there is a checkpoint, or there are shards of another one; or this process
            is not connected to a cluster; or the target takes one commit.
        StorageError: As for `streamer.load` and `streamer.save`; an error of a node names it, and is the cause. Shards
            that were sent stay. `ChangedError`: the source has changed, or another program writes to the target.

    Example:
        >>> streamer.ray.convert("hf://org/model", "s3://bucket/model").checkpoint.bytes    # doctest: +SKIP
        809000000000
    """
    imported("ray")
    check_switch("verify", verify)
    source, source_options = place_of(source, source_options)
    uri, target_options = place_of(uri, target_options)
    (source,) = pinned(Request(uri=source, storage_options=source_options, options=options)).uris
    others = PullArguments(
        include=patterns_of(include),
        exclude=_LEFT,
        is_verified=verify,
        replaces=overwrite,
        is_part=True,
        storage_options=source_options,
        options=options,
    )
    tasks = FileTasks(connected_ray(), "convert", uri, resources or {})
    checkpoint = open_checkpoint(source, dtype=dtype, storage_options=source_options, options=options)
    how: dict[str, Any] = {"max_shard_bytes": max_shard_bytes, "metadata": metadata, "overwrite": overwrite}
    how |= {"storage_options": target_options, "options": options, "progress": False, "resume": True}
    tensors = {name: checkpoint[name] for name in checkpoint.offset_keys()}
    saving = saving_of(tensors, uri, {**vars(SaveOptions()), **how})
    job = _Job(pickle.dumps(checkpoint), frozenset(saving.metadata), saving.request, verify)
    nodes = _Nodes(saving, job, tasks, partial(_copied, source, Target(uri, target_options), others))
    report = saved(replace(saving, ranks=nodes))
    return FleetConversionReport(report, dict(nodes.sent_bytes), nodes.files)


def _copied(source: str, target: Target, others: PullArguments) -> PushReport | None:
    """Copy the other files, if both places are folders, and there are any."""
    if not others.include or target.uri.partition("?")[0].endswith(SHARD_SUFFIX) or "*" in source:
        return None
    try:
        return push(source, target, others, progress=False)
    except ObjectNotFoundError:
        return None


@dataclass(frozen=True)
class _Job:
    """What all nodes need to know."""

    checkpoint: bytes = field(repr=False)  # the source, pickled with the versions of its files
    metadata: frozenset[str]  # keys of the new metadata, in which shards of the source may differ
    saved_to: Request
    is_verified: bool


class _Sent(NamedTuple):
    """What became of one shard."""

    sent_bytes: int
    crc32c: int
    digests: dict[str, TensorDigest]


@dataclass
class _Nodes:
    """See `Together`."""

    saving: Saving
    job: _Job
    tasks: FileTasks
    copy_others: Callable[[], PushReport | None]
    sent_bytes: Counter[str] = field(default_factory=Counter)  # by the address of the node
    files: PushReport | None = None
    single: tuple[str, ShardBytes] | None = None  # path of the only shard, which this process sends
    leads = True

    def aside(self, work: Callable[[], Result]) -> Result:
        return work()

    def sums(self, shards: Sequence[ShardBytes], numbers: Sequence[int] = ()) -> dict[int, int]:
        return dict(self._run(shards, dict.fromkeys(numbers, "")))

    def lead(
        self, writing: Writing, place: Place, shards: Sequence[ShardBytes], *, keeps: bool
    ) -> list[tuple[str, OwningUpload]]:
        del keeps
        if writing.commits:
            hint = "Convert to another storage, and copy from there; or save what streamer.open returns"
            raise UsageError("this storage takes all files in one commit", uri=redact(self.tasks.uri), hint=hint)
        self.files = self.copy_others()
        paths = {number: place.folder + name for number, name in enumerate(place.shards) if name not in place.left}
        if len(shards) == 1:
            self.single = paths[0], shards[0]
            return self.saving.send_shards(writing, place, shards)
        for some in ([*paths][:1], [*paths][1:]):
            for number, _ in self._run(shards, {number: paths[number] for number in some}):
                writing.note_sent(shards[number].size_bytes)
        pickle.loads(self.job.checkpoint)  # noqa: S301  (our own; raises an error if the source has changed)
        return []

    def follow(self, store: Any, shards: Sequence[ShardBytes], *, resumes: bool) -> Mapping[str, Any]:
        raise NotImplementedError  # only this process leads

    def tell_end(self, report: Mapping[str, Any]) -> None:
        del report
        if self.single and self.job.is_verified:
            with _opened(self.job.saved_to) as (store, settings):
                path, shard = self.single
                _compare(FileBytes(store, store.info(path), settings), _crc32c(shard))

    def _run(self, shards: Sequence[ShardBytes], paths: Mapping[int, str]) -> Iterator[tuple[int, int]]:
        """Have shards sent, or only read if they have no path; note the digests, and yield numbers and CRC-32C."""
        numbers = {name_in(path) or f"shard {number + 1}": number for number, path in paths.items()}
        names = {number: [each.name for each in shards[number].layouts] for number in paths}
        arguments = {
            label: (self.job, paths[number], shards[number].header, names[number]) for label, number in numbers.items()
        }
        sizes = {label: shards[number].size_bytes for label, number in numbers.items()}
        for label, address, sent in self.tasks.run(_send, arguments, sizes):
            shards[numbers[label]].digests.update(sent.digests)
            if sent.sent_bytes:
                self.sent_bytes[address] += sent.sent_bytes
            yield numbers[label], sent.crc32c


def _send(job: _Job, path: str, header: bytes, names: Sequence[str]) -> _Sent:
    """Send one shard, if it is not there, and compare the file; without a path, only read its tensors."""
    checkpoint = pickle.loads(job.checkpoint)  # noqa: S301  (the driver's)
    tensors = SavedTensors({name: checkpoint[name] for name in names}, replaced=job.metadata)
    shard = ShardBytes(header, tensors, tensors.layouts, has_digests=True)
    with _opened(job.saved_to) as (store, settings):
        there = info_if_present(store, path) if path else None
        is_sent = bool(path) and there is None
        if is_sent:
            with quiet_writing(store, job.saved_to.uris[0], settings, resumes=True) as writing:
                writing.show(path, writing.send(path, shard.size_bytes, shard.content, None), None)
        else:
            for _ in shard.pieces():
                pass
        value = _crc32c(shard)
        if there is not None or (is_sent and job.is_verified):
            _compare(FileBytes(store, there or store.info(path), settings), value)
    return _Sent(shard.size_bytes if is_sent else 0, value, shard.digests)


@contextmanager
def _opened(request: Request) -> Iterator[tuple[Store, Settings]]:
    settings, options = resolve(request.options), cast("Any", request.storage_options)
    with opened_store(request.uris[0], options, None, settings) as store:
        yield store, settings


def _crc32c(shard: ShardBytes) -> int:
    """Return the CRC-32C of a shard, all of whose tensors were read."""
    value = _native.crc(ALGORITHM, memoryview(shard.header))
    for each in shard.layouts:
        value = _native.crc_combine(ALGORITHM, value, shard.digests[each.name].crc32c, each.size_bytes)
    return value


def _compare(file: FileBytes, expected: int) -> None:
    found = file.crc32c()
    if found != expected:
        hint = "Another program may write there. Convert to another place, or with overwrite=True"
        raise ChecksumError("the file is not what was converted", uri=file.info.uri, hint=hint, algorithm=ALGORITHM)
