"""Files, functions and classes stay as small as the house allows, but for those that CONTRIBUTING.md names."""

from __future__ import annotations

import sizes


def test_only_the_exceptions_of_the_page_are_larger_than_allowed() -> None:
    """Both ways: an exception that nobody needs any more goes from the page."""
    assert sizes.oversized() == sizes.exceptions()


def test_the_product_grows_only_where_the_page_says_so() -> None:
    """A commit that needs more changes the page and says why; one that removes much lowers it."""
    (modules, lines), (most_modules, most_lines) = sizes.totals(), sizes.allowed_totals()
    assert most_modules - 10 <= modules <= most_modules
    assert most_lines - 600 <= lines <= most_lines
