"""Gives all files of a pull their final names in one pass, after all files are complete.

During the pass, the folder has the mark that it is incomplete. For readers that do not check the mark, the files by
which models are found (configurations, indexes) are removed first and placed last. The next pull finishes an
interrupted pass, and needs no byte of the storage for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamer._pull.folder import Folder
from streamer._pull.part import Part, name_of_part
from streamer._pull.record import PulledFolder

__all__ = ["finish_placing", "place"]

FOUND_BY = ("config.json", "model_index.json", ".index.json")  # suffixes of the files by which models are found


def place(folder: Folder, record: PulledFolder, gone: Iterable[str], parts: Iterable[Part]) -> None:
    """Move complete parts to their final names, and remove files that an older pull left.

    Args:
        folder: The folder that is filled.
        record: All files that shall be in the folder.
        gone: Files to remove.
        parts: The complete parts.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mark()
    whole = {part.name for part in parts}
    for name in set(folder.parts.names()) - whole:  # a part of another version must not replace a file
        folder.parts.remove(name)
    for name in gone:
        folder.remove(name)
    folder.write_record(record, "placing")
    finish_placing(folder)


def finish_placing(folder: Folder) -> None:
    """Finish an interrupted pass, if there is one; raises as `place`."""
    record = folder.record("placing")
    if record is None:
        return
    folder.forget_record("complete")
    moved = [name for name in record.files if folder.parts.status(name_of_part(name)) is not None]
    last = [name for name in moved if _is_found_by(name)]
    for name in last:
        folder.remove(name)
    for name in [*sorted(set(moved) - set(last)), *sorted(last)]:
        with folder.folder_of(name, is_made=True) as (target, own_name):
            folder.parts.move(name_of_part(name), target, own_name)
    for name in {name.rpartition("/")[0]: name for name in record.files}.values():  # one file of each folder
        with folder.folder_of(name) as (target, _):
            target.flush()
    folder.write_record(record)
    folder.forget_record("placing")
    folder.unmark()
    for name in folder.parts.names():  # notes on the parts that were moved
        folder.parts.remove(name)


def _is_found_by(name: str) -> bool:
    return name.rpartition("/")[2].endswith(FOUND_BY)
