"""Selects the tensors that a caller requests: everything, exact names, patterns, or a predicate.

Guarantees: an exact name or a pattern that matches nothing is an error, never a silently smaller result. A name that
exists is taken literally, even with the characters of a pattern.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from typing import TypeAlias

from streamer.core.errors import UnknownTensorError, UsageError
from streamer.core.quoting import quoted

NamesOption: TypeAlias = str | Iterable[str] | Callable[[str], bool] | None

_PATTERN_CHARACTERS = r"[*?\[]"
MAX_COMPARED_NAMES = 500  # difflib takes about 0.1 ms for each, and an error must not take minutes
MAX_COMPARED_CHARACTERS = 300  # difflib is quadratic in the length; longer names get no hint


def select(names: NamesOption, available: Sequence[str], uri: str | None = None) -> set[str] | None:
    """Choose tensors by name.

    Returns:
        The chosen names, or None for everything.

    Example:
        >>> sorted(select(["h.*.w", "b"], ["h.0.w", "h.1.w", "b", "c"]))
        ['b', 'h.0.w', 'h.1.w']
    """
    names = checked_names(names)
    if names is None:
        return None
    if callable(names):
        return {name for name in available if names(name)}
    existing = set(available)
    chosen: set[str] = set()
    for wanted in [names] if isinstance(names, str) else names:
        matched = {wanted} if wanted in existing else _matching(wanted, available)
        if not matched:
            raise unknown_tensor(wanted, available, uri)
        chosen |= matched
    return chosen


def checked_names(names: NamesOption) -> NamesOption:
    """Check the argument `names`; return an iterable as a list."""
    if names is None or isinstance(names, str) or callable(names):
        return names
    if isinstance(names, (bytes, bytearray)) or not isinstance(names, Iterable):
        raise UsageError(f"names must be None, strings or a callable, not {type(names).__name__}")
    listed = list(names)
    for name in listed:
        if not isinstance(name, str):
            raise UsageError(f"names must hold strings, not {type(name).__name__}")
    return listed


def _matching(pattern: str, available: Sequence[str]) -> set[str]:
    if not re.search(_PATTERN_CHARACTERS, pattern):
        return set()
    matches = re.compile(fnmatch.translate(pattern)).match
    return {name for name in available if matches(name)}


def unknown_tensor(wanted: str, available: Sequence[str], uri: str | None = None) -> UnknownTensorError:
    """Return the error for a name or pattern that matches nothing."""
    what = "no tensor matches pattern" if re.search(_PATTERN_CHARACTERS, wanted) else "there is no tensor"
    return UnknownTensorError(f"{what} {quoted(wanted)}", uri=uri, hint=hint_at_names(wanted, available))


def hint_at_names(wanted: str, available: Sequence[str]) -> str:
    """Return the hint for a name or pattern that matches nothing: similar names."""
    module = wanted.rstrip(".")
    below = sum(name.startswith(f"{module}.") for name in available) if module else 0
    if below:
        count = f"its {below} tensors" if below > 1 else "its tensor"
        return f"It is a module: the pattern {quoted(f'{module}.*')} matches {count}"
    near = _near_names(wanted, available)
    if near:
        return f"Near: {', '.join(map(quoted, near))}"
    first = f", the first is {quoted(available[0])}" if available else ""
    return f"The checkpoint holds {len(available)} tensor{'s' * (len(available) != 1)}{first}"


def _near_names(wanted: str, available: Sequence[str]) -> list[str]:
    if len(wanted) > MAX_COMPARED_CHARACTERS:
        return []
    parts = set(wanted.split("."))
    comparable = (name for name in available if len(name) <= MAX_COMPARED_CHARACTERS)
    likely = nlargest(MAX_COMPARED_NAMES, comparable, key=lambda name: len(parts.intersection(name.split("."))))
    return difflib.get_close_matches(wanted, likely, n=3)
