"""The keyword arguments of the public functions but for ``framework=``, for type checkers: it decides what is returned.

Their meaning is written at `streamer.load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from streamer._locate import StorageOptions
    from streamer._progress import ProgressOption
    from streamer._stream import Order
    from streamer.core.checkpoint.selection import NamesOption
    from streamer.core.checkpoint.strategies import VerifyOption
    from streamer.core.options.options import Options

__all__ = ["LoadArguments", "StreamArguments"]


class LoadArguments(TypedDict, total=False):
    """Of `streamer.load` and `streamer.open`."""

    device: Any
    names: NamesOption
    storage_options: StorageOptions
    fs: AbstractFileSystem | None
    options: Options | None
    progress: ProgressOption
    dtype: Any
    verify: VerifyOption


class StreamArguments(LoadArguments, total=False):
    """Of `streamer.stream`."""

    order: Order
