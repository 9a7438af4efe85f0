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

_FOREIGN = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)")  # in messages of torch.load
_SCALES = {"torch.uint8", "torch.float8_e8m0fnu"}  # two names of the same byte, an exponent
_LOOKUPS = ("resolve_tensor", "lookup_tensor", "transform_tensor")


class PlannedTargets:
    """The planner of one load."""

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
        """Copy a tensor into the target of its request."""
        target = self._target(request)
        if target.size() != tensor.size():
            raise TargetError(
                f"tensor {quoted(request.storage_index.fqn)} has a part of shape {list(tensor.shape)} to load, its"
                f" target {list(target.shape)}",
                uri=self._label,
            )
        target.copy_(self._as_stored(tensor, target.dtype, request.storage_index.fqn))
        self._planner.commit_tensor(request, target)

    def _as_stored(self, tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
        """Return what is copied: between a quantised dtype and integers, the bytes of scales, and nothing else."""
        kinds = {str(tensor.dtype), str(dtype)}
        if kinds == _SCALES:
            return tensor.view(dtype)
        is_quantised = any(each.startswith(("torch.float8", "torch.float4")) for each in kinds)
        if is_quantised and tensor.is_floating_point() != dtype.is_floating_point:
            raise TargetError(
                f"tensor {quoted(name)} is {tensor.dtype}, its target {dtype}: a cast would give other values",
                uri=self._label,
                hint=f"Make the target {tensor.dtype}, and view it as another dtype afterwards",
            )
        return tensor

    def commit(self, request: ReadItem, target: torch.Tensor) -> None:
        """Tell the planner that the tensor of `in_place` is filled."""
        self._planner.commit_tensor(request, target)

    def load_bytes(self, request: ReadItem, data: bytes) -> None:
        """Deliver a value that is no tensor.

        torch's own planner unpickles it without restrictions; so it gets only values that ``torch.load`` accepts under
        ``weights_only=True``.
        """
        if isinstance(self._planner, DefaultLoadPlanner):
            loaded(data, request.storage_index.fqn, self._label)
        self._planner.load_bytes(request, io.BytesIO(data))

    def _target(self, request: ReadItem) -> Any:
        return self._planner.resolve_tensor(request).detach()


def loaded(data: Any, name: str, label: str) -> Any:
    """Load what ``torch.save`` wrote, without running any code in it."""
    try:
        with torch.serialization.safe_globals([io.BytesIO]):  # bytes and a position: states of trainers are kept in it
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch may raise any for malformed bytes
        foreign = _FOREIGN.search(str(error))
        message = f"is damaged, or was not written by torch.save: {type(error).__name__}"
        hint = "Save or upload the checkpoint again"
        if foreign is not None:
            message = f"names {quoted(foreign[1])}, which may run code, and was not run"
            hint = "If you trust who wrote it, allow that class with torch.serialization.add_safe_globals"
        raise FormatError(f"item {quoted(name)} {message}", uri=label, hint=hint) from error
