"""``safetensors.safe_open`` for any URL: the same call, the same methods."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamer._lazy_checkpoint import Checkpoint
from streamer.core.options.options import Options
from streamer.core.request.request import Request
from streamer.core.secrets.hidden_arguments import hidden, hidden_uris

__all__ = ["safe_open"]


class safe_open(Checkpoint[Any]):  # noqa: N801  the name in safetensors
    """Open a checkpoint as ``safetensors.safe_open`` opens a file; it may be any URL, and may be sharded.

    Args:
        filename: As ``uri`` of `streamer.load`.
        framework: ``"pt"`` or ``"np"``, or one of safetensors' longer names for them.
        device: As for `streamer.load`.
        storage_options: Passed to fsspec unchanged.
        options: How to read; see `streamer.Options`.

    Raises:
        StreamerError: as for `streamer.load`; other formats than safetensors are refused.

    Example:
        >>> with safe_open("s3://bucket/model.safetensors", framework="pt") as f:     # doctest: +SKIP
        ...     tensor = f.get_tensor("weight")
    """

    _reads_any_format = False

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: Any = "cpu",
        *,
        storage_options: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> None:
        filename, storage_options = hidden_uris(filename), hidden(storage_options)
        super().__init__(
            Request(uri=filename, framework=framework, device=device, storage_options=storage_options, options=options)
        )

    def metadata(self) -> dict[str, str] | None:  # type: ignore[override]  # safetensors returns None for no metadata
        """The ``__metadata__`` of the file, or None if there is none."""
        return super().metadata() or None
