"""The user's storage options, as frames of this package hold them: they work as ever and show no value.

A traceback with locals (of a notebook, of a crash reporter) shows `repr` of whatever a frame holds. So they are wrapped
where they come in, and are plain again only in the call that hands them to somebody else: fsspec tells its instances
apart by the text of their arguments, and would take all hidden ones for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

__all__ = ["SecretOptions", "hidden", "plain"]


class SecretOptions(MutableMapping[str, Any]):
    """A copy of a mapping whose `repr` names the keys alone; mappings in it hide theirs, too.

    Example:
        >>> SecretOptions({"key": "AKID", "secret": "S3CR3T"})
        SecretOptions(key=…, secret=…)
        >>> SecretOptions({"key": "AKID"}) == {"key": "AKID"}
        True
    """

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._given: dict[str, Any] = dict(given._given if isinstance(given, SecretOptions) else given or {})

    def __getitem__(self, name: str) -> Any:
        return _hidden(self._given[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self._given[name] = value

    def __delitem__(self, name: str) -> None:
        del self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}=…' for name in self._given)})"


def hidden(given: Any) -> Any:
    """Wrap what a caller gave as ``storage_options``: a mapping, or a sequence of them; all else is left alone."""
    if isinstance(given, (list, tuple)):
        return [_hidden(each) for each in given]
    return _hidden(given)


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Give a copy that hides nothing, for a call to somebody else; it must get no name in a frame of ours."""
    values = given._given if isinstance(given, SecretOptions) else given
    return {name: plain(value) if type(value) in (dict, SecretOptions) else value for name, value in values.items()}


def _hidden(value: Any) -> Any:
    is_plain = isinstance(value, Mapping) and not isinstance(value, SecretOptions)
    return SecretOptions(value) if is_plain else value
