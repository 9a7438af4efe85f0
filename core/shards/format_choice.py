"""Decides which format a checkpoint has, by the names of its files and by the first bytes of a file.

If a folder holds safetensors and another format, safetensors is used, as in transformers. If files of several other
formats could be the model, none is chosen, and the error names them. Other formats are imported only if a checkpoint is
not safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from streamer.core.errors import FormatError
from streamer.core.format.shard_names import INDEX_SUFFIX, is_of_training
from streamer.core.quoting import names_text

if TYPE_CHECKING:
    from streamer.core.other_formats.interface import Format

OUR_MODULES = "streamer.core.other_formats."
_HAS_SUFFIX = re.compile(r"\.[A-Za-z][^./]*\Z")
# Files of PyTorch that programs write beside a model of another format: Lightning's meta.pt and Megatron's common.pt
# beside DCP, states of accelerate.
_BESIDE_A_MODEL = re.compile(r"(?:meta|common)\.pt|(?:sampler|dl_state_dict|random_states)[^/]*\.(?:bin|pt|pth)")


def is_beside_a_model(name: str) -> bool:
    """Say whether programs write a file of this name beside a model: it holds the state of a training."""
    return is_of_training(name) or _BESIDE_A_MODEL.fullmatch(name) is not None


class FolderChoice(NamedTuple):
    """The files of a folder that are one checkpoint."""

    format: Format
    names: Sequence[str]  # names of the files; empty if `index` names them
    index_name: str | None = None  # name of their index, or None


class Formats(NamedTuple):
    """The installed formats."""

    load: Callable[[], Sequence[Format]] = tuple  # returns the formats, our own first

    def of_name(self, name: str) -> Format | None:
        """Return the format that files of this name usually have; None for another name, and for safetensors."""
        if not _HAS_SUFFIX.search(name):  # a folder; so formats need not be imported
            return None
        return next((each for each in self.load() if name.endswith(each.suffixes)), None)

    def of_index(self, name: str) -> Format | None:
        """Return the format of the shards that an index of this name lists; None for another name."""
        stem = name.removesuffix(INDEX_SUFFIX)
        return self.of_name(stem) if stem != name else None

    def of_file(self, name: str, head: bytes) -> Format | None:
        """Return the format of a file by its first bytes; None for an unknown one, and for safetensors."""
        usual = self.of_name(name)
        # A file of items of DCP begins as a file of torch.save() does, which would be read as one tensor.
        is_part = usual is not None and name.endswith(getattr(usual, "part_suffixes", ()))
        if usual is not None and (is_part or usual.is_format(head)):
            return usual
        return next((each for each in self.load() if each.is_format(head)), None)

    def of_folder(self, names: Sequence[str]) -> FolderChoice | None:
        """Choose the checkpoint of a folder without safetensors; None if no format knows its files.

        A format of another distribution is asked only if none of ours takes a file, so that its installation changes
        no load.
        """
        formats = self.load()
        ours = [each for each in formats if type(each).__module__.startswith(OUR_MODULES)]
        return _only(ours, names) or _only([each for each in formats if each not in ours], names)

    def of_metadata(self, name: str, names: Sequence[str]) -> FolderChoice | None:
        """Choose the checkpoint of a format whose metadata file has this name (``.metadata``); else None."""
        format_ = self.of_name(name)
        return _choice(format_, names) if format_ is not None and name in format_.suffixes else None


def _only(formats: Sequence[Format], names: Sequence[str]) -> FolderChoice | None:
    """Return the only checkpoint of some formats in a folder; None if there is none."""
    found: dict[str, FolderChoice | FormatError] = {}
    files: dict[str, Sequence[str]] = {}
    for each in formats:
        try:
            choice = _choice(each, names)
        except FormatError as error:
            found[each.name], files[each.name] = error, _files_of(each, names)
            continue
        if choice is not None:
            found[each.name], files[each.name] = choice, choice.names or [choice.index_name or ""]
    if len(found) > 1:
        models = [each for each in found if not all(map(_BESIDE_A_MODEL.fullmatch, files[each]))]
        found = {each: found[each] for each in models or found}
    if len(found) > 1:
        what = "; ".join(f"{names_text(files[each], 2)} ({each})" for each in found)
        hint = "Name the file to load; for DCP, its .metadata"
        raise FormatError(f"the folder holds files of {len(found)} formats: {what}", hint=hint)
    for only in found.values():
        if isinstance(only, FormatError):
            raise only
        return only
    return None


def _choice(format_: Format, names: Sequence[str]) -> FolderChoice | None:
    """Return the checkpoint of one format in a folder; None if the folder has no file of it."""
    stems = {name: name.removesuffix(INDEX_SUFFIX) for name in names if not name.startswith(".")}
    indexes = [name for name, stem in stems.items() if stem != name and stem.endswith(format_.suffixes)]
    if len(indexes) > 1:
        raise FormatError(f"the folder holds {len(indexes)} indexes: {names_text(indexes)}")
    if indexes:
        return FolderChoice(format_, (), indexes[0])
    chosen = format_.files_of(_files_of(format_, names))
    return FolderChoice(format_, chosen) if chosen else None


def _files_of(format_: Format, names: Sequence[str]) -> list[str]:
    own = [name for name in names if name.endswith(format_.suffixes)]
    return [name for name in own if not name.startswith(".") or name in format_.suffixes]


NO_FORMATS = Formats()
