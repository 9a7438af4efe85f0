"""Pages of the documentation, and the examples in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Names = dict[str, Any]


def text_of(page: str) -> str:
    """Return the text of a page, which is named below the root."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of code of a page."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), flags=re.DOTALL)


def run_examples(page: str, names: Names, chosen: slice = slice(None)) -> Names:
    """Run the examples of a page one after another, and return the names that they use and make."""
    for example in blocks(page)[chosen]:
        exec(compile(example, page, "exec"), names)
    return names
