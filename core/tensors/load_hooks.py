"""The code that modules run around ``load_state_dict``: what comes after it is run, what comes before it is named.

A hook that runs afterwards sees a filled module, whoever filled it. One that runs before changes the tensors that are
about to be copied, and here none are: they go straight to their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streamer.core.tensors import torch_private_names

__all__ = ["run_post_hooks", "skipped_code"]

NAMED = 5  # modules shown in a remark
HARMLESS = "torch.distributed."  # its hooks undo what reading a state_dict does: names of wrappers, and gathered shards


class _IncompatibleKeys(NamedTuple):
    """What a hook gets, as from torch."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def run_post_hooks(module: Any, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Run what was registered with ``register_load_state_dict_post_hook``, of inner modules first, as torch does.

    Args:
        module: Any target; one that is no module has no hooks.
        missing: Names of targets that were not filled.
        unexpected: Names of tensors without a target.
    """
    keys = _IncompatibleKeys(list(missing), list(unexpected))
    for each in _from_within(module) if hasattr(module, "named_modules") else ():
        for hook in torch_private_names.load_post_hooks(each):
            hook(each, keys)


def skipped_code(module: Any) -> list[str]:
    """Say of which modules code was not run that ``load_state_dict`` would have run before it copies."""
    if not hasattr(module, "named_modules"):
        return []
    named = [
        f"{name or 'the module itself'} ({what})" for name, each in module.named_modules() for what in _before(each)
    ]
    if not named:
        return []
    shown = ", ".join(named[:NAMED]) + (", …" if len(named) > NAMED else "")
    return [f"code that load_state_dict runs before it copies was skipped: {shown}"]


def _before(module: Any) -> Iterator[str]:
    for hook in torch_private_names.load_pre_hooks(module):
        if not str(getattr(hook, "__module__", "")).startswith(HARMLESS):
            yield str(getattr(hook, "__qualname__", type(hook).__name__))[:80]
    loader = torch_private_names.own_loader(module)
    if loader is not None and not str(loader.__module__).startswith("torch."):
        yield loader.__qualname__[:80]


def _from_within(module: Any) -> Iterator[Any]:
    for child in module.children():
        yield from _from_within(child)
    yield module
