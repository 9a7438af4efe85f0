"""Publishes a checkpoint as the newest version at a place; see `streamer._versions`.

Guarantees: the pointer names a version only when all its files are there. If several programs publish at once, each
version is whole, each gets its place in the list, and the pointer ends at one of them. The files of a version are
removed only after the pointer has left it out, which is never the last one, and none that was the last one within the
grace period.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from streamer._checkpoint_headers import pinned
from streamer._locate_shards import opened_store
from streamer._pull.listing import files_below
from streamer._pull.record import PullArguments
from streamer._push.order import turn
from streamer._push.push import Target, push
from streamer._push.report import PushReport
from streamer._save.arguments import SaveOptions, place_request
from streamer._save.save import save, save_model
from streamer._save.saving import SaveReport
from streamer._save.writing import uploading_store
from streamer._versions import LATEST, Pointer, folder_of_versions, read_pointer, split
from streamer.core.errors import ChangedError, ObjectNotFoundError, OptionError, StreamerError, UsageError
from streamer.core.folders.paths import disk_name
from streamer.core.folders.paths import text_of as name_on_disk
from streamer.core.format.shard_names import SHARD_SUFFIX
from streamer.core.group.joining import joined_group, reporting_to_group
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings, resolve
from streamer.core.path_objects import text_of
from streamer.core.request.request import OneUri, Request
from streamer.core.secrets.redact import redact
from streamer.core.shards.other_weights import OTHER_WEIGHTS
from streamer.core.store.names import path_in, scheme_of
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import Store
from streamer.core.store.uploads import CommittingStore
from streamer.core.store.versioned_uploads import write_whole

GRACE_S = 3600.0  # a load of a large model takes minutes
MOST_MOVES = 50  # attempts to write the pointer, while others do
MOST_PAUSE_S = 1.0

_log = OwnLogger()
Result = TypeVar("Result")


@dataclass(frozen=True)
class PublishReport:
    """The result of `streamer.publish`.

    Attributes:
        uri: The folder of the new version, without secrets.
        version: Its name; ``run@NAME`` and the folder ``run/NAME`` can be loaded.
        saved: What was written, as `streamer.save` or a push reports it.
        removed: Names of older versions whose files were removed.
    """

    uri: str
    version: str
    saved: SaveReport | PushReport
    removed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)


def publish(
    tensors: Any,
    uri: OneUri,
    *,
    keep: int | None = None,
    grace_s: float = GRACE_S,
    storage_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> PublishReport:
    """Save a checkpoint as a new version below a folder, and then let ``uri@latest`` name it.

    ``streamer.load(f"{uri}@latest")`` loads the version that was published last; `streamer.watch` yields it.

    Args:
        tensors: A module, which `save_model` saves; a mapping, as for `save`; or the path or URL of a folder, all of
            whose files are copied.
        uri: The folder of the versions, on a storage that can be written.
        keep: Remove all but the last `keep` versions; None removes none.
        grace_s: Versions that others replaced within so many seconds stay, because a load may still read them.
        storage_options: As for `save`, for `uri`.
        how: Other keyword arguments of `save`, but ``overwrite=`` and ``resume=``; for a folder, only ``options=`` and
            ``progress=``. With ``group=``, all its ranks publish one version, of what each holds, and rank 0 writes
            the pointer.

    Raises:
        UsageError: as for `save`; or a folder has the name ``uri@latest`` itself. `FormatError`: the file
            ``uri/latest`` is no pointer.
        StorageError: as for `save`; no version was published.

    Example:
        >>> streamer.publish(model, "s3://bucket/run", keep=3).version                  # doctest: +SKIP
        '20261128T193800.123456Z-1a2b3c4d'
    """
    with reporting_to_group(how.get("group")):
        is_keep = keep is None or (type(keep) is int and keep >= 1)
        if not is_keep or not isinstance(grace_s, (int, float)) or not grace_s >= 0:
            raise OptionError("keep is None or a number of versions from 1, and grace_s a number of seconds from 0")
        request, folder = _checked(tensors, uri, storage_options, how)
    settings = resolve(request.options)

    def begun() -> tuple[str, tuple[str, ...]]:
        if isinstance(tensors, (str, os.PathLike)):
            _check_weights(text_of(tensors), settings)
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
        name = f"{stamp}-{secrets.token_hex(4)}"
        read = _looked_up(folder, name, storage_options, settings)
        return name, read.unwanted if read else ()

    call = f"a publish with keep={keep} and grace_s={grace_s}"
    name, left = _by_one(request, call, begun)
    place = f"{folder}/{name}"
    saved = _written(tensors, place, storage_options, how)
    moved = partial(_made_latest, place, storage_options, settings, left, keep=keep, grace_s=grace_s)
    return PublishReport(redact(place), name, saved, tuple(_by_one(request, call, moved)))


def _checked(tensors: Any, uri: OneUri, storage_options: Any, how: Mapping[str, Any]) -> tuple[Request, str]:
    """Check what is published; return the request for the folder of the versions, and its URI."""
    if refused := sorted(how.keys() & {"overwrite", "resume"}):
        raise UsageError(f"publish() takes no {refused[0]}=: each version is new")
    given = min(how.keys() - {"options", "progress"}, default=None)
    if isinstance(tensors, (str, os.PathLike)) and given:
        raise UsageError(f"a folder is published as it is, without {given}=", hint="Open it, and publish that")
    options = SaveOptions(storage_options=storage_options, options=how.get("options"), group=how.get("group"))
    request = place_request(uri, options)
    folder = request.uris[0].rstrip("/")
    if split(folder) is not None or folder.endswith(SHARD_SUFFIX):
        raise UsageError("versions are published below a folder", uri=redact(folder), hint="Name the folder alone")
    return request, folder_of_versions(folder)


def _by_one(request: Request, call: str, work: Callable[[], Result]) -> Result:
    """Do work in this process, or on rank 0 of a group, whose ranks all get the result, as JSON has it, or an error."""
    with joined_group(request, call) as member:
        if member is None:
            return work()
        done = None if member.rank else member.meanwhile(work, lambda: None)
        result: Result = member.gather(done)[0]
        return result


def _looked_up(folder: str, name: str, storage_options: Mapping[str, Any] | None, settings: Settings) -> Pointer | None:
    """Check that a version can be written, and return the pointer."""
    with (
        opened_store(folder, storage_options, None, settings) as store,
        opened_store(f"{folder}/{name}", storage_options, None, settings) as below,
    ):
        if isinstance(store, CommittingStore):
            what = "repositories of the Hub have no pointers: their branches and tags are versions"
            hint = "Save to a branch, hf://owner/name@branch, or tag what was saved with `hf repos tag create`"
            raise UsageError(what, uri=redact(folder), hint=hint)
        uploading_store(store, folder)
        if below.root.rstrip("/") != path_in(store.root.rstrip("/"), name):
            what, hint = "no folder can be made below this URL", "Leave out what follows the name of the folder"
            raise UsageError(what, uri=redact(folder), hint=hint)
        read = read_pointer(store, settings)
        pointer = disk_name(path_in(store.root.rstrip("/"), LATEST))
        if read is None and scheme_of(folder) == "file" and os.path.lexists(pointer):
            what = f"a folder or a link that leads nowhere is in the place of the pointer {LATEST!r}"
            raise UsageError(what, uri=redact(folder), hint="Publish elsewhere, or move it away")
        if read is None and split(f"{folder}@{LATEST}") is not None:
            _refuse_plain_name(store, folder)
        return read and read[0]


def _check_weights(source: str, settings: Settings) -> None:
    """Refuse a folder that a load of the version would find nothing in."""
    (source,) = pinned(Request(uri=source), settings).uris
    with opened_store(source, None, None, settings) as store:
        names = files_below(store, source, settings).files
    if not any(name.endswith((SHARD_SUFFIX, *OTHER_WEIGHTS, ".distcp")) for name in names):
        raise UsageError("there are no weights in this folder", uri=redact(source), hint="Name the folder of a model")


def _refuse_plain_name(store: Store, folder: str) -> None:
    """Refuse to begin where ``run@latest`` is the name of a folder or a file, which could not be loaded any more."""
    path = f"{store.root.rstrip('/')}@{LATEST}"
    if info_if_present(store, path) is not None or store.find(path):
        hint = "Publish elsewhere, or rename it"
        raise UsageError(f"there is a folder or a file named {redact(folder)}@{LATEST}", hint=hint)


def _written(
    tensors: Any, place: str, storage_options: Mapping[str, Any] | None, how: dict[str, Any]
) -> SaveReport | PushReport:
    if isinstance(tensors, (str, os.PathLike)):
        wanted = PullArguments(options=how.get("options"))
        return push(text_of(tensors), Target(f"{place}/", storage_options), wanted, progress=how.get("progress"))
    write = save if isinstance(tensors, Mapping) else save_model
    return write(tensors, place, storage_options=storage_options, **how)


def _made_latest(
    place: str,
    storage_options: Mapping[str, Any] | None,
    settings: Settings,
    left: Iterable[str],
    *,
    keep: int | None,
    grace_s: float,
) -> list[str]:
    """Let the pointer name a version that is complete; return the versions that were removed."""
    folder, _, name = place.rpartition("/")
    removing = partial(_remove, folder, storage_options, settings)
    gone = {each for each in left if removing(each) is not None}
    try:
        with opened_store(folder, storage_options, None, settings) as store:
            unwanted = _move(store, settings, name, gone, keep=keep, grace_s=grace_s)
    except StreamerError as error:
        more = f"The version is complete at {redact(place)}, and may not be the latest: publish again, or remove it"
        error.hint = f"{error.hint}. {more}" if error.hint else more
        raise
    return [each for each in unwanted if removing(each)]


def _move(
    store: Store, settings: Settings, name: str, gone: Set[str], *, keep: int | None, grace_s: float
) -> tuple[str, ...]:
    """Write the pointer with the new version, again if another program does; return the versions to remove."""
    path = path_in(store.root.rstrip("/"), LATEST)
    for attempt in range(MOST_MOVES):
        read = read_pointer(store, settings)
        pointer, info = (Pointer(()), None) if read is None else read
        if any(each.name == name for each in pointer.versions):
            return pointer.unwanted  # an earlier attempt was successful, and another program has added to it
        left = tuple(each for each in pointer.unwanted if each not in gone)
        after = Pointer(pointer.versions, left).with_version(name, time.time(), keep, grace_s)
        try:
            write_whole(store, path, after.rendered(), info)
        except ChangedError:
            if attempt == MOST_MOVES - 1:
                raise
            time.sleep(random.uniform(0, min(MOST_PAUSE_S, 0.01 * 2**attempt)))  # noqa: S311 (no secret)
        else:
            return after.unwanted
    raise AssertionError("the last attempt returns or raises")


def _remove(folder: str, storage_options: Mapping[str, Any] | None, settings: Settings, name: str) -> bool | None:
    """Remove the files of a version, what makes it whole first; say whether there were any, or None if some stay."""
    place = f"{folder}/{name}"
    try:
        with opened_store(place, storage_options, None, settings) as store:
            is_on_disk = scheme_of(place) == "file"
            files = _paths_below(store.root) if is_on_disk else _listed(store, place, settings)
            for each in sorted(files, key=partial(turn, files.keys()), reverse=True):
                uploading_store(store, place).remove(files[each])
            folders = [path for path, _, _ in os.walk(disk_name(store.root), topdown=False)] if is_on_disk else []
            for path in folders:
                os.rmdir(path)
    except ObjectNotFoundError:
        return False
    except (StreamerError, OSError) as error:
        _log.warning("%s, an older version, could not be removed; the next publish tries it: %s", redact(place), error)
        return None
    return bool(files or folders)


def _listed(store: Store, place: str, settings: Settings) -> dict[str, str]:
    return {name: info.path for name, info in files_below(store, place, settings).files.items()}


def _paths_below(folder: str) -> dict[str, str]:
    """Return the files of a folder on a disk, or the link that is in its place; links lead to what others own."""
    top = disk_name(folder)
    if os.path.islink(top):
        return {"": folder}
    found = (os.path.join(path, each) for path, links, names in os.walk(top) for each in (*links, *names))
    paths = [each for each in found if os.path.islink(each) or not os.path.isdir(each)]
    return {name_on_disk(os.path.relpath(each, top)): name_on_disk(each) for each in paths}
