"""A version that a URL pins is that of one object: a folder has none, and its files would be read as they are now."""

from __future__ import annotations

from collections.abc import Sized

from streamer.core.errors import ObjectNotFoundError

__all__ = ["refuse_version_of_folder"]


def refuse_version_of_folder(found: Sized, version: object, uri: str, hint: str) -> None:
    """Refuse a pinned version of what turns out to be a folder.

    Args:
        found: What lies in the folder; nothing, where the URL names an object.
        version: What the URL pins for this path; empty or None for nothing.
        uri: For messages.
        hint: What to do.

    Raises:
        ObjectNotFoundError: there is a folder, and a version.
    """
    if version and len(found):
        raise ObjectNotFoundError("This is a folder, and the URL pins the version of one object", uri=uri, hint=hint)
