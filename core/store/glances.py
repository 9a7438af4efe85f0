"""A glance into a folder: of no use to a load, but to the message that nothing was found."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["GlancingStore"]


@runtime_checkable
class GlancingStore(Protocol):
    """A `Store` that can name what is in a folder, sub-folders too."""

    def glance(self, prefix: str) -> list[str]:
        """Name some files and folders directly in a folder, as many as one request gives; folders end in a slash.

        Called only for the message that there is no checkpoint; whatever it raises is ignored.
        """
