"""Identifies a plug-in in errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamer.core.errors import PluginError

__all__ = ["DISABLED", "BrokenContractError", "Plugin", "kind_of"]

_NAME_OF_TYPE: Any = vars(type)["__name__"]
DISABLED = "STREAMER_DISABLED_PLUGINS"


@dataclass(frozen=True)
class Plugin:
    """One entry point of a distribution.

    Attributes:
        scheme: The URL scheme that it serves.
        entry_point: Its entry point, as declared.
        distribution: Name of the distribution that contains it.
        version: Version of that distribution.
    """

    scheme: str
    entry_point: str
    distribution: str
    version: str

    @property
    def label(self) -> str:
        """Name and version of the distribution."""
        return f"{self.distribution} {self.version}".rstrip()

    def error(self, what: str, *, method: str | None = None, uri: str | None = None) -> PluginError:
        """Make the error for a fault of the plug-in.

        Args:
            what: The fault, beginning with a verb.
            method: The method that was called, or None before the first call.
            uri: The object or folder of the call, without secrets.
        """
        return PluginError(
            f"The backend {self.entry_point} of {self.label} {what}",
            uri=uri,
            hint=f"Update or uninstall it, or name it in {DISABLED}",
            scheme=self.scheme,
            distribution=self.distribution,
            version=self.version,
            method=method,
        )


class BrokenContractError(Exception):
    """An answer of a plug-in is not allowed by docs/write-a-plugin.md.

    Args:
        what: The fault, beginning with a verb.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def kind_of(value: object) -> str:
    """Return the name of an answer's type, without the class's own attributes, which a strange class may define.

    Example:
        >>> [kind_of(value) for value in (None, 7, [])]
        ['None', 'int', 'list']
    """
    return "None" if value is None else str(_NAME_OF_TYPE.__get__(type(value)))
