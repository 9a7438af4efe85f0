"""Starts reading the weights of a model, with the engine's choice of files and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import Any

import torch

from streamer._stream import stream
from streamer.core.errors import ObjectNotFoundError
from streamer.core.request.request import ProgressOption
from streamer.integrations.serving.extra_config import ExtraConfig, for_place
from streamer.integrations.serving.mapped import mapped_weights
from streamer.integrations.serving.weights_location import without_ignored

__all__ = ["stream_weights"]


def stream_weights(
    folder: str,
    how: ExtraConfig,
    names: Callable[[str], bool],
    *,
    patterns: Sequence[str] | None,
    ignored: Sequence[str] | str | None,
    progress: ProgressOption,
) -> AbstractContextManager[Iterable[tuple[str, torch.Tensor]]]:
    """Stream tensors in file order: a model may convert a layer when all its tensors have arrived.

    Files in the page cache are mapped, unless the user has set how to read them.

    Args:
        folder: The result of `weights_of`.
        how: The parsed ``--model-loader-extra-config``.
        names: Returns whether a tensor of this name is needed.
        patterns: Patterns of files in the folder; the first one that matches any file counts. None: the checkpoint.
        ignored: Patterns of files that are not read.
        progress: As for `streamer.load`.

    Raises:
        StreamerError: as for `streamer.stream`.
    """
    places: list[Any] = [f"{folder.rstrip('/')}/{each}" for each in patterns or ()]
    if not places:
        places = [without_ignored(folder, ignored, how.storage_options, how.options)]
    *others, last = places
    for place in others:
        with suppress(ObjectNotFoundError):
            return _opened(place, how, names, progress)
    return _opened(last, how, names, progress)


def _opened(
    place: str | list[str], how: ExtraConfig, names: Callable[[str], bool], progress: ProgressOption
) -> AbstractContextManager[Iterable[tuple[str, torch.Tensor]]]:
    if how.options is None and how.storage_options is None and how.verify is None:
        mapped = mapped_weights(place, names, progress)
        if mapped is not None:
            return closing(mapped)
    return stream(
        place,
        names=names,
        order="file",
        progress=progress,
        storage_options=how.storage_options,
        options=for_place(how.options, place if isinstance(place, str) else place[0]),
        verify=how.verify,
    )
