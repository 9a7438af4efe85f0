"""The schemes of this package's own backends, and the extras that install their libraries. Imports nothing."""

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
    """Say what installs the library of a scheme; None for a scheme that is not ours.

    It is no command: the name on the public index belongs to another project, whose code a command would fetch.
    """
    if scheme not in EXTRAS:
        return None
    return f"Install the extra streamer[{EXTRAS[scheme]}] from the repository or wheel that streamer came from"
