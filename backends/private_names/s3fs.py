"""s3fs: the owner of a file system's session, and whether the client that s3fs made verifies TLS.

Tried with s3fs 2024.6.0 to 2026.9.0.
"""

from __future__ import annotations

from typing import Any

from s3fs import S3FileSystem


def give_session(fs: S3FileSystem, session: Any) -> None:
    """Set the session of a file system, so that the file system does not replace it when it connects again."""
    fs.session, fs._session_is_owned = session, False


def is_connected(fs: S3FileSystem) -> bool:
    """Say whether a file system has made its client."""
    return fs._s3 is not None


def verifies_tls(fs: S3FileSystem) -> bool:
    """Say whether the client of a file system verifies certificates; True without TLS, and before it is made."""
    if fs._s3 is None or not str(fs._s3.meta.endpoint_url).lower().startswith("https:"):
        return True
    return bool(getattr(fs._s3._endpoint.http_session, "_verify", True))
