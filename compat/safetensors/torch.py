"""The names of ``safetensors.torch``; a file to load or to save may be any URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import torch as theirs
from safetensors.torch import load

from streamer._save import save as ours
from streamer.compat.safetensors._handle import safe_open
from streamer.compat.safetensors._saves import as_safetensors, file_at, is_url
from streamer.core.options.options import Options
from streamer.core.tensors.shared_memory import shared_groups

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def load_file(
    filename: str | os.PathLike[str],
    device: Any = "cpu",
    *,
    backend: str = "mmap",
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> dict[str, torch.Tensor]:
    """Load all tensors of a file; arguments and errors as for `streamer.compat.safetensors.safe_open`."""
    with safe_open(filename, "pt", device, backend=backend, storage_options=storage_options, options=options) as handle:
        tensors: dict[str, torch.Tensor] = handle.get_tensors()
    return tensors


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: Any = "cpu",
    *,
    backend: str = "mmap",
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> tuple[set[str], list[str]]:
    """Load a file into a module; of tensors that share memory, it holds the one that ``save_model`` kept.

    Returns:
        The names of the module that were not filled, and the names of the file that the module lacks.

    Raises:
        RuntimeError: `strict`, and there are such names; or as ``load_state_dict``.
        SafetensorError: as for `streamer.compat.safetensors.safe_open`.
    """
    tensors = load_file(filename, device, backend=backend, storage_options=storage_options, options=options)
    ties = _tied_names(model.state_dict(), preferred=tensors)
    result = model.load_state_dict(tensors, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    unexpected += [name for name in ties if name not in missing]  # the file holds a tied tensor twice
    missing -= ties
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                quoted = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


def save(tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a file, as ``safetensors.torch.save`` does, with the values that conjugated views show.

    Args:
        tensors: By name.
        metadata: For the header.

    Raises:
        Exception: what safetensors raises.
    """
    return theirs.save(_with_shown_values(tensors), metadata)


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> None:
    """Save tensors to a file, as ``safetensors.torch.save_file`` does; a URL goes to `streamer.save`.

    An existing file at the URL is replaced, too. Its metadata also names the format of the tensors.

    Args:
        tensors: By name.
        filename: A path, or a URL that ends in ``.safetensors``.
        metadata: For the header.
        storage_options: As for `streamer.save`; for URLs.
        options: As for `streamer.save`; for URLs.

    Raises:
        UsageError: the URL does not end in ``.safetensors``, or cannot be written; and as `streamer.save`.
        StorageError: as for `streamer.save`.
        Exception: what safetensors raises, for a path.
    """
    if not is_url(filename):
        theirs.save_file(_with_shown_values(tensors), filename, metadata)
        return
    ours.save(tensors, file_at(filename), **as_safetensors(metadata, storage_options, options))


def save_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> None:
    """Save a module to a file, as ``safetensors.torch.save_model`` does; a URL goes to `streamer.save_model`.

    Args:
        model: Its tied tensors are written once.
        filename: As for `save_file`.
        metadata: For the header.
        force_contiguous: As in safetensors. A URL, or a model with conjugated tensors, always gets contiguous ones.
        storage_options: As for `save_file`.
        options: As for `save_file`.

    Raises:
        Exception: as `save_file`.
    """
    if not is_url(filename) and not any(map(_is_other_than_its_memory, model.state_dict().values())):
        theirs.save_model(model, str(filename), metadata, force_contiguous)
        return
    ours.save_model(model, file_at(filename), **as_safetensors(metadata, storage_options, options))


def _tied_names(state: Mapping[str, torch.Tensor], preferred: Mapping[str, Any]) -> set[str]:
    """Return the names whose memory another name covers; of several that cover it, keep one in `preferred`."""
    ties: set[str] = set()
    for names, complete in shared_groups({name: each for name, each in state.items() if not each.is_meta}):
        if complete:
            kept = next((name for name in complete if name in preferred), complete[0])
            ties.update(name for name in names if name != kept)
    return ties


def _with_shown_values(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy the tensors that show other values than their memory holds, because safetensors writes the memory."""
    return {
        name: each.resolve_conj().resolve_neg() if _is_other_than_its_memory(each) else each
        for name, each in tensors.items()
    }


def _is_other_than_its_memory(tensor: Any) -> bool:
    """Say whether a tensor is a lazy conjugate or negative of its memory (torch's conjugate and negative bits)."""
    return isinstance(tensor, torch.Tensor) and (tensor.is_conj() or tensor.is_neg())
