"""Names in a checkpoint: the shards of a series (``model-00001-of-00002.safetensors`` is one of two), and paths in it.

Without an index only these names distinguish a complete checkpoint from one that an upload, a download or a listing
left incomplete.

A path in a file of a checkpoint must stay inside the checkpoint's own folder, in every storage. Refuses absolute paths,
``..``, URLs, and all names that some storage might read as one of these.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

SHARD_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".index.json"
MANIFEST_SUFFIX = ".manifest.json"
USUAL_INDEX = "model.safetensors.index.json"
USUAL_SHARD = "model.safetensors"
USUAL_MANIFEST = "model.safetensors.manifest.json"

# Shards of one checkpoint, in an index or a folder. A model with 700 GB has some two hundred. The beginnings of all
# shards, with their headers, are in memory at the same time (256 KiB of each).
MOST_SHARDS = 10_000
SHOWN_NAMES = 3

_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})-of-([0-9]{1,9})(\.[A-Za-z]{1,16})")
_OF_TRAINING = re.compile(
    r"(?:optimizer|scheduler|scaler|training_args|rng_state|trainer_state)[^/]*\.(?:bin|pt|pth|ckpt)"
)
_OF_RANK = re.compile(r"shard-[0-9]{5}-model-")  # DCP writes these; each rank has its own shards


# Mistral's own layout of a model, beside the usual layout: the same weights under other names.
_CONSOLIDATED = re.compile(r"consolidated(?:[.-][0-9]{1,9}(?:-of-[0-9]{1,9})?)?\.safetensors")
_CONSOLIDATED_OF_RANK = re.compile(r"consolidated\.[0-9]{1,9}\.pth")  # Meta's: a part of each tensor for each rank
_OF_SAVES = re.compile(r"model(?:-[0-9a-f]{8})?(?:-[0-9]{5,9}-of-[0-9]{5,9})?\.safetensors")
_USUAL = re.compile(r"model(?:-[0-9]{1,9}-of-[0-9]{1,9})?\.safetensors")

_OF_CHECKPOINTS = (SHARD_SUFFIX, SHARD_SUFFIX + INDEX_SUFFIX)


class IncompleteSeries(NamedTuple):
    """A series of numbered shards with missing shards."""

    pattern: str  # the pattern of their names
    found: int  # number of shards that exist
    total: int  # number of shards in the series
    missing: tuple[str, ...]  # the names of the first missing shards

    def __str__(self) -> str:
        more = self.total - self.found - len(self.missing)
        names = ", ".join(self.missing) + (f" and {more} more" if more else "")
        return f"{self.found} of the {self.total} shards {self.pattern} (missing: {names})"


def is_usual_shard(name: str) -> bool:
    """Say whether `streamer.save` gives shards such names.

    Example:
        >>> is_usual_shard("model-0a1b2c3d-00001-of-00002.safetensors"), is_usual_shard("lora.safetensors")
        (True, False)
    """
    return _OF_SAVES.fullmatch(name) is not None


def is_of_checkpoint(name: str) -> bool:
    """Say whether a file of this name is a shard or an index.

    Example:
        >>> [is_of_checkpoint(name) for name in ("model.safetensors", "config.json")]
        [True, False]
    """
    return name.endswith(_OF_CHECKPOINTS)


def hidden_beside(names: Collection[str]) -> list[str]:
    """Return names of files of a checkpoint that a web server may hide, because a dot begins them: torch's metadata.

    Example:
        >>> hidden_beside(["a.distcp"]), hidden_beside([".metadata", "a.distcp"]), hidden_beside(["config.json"])
        (['.metadata'], [], [])
    """
    return [".metadata"] if ".metadata" not in names and any(name.endswith(".distcp") for name in names) else []


def series_of(name: str) -> tuple[str, str, str] | None:
    """Identify the series of a numbered shard by the text before its number, the total and the suffix; None for others.

    Example:
        >>> series_of("model-00001-of-00003.safetensors")
        ('model-', '00003', '.safetensors')
    """
    match = _NUMBERED.fullmatch(name)
    return None if match is None or _OF_RANK.match(name) else (match[1], match[3], match[4])


def second_copies(names: Iterable[str]) -> list[str]:
    """Return the files that hold a second copy of a model: Mistral's ``consolidated.safetensors`` beside usual shards.

    Example:
        >>> second_copies(["consolidated.safetensors", "model-00001-of-00002.safetensors"])
        ['consolidated.safetensors']
        >>> second_copies(["consolidated.safetensors"])
        []
    """
    listed = list(names)
    has_usual = any(_USUAL.fullmatch(name) for name in listed)
    return [name for name in listed if has_usual and _CONSOLIDATED.fullmatch(name)]


def is_of_training(name: str) -> bool:
    """Say whether a file of PyTorch has a name under which Trainers keep the state of a training.

    Example:
        >>> is_of_training("optimizer.pt"), is_of_training("pytorch_model.bin")
        (True, False)
    """
    return _OF_TRAINING.fullmatch(name) is not None


def is_consolidated(name: str) -> bool:
    """Say whether a file has a name of Mistral's and Meta's own layouts.

    Example:
        >>> is_consolidated("consolidated.00.pth"), is_consolidated("consolidated.safetensors")
        (True, True)
    """
    return _CONSOLIDATED.fullmatch(name) is not None or _CONSOLIDATED_OF_RANK.fullmatch(name) is not None


def incomplete_series(names: Iterable[str]) -> list[IncompleteSeries]:
    """Return the series of numbered shards that are incomplete.

    Example:
        >>> print(*incomplete_series(["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"]))
        2 of the 3 shards model-*-of-00003.safetensors (missing: model-00002-of-00003.safetensors)
    """
    series: dict[tuple[str, str, str], dict[int, int]] = defaultdict(dict)
    for name in names:
        if key := series_of(name):
            digits = name[len(key[0]) :].partition("-of-")[0]
            series[key][int(digits)] = len(digits)
    checked = (_incomplete(*key, widths) for key, widths in sorted(series.items()))
    return [each for each in checked if each is not None]


def _incomplete(prefix: str, total: str, suffix: str, widths: dict[int, int]) -> IncompleteSeries | None:
    """Compare the numbers of existing shards, which map to their counts of digits, with the expected numbers."""
    first = 0 if 0 in widths else 1
    expected = range(first, first + int(total))
    count = sum(number in expected for number in widths)
    if count == len(expected):
        return None
    width = max(widths.values())
    # A total may have nine digits, so only as many numbers are checked as are shown.
    absent = islice((number for number in expected if number not in widths), SHOWN_NAMES)
    names = tuple(f"{prefix}{number:0{width}}-of-{total}{suffix}" for number in absent)
    return IncompleteSeries(f"{prefix}*-of-{total}{suffix}", count, int(total), names)


def why_not_inside(name: str) -> str | None:
    """Say why a name is not a relative path inside a folder; None if it is one.

    Example:
        >>> why_not_inside("a/b"), why_not_inside("../b")
        (None, 'has an empty segment, `.` or `..`')
    """
    if not name:
        return "is empty"
    if not name.isprintable():
        return "holds a control character"
    if "\\" in name:
        return "holds a backslash, which some systems read as a slash"
    if ":" in name:
        return "holds a colon, as URLs, chained URLs and drives do"
    if re.search(r"%[0-9A-Fa-f]{2}", name):
        return "holds a percent escape, which some storages decode"
    if name.startswith("/"):
        return "is an absolute path"
    if any(segment in ("", ".", "..") for segment in name.split("/")):
        return "has an empty segment, `.` or `..`"
    return None
