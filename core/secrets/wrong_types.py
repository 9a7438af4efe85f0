"""Stands for an argument of a wrong type, whose value may hold a secret: it tells its type alone."""

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
    """Name the type of an argument, or of the one that a `WrongType` stands for."""
    return value.type_name if isinstance(value, WrongType) else type(value).__name__
