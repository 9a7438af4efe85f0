"""A URL with a secret as a `str` whose `repr` does not show the secret.

A traceback with locals (of a notebook, of a crash reporter) shows the `repr` of every local variable. So the public
functions wrap such URLs at once, and their parts are wrapped, too. ``str(url)`` unwraps: for plug-ins, and for fsspec,
which distinguishes its instances by the `repr` of their arguments. Paths, and URLs without a secret, are not wrapped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

from streamer.core.path_objects import is_path_object
from streamer.core.secrets.redact import redact
from streamer.core.secrets.wrong_types import WrongType

__all__ = ["SecretBytes", "SecretText", "hidden_part", "hidden_uri", "hidden_uris", "is_mangled"]


# URLs that were changed so that they look like paths: they would be shown as paths, with password and signature.
_MANGLED = re.compile(
    r"""[\s"'<(]+[a-z][a-z0-9+.-]*:/|//[^/]*@|[^/:@\s]+:[^/@\s]+@[^/\s]+/|(abfss?|az|gc?s|hf|https?|nfs|s3a?|wasbs?):/(?!/)""",
    re.IGNORECASE,
)


class SecretText(str):
    """A URL with a secret, or a part of one. It equals the same plain text and has its hash; a pickle of it is plain.

    Args:
        text: The text.
        shown: The text of the URL that may be shown.

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
