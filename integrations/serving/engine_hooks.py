"""Whether an engine still has the names, and treats tensors in the way, that our loaders need.

If a name does not fit, the error of the load format says what to do. A dry run sends two small tensors through our
loader and through the engine's own loader: a later version may convert tensors in its own reader, and would then get
unconverted ones from ours. The tensors are deferred if those of the user's loads are. If the engine's own loader cannot
fill the small model, the dry run decides nothing, and our loader is used: each load still checks that the engine
requests tensors.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from streamer.compat.hooks import Hook, is_equal
from streamer.core.errors import UsageError
from streamer.core.log import OwnLogger


def without_url(engine: str, format_name: str) -> str:
    """Return the text for a hook that does not fit: the consequence, and the commands that work with any version."""
    return f"the load format {format_name!r} cannot be used. Use: python -m streamer pull URI DIR, then {engine} DIR"


def all_fit(hooks: Iterable[Hook]) -> bool:
    """Whether all hooks fit; each hook that does not is logged, once per process."""
    fitting = [hook.fits() for hook in hooks]  # a list, so that each misfit is logged
    return all(fitting)


def first_misfit(hooks: Iterable[Hook]) -> str | None:
    """Return the first hook that does not fit, with the reason; None if all fit."""
    reasons = ((hook.label, hook.misfit()) for hook in hooks)
    return next((f"{label}: {reason}" for label, reason in reasons if reason is not None), None)


def refusal(reason: str, engine: str, format_name: str) -> UsageError:
    """Return the error of a load format that cannot be used."""
    hint = f"Use: python -m streamer pull URI DIR, then {engine} DIR. This works with any version of the engine"
    return UsageError(f"the load format {format_name!r} does not fit this version of the engine: {reason}", hint=hint)


class _Forwarding(logging.Handler):
    def __init__(self, to: str) -> None:
        super().__init__()
        self.to = to

    def emit(self, record: logging.LogRecord) -> None:
        theirs = logging.getLogger(self.to)
        if theirs.isEnabledFor(record.levelno):
            theirs.handle(record)


def forward_log(to: str) -> None:
    """Forward log lines of this package to a logger of an engine whose log has only those; further calls do nothing."""
    own = logging.getLogger("streamer")
    if not any(isinstance(each, _Forwarding) for each in own.handlers):
        own.addHandler(_Forwarding(to))
        if own.level == logging.NOTSET:
            own.setLevel(logging.INFO)


_log = OwnLogger()


class SmallModel(torch.nn.Module):
    """A model for an engine to fill: its two parameters are replaced by the tensors that they get."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2, dtype=torch.float32, device="cpu")

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take all tensors, as models of engines do; return their names."""
        own = dict(self.named_parameters())
        taken = {name: torch.empty_like(tensor).copy_(tensor) for name, tensor in weights}
        for name, tensor in taken.items():
            own[name].data = tensor
        return set(taken)


def is_filled_alike(
    ours: Callable[[SmallModel], object], theirs: Callable[[SmallModel], object], expected: Mapping[str, torch.Tensor]
) -> bool:
    """Whether our loader and the engine's own loader both fill a model with the written tensors."""
    own, other = SmallModel(), SmallModel()
    try:
        theirs(other)
    except Exception as error:
        _log.debug("The engine's own loader does not fill a small model, so ours is not compared with it: %r", error)
        return True
    ours(own)
    return is_equal(dict(own.named_parameters()), expected) and is_equal(dict(other.named_parameters()), expected)


def both_loaders(loader: Any, base: type, base_format: str, **fields: Any) -> tuple[Any, Any]:
    """Return a loader that uses this package's engine and a loader of the serving engine, with equal configurations."""
    plain = changed(loader.load_config, ignore_patterns=[], **fields)
    how = {"storage_options": {}, "deferred": loader.how.is_deferred}  # without options, cached files are mapped
    ours = type(loader)(changed(plain, model_loader_extra_config=how))
    if hasattr(ours, "recorder"):
        ours.recorder.defers_all = True
    return ours, base(changed(plain, load_format=base_format, model_loader_extra_config={}))


def changed(config: Any, **fields: Any) -> Any:
    """Return a copy of an engine's configuration with other values; fields that it does not have are ignored."""
    copied = copy.copy(config)
    for name, value in fields.items():
        if hasattr(copied, name):
            setattr(copied, name, value)
    return copied


@contextmanager
def without_lines(*modules: str) -> Iterator[None]:
    """Silence the loggers of an engine's modules inside the block, as the user did not start these loads."""

    def is_shown(_: logging.LogRecord) -> bool:
        return False

    loggers = [logging.getLogger(name) for name in modules]
    for logger in loggers:
        logger.addFilter(is_shown)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_shown)
