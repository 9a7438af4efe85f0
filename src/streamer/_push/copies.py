"""Whole files between disks and storages: the commands ``pull``, ``push`` and ``copy`` as functions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamer._pull.pull import pull as _pull
from streamer._pull.record import PullArguments, PullReport
from streamer._push.push import Target
from streamer._push.push import push as _push
from streamer._push.report import PushReport
from streamer.core.errors import ObjectNotFoundError, UsageError
from streamer.core.log import OwnLogger
from streamer.core.path_objects import text_of, without_path_objects
from streamer.core.secrets.redact import redact

if TYPE_CHECKING:
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption

_log = OwnLogger()


def pull(
    uri: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    verify: bool = True,
    check: bool = False,
    replace: bool = False,
    key: KeyOption = None,
    context: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
) -> PullReport:
    """Copy files from a storage into a folder of a disk, all of them or none.

    They appear in the folder when all of them are complete. A second call continues where the first one stopped.

    Args:
        uri: A file, or a folder of which all files are wanted, as for `load`.
        folder: The folder, which is created. Nothing else may lie in it under the names of the files.
        include: Patterns (`fnmatch`) of names relative to `uri`, whose ``*`` matches slashes, too; none: all files.
        exclude: Patterns of files that are left out.
        verify: Whether files are compared with the digests that the storage keeps.
        check: Whether files that are there are read, so that those that were changed are pulled again.
        replace: Whether weights of an older checkpoint in the folder are removed, when the new ones are there.
        key: As for `load`; each file that may hold tensors must then be encrypted, and is authenticated.
        context: As for `load`.
        storage_options: As for `load`.
        options: As for `load`; ``max_bytes_per_second`` limits the rate.
        progress: As for `load`.

    Raises:
        UsageError: The folder holds other files or another pull, or the two places are in one another.
        StorageError: As for `load`, or the folder cannot be written. What was read so far is kept for the next call.

    Example:
        >>> streamer.pull("s3://bucket/model", "/mnt/model", exclude=["*.bin"]).files       # doctest: +SKIP
        7
    """
    uri, storage_options = place_of(uri, storage_options)
    wanted = PullArguments(
        include=patterns_of(include),
        exclude=patterns_of(exclude),
        is_verified=verify,
        is_checked=check,
        replaces=replace,
        key=key,
        context=context,
        storage_options=storage_options,
        options=options,
    )
    return _pull(uri, os.fspath(folder), wanted, progress=progress, on_wait=_log.info)


def push(folder: str | os.PathLike[str], uri: str | os.PathLike[str], **how: Any) -> PushReport:
    """Copy a file, or all files of a folder of a disk, to a storage; the index of a checkpoint shows up last.

    Args:
        folder: The folder, or one file.
        uri: The folder of the storage; if one file is copied and the last name has its suffix, the new file's name.
        how: As for `copy`; ``storage_options`` are those of `uri`.

    Raises:
        ObjectNotFoundError: There is no such file or folder on the disk.
        UsageError, StorageError: as for `copy`.

    Example:
        >>> streamer.push("/mnt/trained", "s3://bucket/model").sent_bytes                   # doctest: +SKIP
        16060522496
    """
    if not os.path.exists(folder):
        hint = "To copy between two URLs: streamer.copy"
        raise ObjectNotFoundError("there is no such file or folder on this machine", uri=text_of(folder), hint=hint)
    return copy(folder, uri, target_options=how.pop("storage_options", None), **how)


def copy(
    source: str | os.PathLike[str],
    uri: str | os.PathLike[str],
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    verify: bool = True,
    replace: bool = False,
    key: KeyOption = None,
    context: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
) -> PushReport:
    """Copy files from one storage to another without a disk between them; the index of a checkpoint shows up last.

    A second call continues where the first one stopped, and sends nothing if all files are there.

    Args:
        source: A file, or a folder of which all files are wanted, as for `load`.
        uri: The folder of the other storage; or the new file's name, as for `push`.
        include: As for `pull`.
        exclude: As for `pull`.
        verify: Whether files are compared with the digests that the source's storage keeps.
        replace: Whether files with other content, and weights that a load would read besides, are replaced.
        key: As for `pull`; nothing is sent if a file that may hold tensors is not encrypted.
        context: As for `load`.
        source_options: Storage options of the source.
        target_options: Storage options of the target.
        options: As for `load`; ``max_bytes_per_second`` limits the rate.
        progress: As for `load`.

    Raises:
        UsageError: A file with other content is there, or weights beside which the new ones would not be read, and
            ``replace`` is False; or the target cannot be written.
        StorageError: As for `save`.

    Example:
        >>> streamer.copy("hf://org/model", "s3://bucket/model", include=["*.safetensors"])    # doctest: +SKIP
        PushReport(source='hf://org/model', uri='s3://bucket/model', files=4, …)
    """
    source, source_options = place_of(source, source_options)
    uri, target_options = place_of(uri, target_options)
    wanted = PullArguments(
        include=patterns_of(include),
        exclude=patterns_of(exclude),
        is_verified=verify,
        replaces=replace,
        key=key,
        context=context,
        storage_options=source_options,
        options=options,
    )
    return _push(source, Target(uri, target_options), wanted, progress=progress)


def place_of(uri: Any, storage_options: Any) -> tuple[str, Any]:
    """Return the URL of a path object, and the options that it holds."""
    given, options, fs = without_path_objects(uri, storage_options, None)
    text = text_of(given)
    if fs is not None or not isinstance(text, str):
        hint = "Pass one URL, and storage_options beside it"
        raise UsageError(f"whole files are not copied by a {type(uri).__name__}", uri=redact(str(text)), hint=hint)
    return text, options


def patterns_of(given: Any) -> Sequence[str]:
    """Return a list of patterns; a single pattern may be given as text.

    Example:
        >>> patterns_of("*.json")
        ['*.json']
    """
    return [given] if isinstance(given, str) else tuple(given)
