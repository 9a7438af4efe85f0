"""The lists of small changes fit the code as it is: else `python -m mutation` stops at the first one that does not."""

from __future__ import annotations

from mutation.__main__ import ROOT, changes


def test_each_text_to_change_stands_in_its_file_once() -> None:
    assert [each for each in changes() if (ROOT / each.file).read_text().count(each.old) != 1] == []
