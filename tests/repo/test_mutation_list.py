"""The lists of small changes fit the code as it is: else `python -m mutation` stops at the first one that does not."""

from __future__ import annotations

import pytest
from mutation.__main__ import ROOT, Change, changes


@pytest.mark.parametrize("change", list(changes()), ids=lambda change: f"{change.file}: {change.new[:30]!r}")
def test_the_text_to_change_stands_in_its_file_once(change: Change) -> None:
    assert (ROOT / change.file).read_text().count(change.old) == 1
