"""Runs the hooks that modules run after ``load_state_dict``, and reports the hooks that they run before it.

A hook after ``load_state_dict`` gets a filled module, no matter what filled it, so it is run. A hook before it changes
the tensors that are about to be copied. Here nothing is copied, because bytes are read directly into the module's
tensors, so this hook is only reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streamer.core.tensors import torch_private_names

__all__ = ["run_post_hooks", "skipped_code"]

MOST_SHOWN = 5  # modules shown in a remark
# These hooks only undo what hooks of `state_dict` do: they rename wrapped modules and split gathered shards.
HARMLESS = "torch.distributed."


class _IncompatibleKeys(NamedTuple):
    """The second argument of a hook, as torch passes it."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def run_post_hooks(module: Any, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Run hooks of ``register_load_state_dict_post_hook``, those of inner modules first, as torch does.

    Args:
        module: Any target; a target that is no module has no hooks.
        missing: Names of targets that were not filled.
        unexpected: Names of tensors without a target.
    """
    keys = _IncompatibleKeys(list(missing), list(unexpected))
    for each in _inner_modules_first(module) if hasattr(module, "named_modules") else ():
        for hook in torch_private_names.load_post_hooks(each):
            hook(each, keys)


def skipped_code(module: Any) -> list[str]:
    """Return a remark on modules whose code before ``load_state_dict`` was not run."""
    if not hasattr(module, "named_modules"):
        return []
    named = [
        f"{name or 'the module itself'} ({what})" for name, each in module.named_modules() for what in _pre_code(each)
    ]
    if not named:
        return []
    shown = ", ".join(named[:MOST_SHOWN]) + (", …" if len(named) > MOST_SHOWN else "")
    return [f"code that load_state_dict runs before it copies was skipped: {shown}"]


def _pre_code(module: Any) -> Iterator[str]:
    for hook in torch_private_names.load_pre_hooks(module):
        if not str(getattr(hook, "__module__", "")).startswith(HARMLESS):
            yield str(getattr(hook, "__qualname__", type(hook).__name__))[:80]
    loader = torch_private_names.own_loader(module)
    if loader is not None and not str(loader.__module__).startswith("torch."):
        yield loader.__qualname__[:80]


def _inner_modules_first(module: Any) -> Iterator[Any]:
    for child in module.children():
        yield from _inner_modules_first(child)
    yield module
