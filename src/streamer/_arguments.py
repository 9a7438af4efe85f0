"""The keyword arguments of public functions: the fields of a `Request`, passed as ``**how``.

`LoadArguments` is for type checkers, `takes_request` for ``help``. `streamer.load` documents each argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from streamer.core.group.joining import reporting_to_group
from streamer.core.request.request import Request

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from streamer._reads import Order
    from streamer.core.checkpoint.selection import NamesOption
    from streamer.core.checkpoint.slicing import SlicesOption
    from streamer.core.checkpoint.verification import VerifyOption
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions

__all__ = [
    "LoadArguments",
    "RequestArguments",
    "StreamArguments",
    "checked",
    "request_of",
    "takes_fields",
    "takes_request",
]

Function = TypeVar("Function", bound=Callable[..., Any])
Fields = TypeVar("Fields")


class LoadArguments(TypedDict, total=False):
    """The arguments of `streamer.load` and `streamer.open`, except ``framework=``: it determines the returned type."""

    device: Any
    names: NamesOption
    slices: SlicesOption
    storage_options: StorageOptions
    fs: AbstractFileSystem | None
    options: Options | None
    progress: ProgressOption
    dtype: Any
    verify: VerifyOption
    key: KeyOption
    context: str | None
    group: Any


class StreamArguments(LoadArguments, total=False):
    """The arguments of `streamer.stream`, except ``framework=``."""

    order: Order


class RequestArguments(LoadArguments, total=False):
    """All fields of a `Request` except ``uri``."""

    framework: str


def takes_request(**defaults: Any) -> Callable[[Function], Function]:
    """Replace ``**how`` in the signature of a function by the fields of a `Request`."""
    return takes_fields(Request, **defaults)


def takes_fields(of: type, **defaults: Any) -> Callable[[Function], Function]:
    """Write the fields of a dataclass into the signature of a function, in place of its ``**how``."""

    def signed(function: Function) -> Function:
        own = [*inspect.signature(function).parameters.values()][:-1]
        names = {each.name for each in own}
        of_class = [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(each.name, each.default),
                annotation=each.type,
            )
            for each in fields(of)
            if each.name not in names and each.default is not MISSING
        ]
        vars(function)["__signature__"] = inspect.signature(function).replace(parameters=[*own, *of_class])
        return function

    return signed


def request_of(function: Callable[..., Any], uri: Any, how: Mapping[str, Any]) -> Request:
    """Return the checked request of a function with `takes_request`, from its arguments."""
    parameters = _parameters_with(function, how)
    own = {each.name: parameters[each.name].default for each in fields(Request) if each.name in parameters}
    with reporting_to_group(how.get("group")):
        return Request(**{**own, **how, "uri": uri})


def checked(function: Callable[..., Any], of: Callable[..., Fields], how: Mapping[str, Any]) -> Fields:
    """Make the value of a class whose fields a function takes, from its arguments."""
    _parameters_with(function, how)
    return of(**how)


def _parameters_with(function: Callable[..., Any], how: Mapping[str, Any]) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    for name in how:
        if name not in parameters:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
    return parameters
