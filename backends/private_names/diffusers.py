"""The function of diffusers that reads LoRA weights, and takes their strength (alpha) only from the header of a file.

A mapping of tensors has no header, so an adapter that `streamer.load` has read would work at another strength, without
an error. Such a mapping is a `LoraTensors`, which keeps the header's metadata, and diffusers' function is replaced by
one that hands them on. Nothing is replaced before such a mapping exists and diffusers is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from streamer.core.format.header_entries import LORA_METADATA
from streamer.core.log import OwnLogger
from streamer.core.options.switches_and_sizes import is_on

_TENSORS = "pretrained_model_name_or_path_or_dict"
_SWITCH = "STREAMER_DISABLE_PATCHES"

_log = OwnLogger()


class LoraTensors(dict[str, Any]):
    """Tensors by name, with the metadata of their file."""

    metadata: Mapping[str, str]  # the metadata of the header

    def copy(self) -> LoraTensors:
        """Return a copy with the same metadata; diffusers calls it before it reads a mapping."""
        _replace_reader()
        return _made(self, self.metadata)


def with_metadata(tensors: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the tensors of a LoRA adapter, with its metadata."""
    _replace_reader()
    return _made(tensors, metadata)


def _made(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> LoraTensors:
    made = LoraTensors(tensors)
    made.metadata = metadata
    return made


def _replace_reader() -> None:
    """Replace the function in all modules of diffusers that have imported it."""
    for name in [name for name in list(sys.modules) if name.startswith("diffusers.loaders.")]:
        names = vars(sys.modules[name])
        theirs = names.get("_fetch_state_dict")
        if theirs is None or isinstance(theirs, _Reader):
            continue
        if is_on(_SWITCH):
            what = f"the strength (alpha) of these LoRA weights does not reach diffusers, as {_SWITCH}=1 says"
            _log.warning("%s: give diffusers the file itself, from a disk", what)
            return
        names["_fetch_state_dict"] = _Reader(theirs)


class _Reader:
    """Calls diffusers' function, and adds the metadata that it found no header for."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def __call__(self, *given: Any, **named: Any) -> Any:
        result = self.theirs(*given, **named)
        tensors = named.get(_TENSORS, given[0] if given else None)
        if not isinstance(tensors, LoraTensors) or not isinstance(result, tuple) or len(result) < 2:
            return result
        state, metadata, *others = result
        metadata = json.loads(tensors.metadata[LORA_METADATA]) if metadata is None else metadata
        return state, metadata, *(dict(tensors.metadata) if each is None else each for each in others)
