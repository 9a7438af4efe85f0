"""Turns the arguments of public functions into a `Request`; overloads name these arguments by `LoadArguments`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypedDict

from streamer.core.group.joining import reporting_to_group
from streamer.core.request.request import Request

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from streamer._reads import Order
    from streamer.core.checkpoint.selection import NamesOption
    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions
    from streamer.core.verification.strategy import VerifyOption


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


def request_of(arguments: Mapping[str, Any]) -> Request:
    """Return the checked request of a public function, from its `locals()`."""
    with reporting_to_group(arguments["group"]):
        return Request(**fields_in(arguments, Request))


def fields_in(arguments: Mapping[str, Any], of: type) -> dict[str, Any]:
    """Return those arguments that are the fields of a class."""
    return {each.name: arguments[each.name] for each in fields(of)}
