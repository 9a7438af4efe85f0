"""The schemes of this package's own backends, and the extras that install their libraries. Imports nothing.

A new storage also needs entry points in ``pyproject.toml`` and a folder beside this file (`backends/__init__.py`).
"""

from __future__ import annotations

__all__ = ["BUILTIN_SCHEMES", "install_hint"]

EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "http": "http",
    "https": "http",
    "hf": "hf",
    "nfs": "nfs",
}
BUILTIN_SCHEMES = frozenset({"file", *EXTRAS})


def install_hint(scheme: str) -> str | None:
    """Say which extra installs the library of a scheme; None for a scheme without a backend of this package.

    The hint is no command, because ``pip install`` would fetch another project: it has this name on the public index.
    """
    if scheme not in EXTRAS:
        return None
    return f"Install the extra streamer[{EXTRAS[scheme]}] from the repository or wheel that streamer came from"
