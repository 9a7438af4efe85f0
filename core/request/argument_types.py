"""The types of arguments that several public functions share, as a caller may write them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from streamer.core.path_objects import PathObject

__all__ = ["OneUri", "ProgressOption", "StorageOptions", "UriOption"]

OneUri: TypeAlias = "str | os.PathLike[str] | PathObject"
UriOption: TypeAlias = "OneUri | Iterable[OneUri]"
StorageOptions: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None"
# None: a bar on a terminal or in a notebook, else the log; a bool: a bar, or nothing; a callable: called with
# (bytes done, bytes in all).
ProgressOption: TypeAlias = bool | Callable[[int, int], None] | None
