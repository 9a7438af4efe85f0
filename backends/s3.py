"""The entry for ``s3://`` and ``s3a://``: cheap to import, s3fs being loaded when the first such URL is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamer.core.errors import UnknownSchemeError
from streamer.core.redact import redact
from streamer.core.sources import Store, hookimpl

__all__ = ["streamer_open_store"]


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any]) -> Store | None:
    """Open the bucket of `uri` with the options of `s3fs.S3FileSystem`.

    Raises:
        UnknownSchemeError: s3fs is not installed.
        UsageError: the URL names no bucket.
        OptionError: an option that is refused, such as ``verify=False``.
    """
    if scheme not in ("s3", "s3a"):
        return None
    try:
        from streamer.backends.s3_store import S3Store  # noqa: PLC0415 (s3fs takes 0.3 s to import, and is optional)
    except ImportError as error:
        raise UnknownSchemeError(
            f"{scheme}:// needs s3fs, which cannot be imported ({error})",
            uri=redact(uri),
            hint='pip install "streamer[s3]"',
        ) from error
    return S3Store(uri, storage_options)
