"""Copies a model's files from a storage to a folder, once per machine, under Run:ai's names.

Guarantees: if several processes use the same folder, one copies and the others wait for it. If a copy was not finished,
the next process empties the folder first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from types import TracebackType
from typing import IO

from streamer.compat.runai.s3_utils.s3_utils import S3Credentials, s3_pull_files
from streamer.core.secrets.redact import redact
from streamer.core.store.names import scheme_of

__all__ = ["ObjectStorageModel", "pull_files"]


def pull_files(
    model_path: str,
    dst: str,
    allow_pattern: list[str] | None = None,
    ignore_pattern: list[str] | None = None,
    s3_credentials: S3Credentials | None = None,
) -> None:
    """Copy the files below a folder of a storage; see `s3_pull_files`.

    Raises:
        NotImplementedError: the folder is on a disk.
        StorageError: or a subclass, from the storage.
        OSError: a file cannot be written.
    """
    if scheme_of(model_path) == "file":
        raise NotImplementedError("pull_files copies from a storage, and this is a folder on a disk")
    s3_pull_files(model_path, dst, allow_pattern, ignore_pattern, s3_credentials)


class ObjectStorageModel:
    """Copies a model's files inside a ``with`` block; at its end the folder counts as complete.

    Args:
        model_path: URL of the model.
        dst: The local folder; the file ``dst.lock`` beside it is locked until the block ends.
        s3_credentials: The credentials for S3.

    Attributes:
        dir: The local folder.

    Raises:
        ValueError: `model_path` is no URL.
        OSError: the folder cannot be created or locked.
    """

    SENTINEL_NAME = ".runai_complete"

    def __init__(self, model_path: str, dst: str, s3_credentials: S3Credentials | None = None) -> None:
        if scheme_of(model_path) == "file":
            raise ValueError(f"{redact(model_path)!r} is no URL of a storage, such as s3://bucket/model")
        self.dir = dst.rstrip("/") or "/"
        self._url, self._credentials = f"{model_path.rstrip('/')}/", s3_credentials
        self._sentinel = os.path.join(self.dir, self.SENTINEL_NAME)
        self._lock: IO[str] = open(f"{self.dir}.lock", "a")  # noqa: SIM115  closed at the end of the block
        try:
            self._skip = self._is_complete()
        except BaseException:
            self._lock.close()
            raise

    def pull_files(self, allow_pattern: list[str] | None = None, ignore_pattern: list[str] | None = None) -> None:
        """Copy files, unless a process has copied the model already; raises as the function of this name."""
        if not self._skip:
            pull_files(self._url, self.dir, allow_pattern, ignore_pattern, self._credentials)

    def __enter__(self) -> ObjectStorageModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Raises RuntimeError if nothing was copied."""
        with self._lock:  # closing it lets the next process in
            if kind is not None or self._skip:
                return
            if not os.listdir(self.dir):
                raise RuntimeError(f"No files were copied to {self.dir!r}: check the model's URL and the patterns")
            with open(self._sentinel, "w"):
                pass

    def _is_complete(self) -> bool:
        """Lock the folder, and return whether it is complete; a folder that is not complete is emptied."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        if os.path.exists(self._sentinel):
            return True
        # Unlock first: two processes that both upgrade their shared lock would wait for each other.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if os.path.exists(self._sentinel):
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            return True
        if os.path.exists(self.dir):
            shutil.rmtree(self.dir)
        os.makedirs(self.dir)
        return False
