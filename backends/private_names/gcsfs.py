"""gcsfs: the session of a file system, and whether the session sends a client certificate.

Tried with gcsfs 2024.6.0 to 2026.10.1.
"""

from __future__ import annotations

import aiohttp
from gcsfs.core import GCSFileSystem


async def open_session(fs: GCSFileSystem) -> aiohttp.ClientSession:
    """Return the session of a file system; make it if there is none yet."""
    session: aiohttp.ClientSession = await fs._set_session()
    return session


def shows_certificate(fs: GCSFileSystem) -> bool:
    """Say whether the session has its own TLS settings for a client certificate; old releases have no such settings."""
    return bool(getattr(fs, "_use_client_cert", False))
