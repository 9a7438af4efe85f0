"""Arguments whose `repr` shows no secret: storage options, URLs, and arguments of a wrong type.

A traceback with locals (of a notebook, of a crash reporter) shows the `repr` of every local variable. So the public
functions wrap these arguments at once. Parts of a wrapped URL are wrapped, too; paths, and URLs without a secret, are
not. Of an argument of a wrong type only the type is kept.

Only the call that passes an argument to another library, or to a plug-in, unwraps it: fsspec distinguishes its
instances by the `repr` of their arguments, and all wrapped options have the same text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, SupportsIndex

from streamer.core.path_objects import is_path_object
from streamer.core.secrets.redact import redact

__all__ = [
    "SecretBytes",
    "SecretOptions",
    "SecretText",
    "WrongType",
    "hidden",
    "hidden_part",
    "hidden_uri",
    "hidden_uris",
    "is_mangled",
    "plain",
    "type_name",
]

# URLs that were changed so that they look like paths: they would be shown as paths, with password and signature.
_MANGLED = re.compile(
    r"""[\s"'<(]+[a-z][a-z0-9+.-]*:/|//[^/]*@|[^/:@\s]+:[^/@\s]+@[^/\s]+/|(abfss?|az|gc?s|hf|https?|nfs|s3a?|wasbs?):/(?!/)""",
    re.IGNORECASE,
)


class WrongType:
    """An argument that will be refused."""

    def __init__(self, value: Any) -> None:
        self.type_name = type(value).__name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type_name})"


def type_name(value: Any) -> str:
    """Return the name of an argument's type; for a `WrongType`, of the argument that it replaces."""
    return value.type_name if isinstance(value, WrongType) else type(value).__name__


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


class SecretText(str):
    """A URL with a secret, or a part of one. It equals the same plain text and has its hash; a pickle of it is plain.

    Example:
        >>> hidden_uri("s3://KEY:S3CR3T@bucket/model")
        's3://bucket/model'
        >>> hidden_uri("s3://KEY:S3CR3T@bucket/model").partition("://")
        ('s3', '://', '…')
        >>> str(hidden_uri("s3://KEY:S3CR3T@bucket/model").partition("://")[2])
        'KEY:S3CR3T@bucket/model'
    """

    _shown: str

    def __new__(cls, text: str, shown: str) -> SecretText:
        """Set the text; a `str` is complete before `__init__`."""
        secret = super().__new__(cls, text)
        secret._shown = shown
        return secret

    def __repr__(self) -> str:
        return repr(str(self)) if self in self._shown else "'…'"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def __radd__(self, other: str) -> SecretText:
        return SecretText(str(other) + str(self), self._shown)


class _SecretUrl(SecretText):
    def __repr__(self) -> str:
        return repr(self._shown)


class SecretBytes(bytes):
    """Bytes of an answer, which may repeat the request's secrets; a traceback with locals does not show them."""

    def __repr__(self) -> str:
        return "b'…'"


def hidden_uris(uri: Any) -> Any:
    """Wrap a caller's ``uri``, one or several; a value of a wrong type is returned unchanged, and refused later."""
    if isinstance(uri, (str, bytes, os.PathLike)) or not isinstance(uri, Iterable) or is_path_object(uri):
        return hidden_uri(uri)
    return [hidden_uri(each) for each in uri]


def hidden_uri(uri: Any) -> Any:
    """Wrap a URL that `redact` would change, and a value that will be refused."""
    if isinstance(uri, bytes):
        return SecretBytes(uri)
    if not isinstance(uri, str) and is_path_object(uri):  # its options are not in its `repr`
        return uri
    text = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
    if not isinstance(text, str):
        return uri if isinstance(uri, (os.PathLike, WrongType)) else WrongType(uri)
    if isinstance(text, SecretText):
        return text
    shown = "…" if is_mangled(text) else redact(text)
    return uri if shown == text else _SecretUrl(text, shown)


def is_mangled(text: str) -> bool:
    """Say whether a text is a damaged URL: with quotes around it, or with a slash that `Path` removed."""
    return _MANGLED.match(text) is not None


def hidden_part(text: str, of: str) -> str:
    """Wrap a text that was cut from a URL, if the URL is wrapped."""
    return SecretText(text, of._shown) if isinstance(of, SecretText) else text


def _keeping(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def keeping(self: SecretText, *arguments: Any, **named: Any) -> Any:
        result = method(self, *arguments, **named)
        if isinstance(result, str):
            return SecretText(result, self._shown)
        return type(result)(SecretText(each, self._shown) for each in result)

    keeping.__name__ = name
    return keeping


for _name in (
    *("__getitem__", "__add__", "lower", "upper", "casefold", "replace", "removeprefix", "removesuffix"),
    *("partition", "rpartition", "split", "rsplit", "splitlines", "strip", "lstrip", "rstrip", "translate"),
):
    setattr(SecretText, _name, _keeping(_name))
