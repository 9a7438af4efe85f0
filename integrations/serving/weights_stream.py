"""Starts reading the weights of a model, with the engine's choice of files and tensors, and the user's extra options.

Files in the page cache are mapped, unless the user has set how to read. Pages are mapped when they are used, as in the
engine's own loader: a thread that mapped them ahead (``MADV_POPULATE_READ``) made nothing faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import safetensors
import torch

from streamer._progress import Progress
from streamer._stream import stream
from streamer.core.errors import ObjectNotFoundError, OptionError
from streamer.core.log import OwnLogger
from streamer.core.options.arguments import check_switch
from streamer.core.options.machine import memory_bytes
from streamer.core.options.options import Options, check_names
from streamer.core.options.settings import resolve
from streamer.core.quoting import size_text
from streamer.core.request.request import ProgressOption, Request
from streamer.core.secrets.environment import variable
from streamer.core.store.names import scheme_of
from streamer.core.verification.strategy import VerifyOption
from streamer.integrations.serving.planned_reads import PlannedCheckpoint
from streamer.integrations.serving.recorder import Recorder
from streamer.integrations.serving.weights_location import without_ignored
from streamer.integrations.shard_handles import WholeCheckpoint

AHEAD_BYTES = 256 << 20  # a Llama of 1 GiB in the page cache took as long with 128 MiB as with all of it
URL_AHEAD_BYTES = 512 << 20
URL_AHEAD_OF_MEMORY = 64

_log = OwnLogger()


@dataclass(frozen=True)
class ExtraConfig:
    """How to read the weights."""

    options: Options | None  # as for `streamer.load`; None for the defaults and the environment
    storage_options: Mapping[str, Any] | None = field(repr=False)  # as for `streamer.load`
    verify: VerifyOption  # as for `streamer.load`
    is_deferred: bool  # whether tensors may come after a loader has said which parts of them it keeps
    of_engine: dict[str, Any] = field(repr=False)  # the keys of the engine's own loader


def parsed(given: Any, of_engine: tuple[str, ...]) -> ExtraConfig:
    """Check and divide the dictionary of the user."""
    if not isinstance(given or {}, dict):
        raise OptionError(f"model_loader_extra_config must be a dict, not {type(given).__name__}")
    left = dict(given or {})
    check_names(left, [*of_engine, "deferred", "storage_options", "verify", *(each.name for each in fields(Options))])
    storage_options, verify = left.pop("storage_options", None), left.pop("verify", None)
    is_deferred = left.pop("deferred", True)
    check_switch("deferred", is_deferred)
    theirs = {key: left.pop(key) for key in of_engine if key in left}
    return ExtraConfig(Options(**left) if left else None, storage_options, verify, is_deferred, theirs)


def for_place(options: Options | None, place: str) -> Options | None:
    """Return options with a smaller memory limit, unless the user has set one: an engine takes each tensor at once."""
    if variable("STREAMER_MEMORY_LIMIT_BYTES") is not None or (options and options.memory_limit_bytes is not None):
        return options
    of_url = min(resolve(None).memory_limit_bytes, max(URL_AHEAD_BYTES, memory_bytes() // URL_AHEAD_OF_MEMORY))
    return replace(options or Options(), memory_limit_bytes=of_url if "://" in place else AHEAD_BYTES)


def mapped_weights(
    place: str | list[str], names: Callable[[str], bool], progress: ProgressOption
) -> Generator[tuple[str, torch.Tensor], None, None] | None:
    """Map the shards of a checkpoint; return None if a part of it is not in the page cache."""
    if any(scheme_of(each) != "file" for each in ([place] if isinstance(place, str) else place)):
        return None
    whole = WholeCheckpoint(Request(uri=place))
    shards = whole.warm_shards()
    if shards is None:
        return None
    wanted = {path: [name for name in held if names(name)] for path, held in shards.items()}
    total_bytes = sum(whole[name].nbytes for held in wanted.values() for name in held)
    if not total_bytes:
        return None
    return _mapped(wanted, total_bytes, whole.label, progress)


def _mapped(
    wanted: Mapping[str, list[str]], total_bytes: int, label: str, progress: ProgressOption
) -> Generator[tuple[str, torch.Tensor], None, None]:
    taken_bytes, began = 0, time.monotonic()
    with Progress(progress, total_bytes, label) as shown:
        for path, names in wanted.items():
            with safetensors.safe_open(path, "pt") as shard:
                for name in names:
                    tensor = shard.get_tensor(name)
                    size_bytes = tensor.nbytes
                    yield name, tensor
                    del tensor
                    taken_bytes += size_bytes
                    shown.update(lambda: taken_bytes)  # noqa: B023 (called before the next turn)
    count, seconds = sum(map(len, wanted.values())), time.monotonic() - began
    size = size_text(total_bytes)
    _log.info("%s: %d tensors, %s mapped from the page cache in %.2f s", label, count, size, seconds)


def stream_weights(
    folder: str,
    how: ExtraConfig,
    names: Callable[[str], bool],
    *,
    patterns: Sequence[str] | None,
    ignored: Sequence[str] | str | None,
    progress: ProgressOption,
    recorder: Recorder | None = None,
) -> AbstractContextManager[Iterable[tuple[str, torch.Tensor]]]:
    """Stream the needed tensors of a folder in file order: a model may convert a layer when its tensors have arrived.

    Of `patterns` of files, the first one that matches any counts. Without a recorder, all tensors have data.
    """
    recorder = recorder if how.is_deferred else None
    places: list[Any] = [f"{folder.rstrip('/')}/{each}" for each in patterns or ()]
    if not places:
        places = [without_ignored(folder, ignored, how.storage_options, how.options)]
    *others, last = places
    for place in others:
        with suppress(ObjectNotFoundError):
            return _opened(place, how, names, progress, recorder)
    return _opened(last, how, names, progress, recorder)


def _opened(
    place: str | list[str],
    how: ExtraConfig,
    names: Callable[[str], bool],
    progress: ProgressOption,
    recorder: Recorder | None,
) -> AbstractContextManager[Iterable[tuple[str, torch.Tensor]]]:
    if how.options is None and how.storage_options is None and how.verify is None:
        mapped = mapped_weights(place, names, progress)
        if mapped is not None:
            return closing(mapped)
    arguments: dict[str, Any] = {
        "names": names,
        "progress": progress,
        "storage_options": how.storage_options,
        "options": for_place(how.options, place if isinstance(place, str) else place[0]),
        "verify": how.verify,
    }
    if recorder is not None:
        planned = PlannedCheckpoint(Request(uri=place, **arguments))
        if planned.is_deferrable():
            return closing(_deferred(planned, recorder, lambda: stream(place, order="file", **arguments)))
    return stream(place, order="file", **arguments)


def _deferred(
    planned: PlannedCheckpoint, recorder: Recorder, whole: Callable[[], AbstractContextManager[Iterable[Any]]]
) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Yield deferred tensors if a load records what becomes of them, else tensors with data."""
    if recorder.is_active:
        yield from planned.tensors(recorder)
        return
    with whole() as tensors:
        yield from tensors
