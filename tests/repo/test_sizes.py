"""Files, functions and classes stay as small as the house allows, but for those that CONTRIBUTING.md names."""

from __future__ import annotations

import sizes


def test_nothing_is_larger_than_allowed_but_what_the_page_names() -> None:
    """Both ways: an exception that nobody needs any more goes from the page."""
    assert sizes.oversized() == sizes.exceptions()
