"""Refuses a URL that pins a version of a folder: only an object has a version, so the files would be read unpinned."""

from __future__ import annotations

from collections.abc import Sized

from streamer.core.errors import ObjectNotFoundError

__all__ = ["refuse_version_of_folder"]


def refuse_version_of_folder(entries: Sized, version: object, uri: str, hint: str) -> None:
    """Refuse a pinned version if the URL names a folder.

    Args:
        entries: Entries of the folder; empty if the URL names an object.
        version: The version that the URL pins for this path; empty or None for no version.
        uri: The URL, for the message.
        hint: The hint of the error.

    Raises:
        ObjectNotFoundError: there is a folder, and a version.
    """
    if version and len(entries):
        raise ObjectNotFoundError("This is a folder, and the URL pins the version of one object", uri=uri, hint=hint)
