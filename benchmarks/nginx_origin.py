"""A static nginx on 127.0.0.1, with and without TLS, that uses so little CPU that the clients are measured.

nginx runs as the current user. It ignores signatures. Each folder of its root has one listing, which is made at the
start. Use it to measure speed, not to test correctness.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]

from servers.nginx_process import NginxProcess  # noqa: E402


class NginxOrigin(NginxProcess):
    """Serve `root` at ``/``; lay files out as ``root/BUCKET/KEY`` to look like an object store with path addressing."""

    workers = 2
    connection_bytes = 0  # limit of one connection in bytes per second; 0 is no limit

    def http_settings(self) -> str:
        """Return settings that write no log, and keep connections during the pauses between rounds."""
        return "access_log off; keepalive_timeout 300s;"

    def server_settings(self) -> str:
        """Return settings that serve the files unchanged, and a listing of each folder."""
        for folder in filter(Path.is_dir, self.root.iterdir()):
            (self.work / f"{folder.name}.xml").write_text(listing(folder))
        listings = f"location ~ ^/([^/]+)/?$ {{ default_type application/xml; alias {self.work}/$1.xml; }}"
        limit = f"limit_rate {self.connection_bytes};" if self.connection_bytes else ""
        return f"ssl_protocols TLSv1.2 TLSv1.3; root {self.root}; {limit} {listings}"


def listing(folder: Path) -> str:
    """Return the response to ListObjectsV2 for the files of a folder, as one page."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    entries = "".join(
        f"<Contents><Key>{escape(path.name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{escape(etag(path))}</ETag><Size>{path.stat().st_size}</Size></Contents>"
        for path in files
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><IsTruncated>false</IsTruncated>'
        f"<Name>{escape(folder.name)}</Name><KeyCount>{len(files)}</KeyCount>{entries}</ListBucketResult>"
    )


def etag(path: Path) -> str:
    """Return the ETag that nginx sends: the time of the last change and the size."""
    status = path.stat()
    return f'"{int(status.st_mtime):x}-{status.st_size:x}"'
