"""s3fs: what closes its clients, and whose its session is.

Tried with s3fs 2024.6.0 to 2026.9.0.
"""

from __future__ import annotations

from typing import Any

from s3fs import S3FileSystem

__all__ = ["client_creator", "give_session"]


def client_creator(fs: S3FileSystem) -> Any:
    """Return the context manager that made the client, or with `cache_regions` one for each region; None before."""
    return getattr(fs, "_s3creator", None)


def give_session(fs: S3FileSystem, session: Any) -> None:
    """Give a file system a session that it does not replace by one of its own when it connects again."""
    fs.session, fs._session_is_owned = session, False
