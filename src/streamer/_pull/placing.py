"""Gives all files of a pull their final names in one pass, when each of them is whole.

While it lasts, the folder says that it is incomplete. For readers that do not look there, the files that models are
found by (configurations, indexes) go first and come last. A pass that was interrupted is finished by the next pull: no
byte of the storage is needed for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from streamer._pull.folder import Folder
from streamer._pull.part import Part, part_path
from streamer._pull.record import PulledFolder

__all__ = ["finish_placing", "place"]

FOUND_BY = ("config.json", "model_index.json", ".index.json")


def place(folder: Folder, record: PulledFolder, gone: Iterable[str], parts: Iterable[Part]) -> None:
    """Move whole parts to their final names, and remove files that an older pull left.

    Args:
        folder: That is filled.
        record: All files that shall be there.
        gone: Files that shall not.
        parts: Those that are whole.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mark()
    whole = {os.path.basename(part.path) for part in parts}
    for name in set(os.listdir(folder.parts)) - whole:  # of another version: it must not replace a file
        os.unlink(os.path.join(folder.parts, name))
    for name in gone:
        with suppress(FileNotFoundError):
            os.unlink(folder.file(name))
    folder.write_record(record, "placing")
    finish_placing(folder)


def finish_placing(folder: Folder) -> None:
    """Do the rest of a pass, if there is one; raises as `place`."""
    record = folder.record("placing")
    if record is None:
        return
    folder.forget_record("complete")
    part_of = {name: part_path(folder.parts, name) for name in record.files}
    moved = [name for name in record.files if os.path.lexists(part_of[name])]
    last = [name for name in moved if _is_found_by(name)]
    for name in last:
        with suppress(FileNotFoundError):
            os.unlink(folder.file(name))
    for name in [*sorted(set(moved) - set(last)), *sorted(last)]:
        target = folder.file(name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(part_of[name], target)
    _sync({os.path.dirname(folder.file(name)) for name in record.files} | {folder.path})
    folder.write_record(record)
    folder.forget_record("placing")
    folder.unmark()
    for name in os.listdir(folder.parts):  # notes on the parts that were moved
        os.unlink(os.path.join(folder.parts, name))


def _is_found_by(name: str) -> bool:
    return name.rpartition("/")[2].endswith(FOUND_BY)


def _sync(folders: Iterable[str]) -> None:
    """Flush the new names to the disk."""
    for path in folders:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # some network file systems have no such call
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
