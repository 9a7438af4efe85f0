"""A dry run of two small tensors through the loader of an engine, beside the engine's own loader.

It shows whether the engine still takes tensors in the way that our loader gives them: a later version may convert them
in its own reader, and would get unconverted ones from ours. If the engine's own loader cannot fill the small model, the
dry run shows nothing, and our loader is used: each load checks in any case that the engine asks for tensors.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from streamer.compat.hooks import is_equal

__all__ = ["SmallModel", "both_loaders", "changed", "is_filled_alike", "without_lines"]

_log = logging.getLogger("streamer")

_READ_BY_ENGINE: dict[str, Any] = {"storage_options": {}}  # else files in the page cache are mapped


class SmallModel(torch.nn.Module):
    """What an engine fills: two parameters, which become what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2, dtype=torch.float32, device="cpu")

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take all of them, as models of engines do; give their names."""
        own = dict(self.named_parameters())
        taken = {name: tensor.detach().clone() for name, tensor in weights}
        for name, tensor in taken.items():
            own[name].data = tensor
        return set(taken)


def is_filled_alike(
    ours: Callable[[SmallModel], object], theirs: Callable[[SmallModel], object], expected: Mapping[str, torch.Tensor]
) -> bool:
    """Whether our loader and the engine's own both fill a model with what was written.

    Args:
        ours: Fills the model; what it raises is raised.
        theirs: Fills it from the files, without this package.
        expected: What was written.
    """
    own, other = SmallModel(), SmallModel()
    try:
        theirs(other)
    except Exception as error:
        _log.debug("The engine's own loader does not fill a small model, so ours is not compared with it: %r", error)
        return True
    ours(own)
    return is_equal(dict(own.named_parameters()), expected) and is_equal(dict(other.named_parameters()), expected)


def both_loaders(loader: Any, base: type, base_format: str, **fields: Any) -> tuple[Any, Any]:
    """Make a loader of ours that reads, and one of the engine's, for equal configurations.

    Args:
        loader: Ours, as the engine made it; it is left as it is.
        base: The engine's class that ours derives from.
        base_format: Its ``load_format``.
        fields: Of the configuration, for both.
    """
    plain = changed(loader.load_config, ignore_patterns=[], **fields)
    ours = type(loader)(changed(plain, model_loader_extra_config=_READ_BY_ENGINE))
    return ours, base(changed(plain, load_format=base_format, model_loader_extra_config={}))


def changed(config: Any, **fields: Any) -> Any:
    """Give a copy of an engine's configuration with other values; a field that it does not have is left out."""
    made = copy.copy(config)
    for name, value in fields.items():
        if hasattr(made, name):
            setattr(made, name, value)
    return made


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
