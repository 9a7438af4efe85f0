"""Versions of a library that do not exist yet: copies of the installed one, in which some files say something else."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["future"]

Change = tuple[str, str]  # a pattern, and what takes its place


def future(library: str, folder: Path, changes: Mapping[str, Change | list[Change] | str], name: str = "") -> Path:
    """Make a copy of a library.

    Args:
        library: The package that is copied.
        folder: Where the copy is to lie; it goes to the import path.
        changes: By file of the package: patterns that must match, and what replaces them; or the text of a new file.
        name: Of the copy, which may be inside of another package; the library's own without it.
    """
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    original, copy = Path(spec.origin).parent, folder / (name or library).replace(".", "/")
    copy.mkdir(parents=True)
    for outer in copy.relative_to(folder).parents:
        if outer.parts:
            (folder / outer / "__init__.py").touch()
    _link(original, copy, {tuple(Path(path).parts) for path in changes})
    for path, change in changes.items():
        if isinstance(change, str):
            (copy / path).write_text(change)
            continue
        text = (original / path).read_text()
        for pattern, replacement in [change] if isinstance(change, tuple) else change:
            text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
            assert count, f"{path} of {library} has no {pattern}"
        (copy / path).write_text(text)
    return folder


def _link(original: Path, copy: Path, changed: set[tuple[str, ...]]) -> None:
    """Link all files but the changed ones."""
    for path in original.iterdir():
        inside = {parts[1:] for parts in changed if parts[0] == path.name}
        if path.name == "__pycache__" or () in inside:
            continue
        if inside:
            (copy / path.name).mkdir()
            _link(path, copy / path.name, inside)
        else:
            (copy / path.name).symlink_to(path)
