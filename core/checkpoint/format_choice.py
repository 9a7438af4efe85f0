"""Decides which format a checkpoint has, by the names of its files and by the first bytes of a file.

If a folder holds safetensors and another format, safetensors is used, as in transformers. Other formats are imported
only if a checkpoint is not safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamer.core.errors import FormatError
from streamer.core.format.shard_names import INDEX_SUFFIX
from streamer.core.other_formats.interface import Format

_HAS_SUFFIX = re.compile(r"\.[A-Za-z][^./]*\Z")

__all__ = ["NO_FORMATS", "FolderChoice", "Formats"]


@dataclass(frozen=True)
class FolderChoice:
    """The files of a folder that are one checkpoint.

    Attributes:
        format: Their format.
        names: Names of the files; empty if `index` names them.
        index: Name of their index, or None.
    """

    format: Format
    names: Sequence[str]
    index: str | None = None


@dataclass(frozen=True)
class Formats:
    """The installed formats.

    Attributes:
        load: Returns the formats, our own first.
    """

    load: Callable[[], Sequence[Format]] = field(default=tuple)

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
        """Return the format of a file by its first bytes; None for an unknown one, and for safetensors.

        Args:
            name: Its name, which decides if several formats begin alike.
            head: Its first `HEAD_BYTES`, or all of a shorter file.
        """
        usual = self.of_name(name)
        if usual is not None and usual.is_format(head):
            return usual
        return next((each for each in self.load() if each.is_format(head)), None)

    def of_folder(self, names: Sequence[str]) -> FolderChoice | None:
        """Choose the checkpoint of a folder without safetensors; None if no format knows its files.

        Raises:
            FormatError: the folder holds several checkpoints.
        """
        for each in self.load():
            indexes = [name for name in names if self.of_index(name) is each and not name.startswith(".")]
            if len(indexes) > 1:
                raise FormatError(f"the folder holds {len(indexes)} indexes: {', '.join(indexes[:5])}")
            if indexes:
                return FolderChoice(each, (), indexes[0])
            own = [name for name in names if name.endswith(each.suffixes)]
            if chosen := each.files_of([name for name in own if not name.startswith(".") or name in each.suffixes]):
                return FolderChoice(each, chosen)
        return None


NO_FORMATS = Formats()
