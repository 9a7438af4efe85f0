"""Increments autograd's version counters of filled tensors: the engine wrote to them without an operation of torch.

Then a backward pass through earlier activations raises, as after ``load_state_dict``, in place of combining new weights
with old activations.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from streamer.core.tensors.sharded_tensors import is_sharded

__all__ = ["count_changes"]


def count_changes(targets: Iterable[Any]) -> None:
    """Increment the counter of each tensor; arrays, and tensors made in inference mode, have none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    increment, tensor_class = torch.autograd.graph.increment_version, torch.Tensor  # there may be 100 000 targets
    for target in targets:
        if isinstance(target, tensor_class) and not target.is_inference():
            increment(target)
            if type(target) is not tensor_class and is_sharded(target):
                with torch.no_grad():
                    increment(target.to_local())
