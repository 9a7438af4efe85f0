"""Rules of the contract: each test of the suite checks one rule, and its failure names the rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import pytest

__all__ = ["rule", "rule_of_formats"]

Test = TypeVar("Test", bound=Callable[..., None])


def rule(test: Test) -> Test:
    """Decorate a test of a storage; see `_ruled`."""
    return _ruled(test, "storage")


def rule_of_formats(test: Test) -> Test:
    """Decorate a test of a format; see `_ruled`."""
    return _ruled(test, "format")


def _ruled(test: Test, what: str) -> Test:
    """Decorate a test, so that its failure begins with the broken rule: the first line of the test's docstring."""
    text = (test.__doc__ or test.__name__).partition("\n")[0]

    @wraps(test)
    def named(*arguments: Any, **fixtures: Any) -> None:
        try:
            test(*arguments, **fixtures)
        except (Exception, pytest.fail.Exception) as error:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise AssertionError(f'The {what} breaks the rule "{text}" {said}') from error

    return named  # type: ignore[return-value]
