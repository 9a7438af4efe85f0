"""A static nginx on 127.0.0.1, plain and TLS: a server cheap enough not to hide its clients.

It runs as the current user. Signatures are ignored and there is no ListObjects: it measures speed, never correctness.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]

from servers.nginx_process import NginxProcess  # noqa: E402


class NginxOrigin(NginxProcess):
    """Serve `root` at ``/``; lay files out as ``root/BUCKET/KEY`` to look like an object store with path addressing."""

    workers = 2

    def http_settings(self) -> str:
        """Write no log, and keep connections over the pauses between two rounds."""
        return "access_log off; keepalive_timeout 300s;"

    def server_settings(self) -> str:
        """Serve the files as they are."""
        return f"ssl_protocols TLSv1.2 TLSv1.3; root {self.root};"
