"""The botocore session for an s3fs instance that fsspec makes, so that blank variables count as unset there, too."""

from __future__ import annotations

from aiobotocore.session import AioSession

from streamer.backends.aws_sessions import SkipsBlanks


class AsyncEnvironmentSession(SkipsBlanks, AioSession):  # type: ignore[misc]  # aiobotocore has no types
    """A session of the current environment and files, for file systems with an event loop."""
