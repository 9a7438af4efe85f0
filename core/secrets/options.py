"""The user's storage options in a mapping whose `repr` shows no value.

A traceback with locals (of a notebook, of a crash reporter) shows the `repr` of every local variable. So the public
functions wrap the options at once. Only the call that passes them to another library unwraps them: fsspec distinguishes
its instances by the text of their arguments, and all wrapped options have the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from streamer.core.secrets.wrong_types import WrongType

__all__ = ["SecretOptions", "hidden", "plain"]


class SecretOptions(MutableMapping[str, Any]):
    """A copy of a mapping whose `repr` names only the keys; so do the mappings in it.

    Example:
        >>> SecretOptions({"key": "AKID", "secret": "S3CR3T"})
        SecretOptions(key=…, secret=…)
        >>> SecretOptions({"key": "AKID"}) == {"key": "AKID"}
        True
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = dict(options._values if isinstance(options, SecretOptions) else options or {})

    def __getitem__(self, name: str) -> Any:
        return _hidden(self._values[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}=…' for name in self._values)})"


def hidden(storage_options: Any) -> Any:
    """Wrap a caller's ``storage_options``: a mapping or a sequence of mappings; for other values only keep the type."""
    is_text = isinstance(storage_options, (str, bytes, bytearray, memoryview))
    if isinstance(storage_options, Sequence) and not is_text:
        return [_hidden_argument(each) for each in storage_options]
    return _hidden_argument(storage_options)


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Unwrap a copy, for a call to another library; a frame of this package must not keep it in a variable."""
    values = options._values if isinstance(options, SecretOptions) else options
    return {name: plain(value) if type(value) in (dict, SecretOptions) else value for name, value in values.items()}


def _hidden_argument(value: Any) -> Any:
    return _hidden(value) if value is None or isinstance(value, Mapping) else WrongType(value)


def _hidden(value: Any) -> Any:
    is_plain = isinstance(value, Mapping) and not isinstance(value, SecretOptions)
    return SecretOptions(value) if is_plain else value
