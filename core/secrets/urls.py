"""A URL that holds a secret, as frames of this package hold it: text like any other, but for what `repr` shows.

A traceback with locals (of a notebook, of a crash reporter) shows `repr` of whatever a frame holds. So such URLs are
wrapped where they come in, and what is cut out of them is wrapped too. ``str(url)`` is plain again: for plug-ins, and
for fsspec, which tells its instances apart by the `repr` of their arguments. Paths, and URLs without a secret, stay as
they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

from streamer.core.secrets.redact import redact

__all__ = ["SecretText", "hidden_part", "hidden_uri", "hidden_uris"]


class SecretText(str):
    """A URL with a secret, or a part of one. Equal to the same plain text, with its hash; a pickle of it is plain.

    Args:
        text: The text.
        shown: What may be shown of the URL.

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
        """Make it; text cannot be changed any more when `__init__` is called."""
        made = super().__new__(cls, text)
        made._shown = shown
        return made

    def __repr__(self) -> str:
        return repr(str(self)) if self in self._shown else "'…'"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def __radd__(self, other: str) -> SecretText:
        return SecretText(str(other) + str(self), self._shown)


class _SecretUrl(SecretText):
    def __repr__(self) -> str:
        return repr(self._shown)


class _SecretBytes(bytes):
    def __repr__(self) -> str:
        return "b'…'"


def hidden_uris(given: Any) -> Any:
    """Wrap what a caller gave as ``uri``: one or several; what can be none is left for those who refuse it."""
    if isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable):
        return hidden_uri(given)
    return [hidden_uri(each) for each in given]


def hidden_uri(given: Any) -> Any:
    """Wrap a URL that `redact` would change, and bytes, which will be refused."""
    if isinstance(given, bytes):
        return _SecretBytes(given)
    if not isinstance(given, str) or isinstance(given, SecretText):
        return given
    shown = redact(given)
    return given if shown == given else _SecretUrl(given, shown)


def hidden_part(text: str, of: str) -> str:
    """Wrap a text that was made of a URL, where the URL is wrapped."""
    return SecretText(text, of._shown) if isinstance(of, SecretText) else text


def _keeping(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def keeping(self: SecretText, *arguments: Any, **named: Any) -> Any:
        found = method(self, *arguments, **named)
        if isinstance(found, str):
            return SecretText(found, self._shown)
        return type(found)(SecretText(each, self._shown) for each in found)

    keeping.__name__ = name
    return keeping


for _name in (
    *("__getitem__", "__add__", "lower", "upper", "casefold", "replace", "removeprefix", "removesuffix"),
    *("partition", "rpartition", "split", "rsplit", "splitlines", "strip", "lstrip", "rstrip", "translate"),
):
    setattr(SecretText, _name, _keeping(_name))
