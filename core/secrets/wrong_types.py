"""Replaces an argument of a wrong type, whose value may hold a secret; only its type is kept."""

from __future__ import annotations

from typing import Any

__all__ = ["WrongType", "type_name"]


class WrongType:
    """An argument that will be refused.

    Args:
        value: The argument; it is not kept.
    """

    def __init__(self, value: Any) -> None:
        self.type_name = type(value).__name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type_name})"


def type_name(value: Any) -> str:
    """Return the name of an argument's type; for a `WrongType`, of the argument that it replaces."""
    return value.type_name if isinstance(value, WrongType) else type(value).__name__
