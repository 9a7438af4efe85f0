"""A table in one test: the test runs once for each row, and pytest reports each row that fails with its values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import pytest

Test = Callable[..., None]


def each_row(names: str | Iterable[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a quick test once for each row, like `pytest.mark.parametrize`, but as one case with a subtest for each row.

    Each row has an empty folder as ``tmp_path`` and an empty ``caplog``; what it patches is undone after it.
    """
    columns = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
    table = [dict(zip(columns, row if len(columns) > 1 else (row,), strict=True)) for row in rows]

    def decorate(test: Test) -> Test:
        body, inner = getattr(test, "body_and_rows", (test, [{}]))
        product = [{**row, **other} for row in table for other in inner]
        assert product, f"the table of {test.__name__} is empty"
        fixtures = [each for name, each in inspect.signature(test).parameters.items() if name not in columns]

        @functools.wraps(body)
        def run(subtests: pytest.Subtests, **values: Any) -> None:
            for number, row in enumerate(product):
                with subtests.test(**row), ExitStack() as stack:
                    body(**row, **{name: _for_row(name, value, number, stack) for name, value in values.items()})

        if inner == [{}]:
            fixtures.insert(0, inspect.Parameter("subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD))
        run.__dict__ |= {"body_and_rows": (body, product), "__signature__": inspect.Signature(fixtures)}
        return run

    return decorate


def _for_row(name: str, fixture: Any, number: int, stack: ExitStack) -> Any:
    """Return the fixture as a row may use it: without what other rows have left in it."""
    if name == "tmp_path":
        folder = fixture / str(number)
        folder.mkdir()
        return folder
    if name == "monkeypatch":
        return stack.enter_context(fixture.context())
    if name == "caplog":
        fixture.clear()
    return fixture
