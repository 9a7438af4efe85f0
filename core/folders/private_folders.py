"""Makes private folders for temporary files; if none can be made, the error says what helps."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streamer.core.errors import StorageError
from streamer.core.folders.paths import NO_ROOM

_HINT = "Set TMPDIR to a folder that can be written and has room"


class _PrivateFolder(tempfile.TemporaryDirectory[str]):
    def cleanup(self) -> None:
        """Remove the folder, also while a thread that an interrupted caller left behind writes into it."""
        try:
            self._remove()
        except BaseException:  # Ctrl-C, perhaps the second one
            self._remove()
            raise

    def _remove(self) -> None:
        moved = f"{self.name}-removed"
        with suppress(OSError):
            os.rename(self.name, moved)  # the thread finds no folder from now on
        super().cleanup()
        shutil.rmtree(moved, ignore_errors=True)


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that only this user can read; it is removed with the returned object."""
    try:
        return _PrivateFolder(prefix="streamer-")
    except OSError as error:
        raise no_temporary_folder(error) from error


def make_folders_above(file: Path, folder: str) -> None:
    """Make the folders between a private folder and a file below it; a private folder that was removed stays so."""
    for above in reversed(file.relative_to(folder).parents[:-1]):
        Path(folder, above).mkdir(exist_ok=True)


@contextmanager
def room_in(folder: str) -> Iterator[None]:
    """Write files into a private folder within a block."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or error.errno not in NO_ROOM:
            raise
        raise no_temporary_folder(error, folder) from error


def no_temporary_folder(error: OSError, folder: str | None = None) -> StorageError:
    """Make the error that says why temporary files cannot be written, and what helps."""
    where = f" ({folder})" if folder else ""
    reason = os.strerror(error.errno) if error.errno not in (None, errno.ENOENT) else "no folder can be written"
    code = errno.errorcode.get(error.errno or 0)
    return StorageError(f"There is no usable folder for temporary files{where}: {reason}", hint=_HINT, code=code)
