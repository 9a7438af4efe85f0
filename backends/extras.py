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
    """Return the command that installs the library of a scheme, or None for a scheme that is not ours."""
    return f'pip install "streamer[{EXTRAS[scheme]}]"' if scheme in EXTRAS else None
