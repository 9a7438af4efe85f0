"""Names of tensors in nested containers: the path to each, as ``optimizer.state.0.exp_avg``. Pure.

Guarantees: each container is entered at most once on a path, and the walk ends: a small pickle may describe a tree of
more leaves than atoms exist. No value is dropped: a value that is no tensor becomes metadata, as JSON; bytes in base64.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from streamer.core.errors import FormatError
from streamer.core.quoting import quoted

MOST_DEPTH = 64  # of containers in containers; the state of an optimizer has four
MOST_VISITS = 1_000_000  # of values in containers; a model with an optimizer has some 100 000
MOST_BITS = 1024  # of a number: Python takes long to write a million digits
MOST_NAME = 4096  # characters


def flattened(root: Any, is_tensor: Callable[[Any], bool]) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """Find the tensors in a value, and describe the rest of it.

    Returns:
        The tensors by name, in their order, and the other values as JSON by name.

    Example:
        >>> flattened({"epoch": 3, "model": {"w": b"", "b": b""}}, lambda value: isinstance(value, bytes))
        ([('model.w', b''), ('model.b', b'')], {'epoch': '3'})
    """
    tensors: list[tuple[str, Any]] = []
    others: dict[str, str] = {}
    visits = 0
    stack: list[tuple[str, Any, int]] = [("", root, 0)]
    while stack:
        name, value, depth = stack.pop()
        visits += 1
        if visits + len(stack) > MOST_VISITS or depth > MOST_DEPTH or len(name) > MOST_NAME:
            raise FormatError("its containers hold too much, are nested too deep, or hold themselves")
        if is_tensor(value):
            tensors.append((name, value))
        elif isinstance(value, (dict, list, tuple)) and (visits == 1 or value):
            inner = [(f"{name}.{key}" if depth else key, each, depth + 1) for key, each in _items(value)]
            stack.extend(reversed(inner))
        else:
            text = _text(value)
            if others.setdefault(name, text) != text:
                raise _one_path("values", name)
    twice = [name for name, count in Counter(name for name, _ in tensors).items() if count > 1]
    if twice:
        raise _one_path("tensors", twice[0])
    return tensors, others


def _one_path(what: str, name: str) -> FormatError:
    return FormatError(
        f"two {what} have the path {quoted(name)}, by which they would be loaded",
        hint="Rename one of their keys: a key with a dot, or 1 beside '1', gives the path of another",
    )


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield from ((str(number), each) for number, each in enumerate(value))
        return
    for key, each in value.items():
        if type(key) not in (str, int, float, bool, type(None), tuple):
            raise FormatError(f"a container has a key of type {type(key).__name__}, not a name or a number")
        yield str(key), each


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, complex):
        return json.dumps([value.real, value.imag])
    is_plain = value is None or type(value) in (int, float, bool) or isinstance(value, (dict, list, tuple))
    if is_plain and not (type(value) is int and value.bit_length() > MOST_BITS):  # a container here is empty
        return json.dumps(value)
    raise FormatError(f"it holds a {type(value).__name__}, which is neither a tensor nor a plain value")
