"""Which plug-in is called: its name in errors."""

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
        entry_point: Its entry point, as it is declared.
        distribution: Name of the distribution that brings it.
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
        """Make the error for what it did wrong.

        Args:
            what: What it did, beginning with a verb.
            method: What was called, or None before the first call.
            uri: What it was about, without secrets.
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
    """An answer of a plug-in is none that docs/write-a-plugin.md allows.

    Args:
        what: What it did, beginning with a verb.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def kind_of(value: object) -> str:
    """Name the type of an answer; its class is not asked, as a strange one may answer anything.

    Example:
        >>> [kind_of(value) for value in (None, 7, [])]
        ['None', 'int', 'list']
    """
    return "None" if value is None else str(_NAME_OF_TYPE.__get__(type(value)))
