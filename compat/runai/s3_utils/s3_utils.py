"""Credentials, listings and downloads under Run:ai's names; each function accepts every URL of this package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from fnmatch import fnmatch

from streamer.compat.runai.submissions import FileLookup, listed_files
from streamer.compat.runai.variables import options_from_environment, storage_options_for
from streamer.core.engine.byte_reads import ByteStream
from streamer.core.errors import FormatError, StreamerError
from streamer.core.folders.drafts import draft_of
from streamer.core.format.shard_names import why_not_inside
from streamer.core.options.settings import resolve
from streamer.core.secrets.redact import redact
from streamer.core.store.parallel import MOST_LARGE, in_parallel

__all__ = [
    "S3Credentials",
    "azure_glob",
    "azure_pull_files",
    "filter_allow",
    "filter_ignore",
    "gcs_glob",
    "gcs_pull_files",
    "is_azure_path",
    "is_gs_path",
    "is_s3_path",
    "s3_glob",
    "s3_pull_files",
]


class S3Credentials:
    """Keys for S3; keys that are None are searched for as usual."""

    def __init__(
        self,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        region_name: str | None = None,
        endpoint: str | None = None,
    ) -> None:
        self.access_key_id = access_key_id
        self.secret_access_key = secret_access_key
        self.session_token = session_token
        self.region_name = region_name
        self.endpoint = endpoint

    def __repr__(self) -> str:
        return f"{type(self).__name__}(access_key_id={self.access_key_id!r}, endpoint={self.endpoint!r}, …)"


def credentials_of(credentials: S3Credentials | None) -> dict[str, str]:
    """Return credentials in the form of `storage_options_for`."""
    names = {"region_name": "region", "endpoint": "endpoint"}
    names |= {name: name for name in ("access_key_id", "secret_access_key", "session_token")}
    values = {ours: getattr(credentials, theirs, None) for theirs, ours in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def is_s3_path(path: str) -> bool:
    """Whether a path is a URL of S3."""
    return path.startswith("s3://")


def is_gs_path(path: str) -> bool:
    """Whether a path is a URL of Google Cloud Storage."""
    return path.startswith("gs://")


def is_azure_path(path: str) -> bool:
    """Whether a path is a URL of Azure Blob."""
    return path.startswith("az://")


def s3_glob(
    path: str, allow_pattern: list[str] | None = None, s3_credentials: S3Credentials | None = None
) -> list[str]:
    """Return the files directly in a folder; `allow_pattern` holds patterns of whole URLs.

    Raises:
        StorageError: or a subclass.
    """
    options = storage_options_for(path, credentials_of(s3_credentials))
    found = listed_files(path, options, is_recursive=False, allowed=allow_pattern or [], ignored=[])
    return [name for name, _ in found]


def s3_pull_files(
    model_path: str,
    dst: str,
    allow_pattern: list[str] | None = None,
    ignore_pattern: list[str] | None = None,
    s3_credentials: S3Credentials | None = None,
) -> None:
    """Copy the files below a folder to a local folder; each file gets its name when it is complete.

    Args:
        model_path: The folder.
        dst: The local folder.
        allow_pattern: Files are copied if their path in the folder matches one of these; None copies all.
        ignore_pattern: Files are not copied if their path in the folder matches one of these.
        s3_credentials: The credentials for S3.

    Raises:
        FormatError: a name leads out of the folder; nothing is copied.
        StorageError: or a subclass, from the storage.
        OSError: a file cannot be written.
    """
    base = f"{model_path.rstrip('/')}/"
    objects = FileLookup()
    objects.credentials = credentials_of(s3_credentials)
    options = storage_options_for(base, objects.credentials)
    found = listed_files(base, options, is_recursive=True, allowed=[], ignored=[])
    names = [path.removeprefix(base) for path, _ in found]
    names = names if allow_pattern is None else filter_allow(names, allow_pattern)
    names = filter_ignore(names, ignore_pattern or [])
    for name in names:
        if reason := why_not_inside(name):
            raise FormatError(f"the storage lists {name[:80]!r}, which {reason}", uri=redact(base))

    def pull(name: str) -> None:
        _download(objects, base + name, os.path.join(dst, *name.split("/")))

    in_parallel(pull, names, role="copy", most=MOST_LARGE)


def gcs_glob(path: str, allow_pattern: list[str] | None = None) -> list[str]:
    """As `s3_glob`."""
    return s3_glob(path, allow_pattern)


def azure_glob(path: str, allow_pattern: list[str] | None = None) -> list[str]:
    """As `s3_glob`."""
    return s3_glob(path, allow_pattern)


def gcs_pull_files(
    model_path: str,
    dst: str,
    allow_pattern: list[str] | None = None,
    ignore_pattern: list[str] | None = None,
    s3_credentials: S3Credentials | None = None,
) -> None:
    """As `s3_pull_files`."""
    s3_pull_files(model_path, dst, allow_pattern, ignore_pattern, s3_credentials)


def azure_pull_files(
    model_path: str,
    dst: str,
    allow_pattern: list[str] | None = None,
    ignore_pattern: list[str] | None = None,
) -> None:
    """As `s3_pull_files`."""
    s3_pull_files(model_path, dst, allow_pattern, ignore_pattern)


def filter_allow(paths: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the paths that match one of the patterns.

    Example:
        >>> filter_allow(["a.json", "in/b.json", "c.bin"], ["*.json"])
        ['a.json', 'in/b.json']
    """
    return [path for path in paths if any(fnmatch(path, pattern) for pattern in patterns)]


def filter_ignore(paths: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the paths that match none of the patterns."""
    return [path for path in paths if not any(fnmatch(path, pattern) for pattern in patterns)]


def _download(objects: FileLookup, url: str, target: str) -> None:
    settings = resolve(options_from_environment())
    found = objects.found([url], settings)[url]
    if isinstance(found, StreamerError):
        raise found
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with (
        draft_of(target, is_flushed=False) as draft,
        open(draft, "wb") as file,
        closing(ByteStream(found, 0, settings)) as stream,
    ):
        for _, piece in stream.pieces():
            file.write(piece)
