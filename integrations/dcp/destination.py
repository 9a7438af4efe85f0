"""Delivers the values of a load plan: torch's planner chooses the targets, and only the caller's thread calls it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from streamer.core.errors import FormatError, TargetError
from streamer.core.quoting import quoted

__all__ = ["Destination", "loaded"]

_FOREIGN = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)")  # in messages of torch.load
_LOOKUPS = ("resolve_tensor", "lookup_tensor", "transform_tensor")


class Destination:
    """The planner of one load.

    Args:
        planner: The planner of torch.
        label: The checkpoint, for messages.
    """

    def __init__(self, planner: LoadPlanner, label: str) -> None:
        self._planner, self._label = planner, label
        kind = type(planner)
        # A plain planner returns the caller's own tensors. Any other may create a tensor for each request, so it must
        # not be called for all of them in advance.
        self._is_plain = isinstance(planner, DefaultLoadPlanner) and all(
            getattr(kind, name) is getattr(DefaultLoadPlanner, name) for name in _LOOKUPS
        )

    def in_place(self, request: ReadItem, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return the tensor of a request if bytes of this shape and dtype can be read directly into it."""
        if not self._is_plain:
            return None
        target = self._target(request)
        is_plain = type(target) is torch.Tensor and target.layout == torch.strided and target.device.type != "meta"
        if not is_plain or target.dtype != dtype or tuple(target.shape) != tuple(shape):
            return None
        is_as_stored = target.is_contiguous() and not (target.is_conj() or target.is_neg())
        return target if is_as_stored and target.device.type in ("cpu", "cuda") else None

    def fill(self, request: ReadItem, tensor: torch.Tensor) -> None:
        """Copy a tensor into the target of its request.

        Raises:
            TargetError: the planner's tensor has another shape.
        """
        target = self._target(request)
        if target.size() != tensor.size():
            raise TargetError(
                f"tensor {quoted(request.storage_index.fqn)} has a part of shape {list(tensor.shape)} to load, its"
                f" target {list(target.shape)}",
                uri=self._label,
            )
        target.copy_(tensor)
        self._planner.commit_tensor(request, target)

    def commit(self, request: ReadItem, target: torch.Tensor) -> None:
        """Tell the planner that the tensor of `in_place` is filled."""
        self._planner.commit_tensor(request, target)

    def load_bytes(self, request: ReadItem, data: bytes) -> None:
        """Deliver a value that is no tensor.

        torch's own planner unpickles it without restrictions; so it gets only values that ``torch.load`` accepts under
        ``weights_only=True``.

        Raises:
            FormatError: the value needs code to load, or is malformed.
        """
        if isinstance(self._planner, DefaultLoadPlanner):
            loaded(data, request.storage_index.fqn, self._label)
        self._planner.load_bytes(request, io.BytesIO(data))

    def _target(self, request: ReadItem) -> Any:
        return self._planner.resolve_tensor(request).detach()


def loaded(data: Any, name: str, label: str) -> Any:
    """Load what ``torch.save`` wrote, without running any code in it.

    Raises:
        FormatError: the value needs code to load, or is malformed.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch may raise any for malformed bytes
        foreign = _FOREIGN.search(str(error))
        message = f"is damaged, or was not written by torch.save: {type(error).__name__}"
        hint = "Save or upload the checkpoint again"
        if foreign is not None:
            message = f"names {quoted(foreign[1])}, which may run code, and was not run"
            hint = "If you trust who wrote it, allow that class with torch.serialization.add_safe_globals"
        raise FormatError(f"item {quoted(name)} {message}", uri=label, hint=hint) from error
