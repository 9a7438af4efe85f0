"""Files that the page cache does not hold."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["drop_from_page_cache"]


def drop_from_page_cache(path: Path) -> None:
    """Bring a file to its disk, and have the kernel forget its pages; on tmpfs it has no other place."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
