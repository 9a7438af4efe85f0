"""Private names of other libraries: which a file uses, and which files may."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import house

FENCES = (
    "backends.private_names.",
    "core.tensors.torch_private_names",
    "integrations.sglang.private_names",
    "integrations.vllm.private_names",
)

# What a named tuple offers to everybody, with underscores only to leave the names of its fields alone.
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
LOOKUPS = {"delattr", "get", "getattr", "hasattr", "pop", "setattr"}  # by a name that is text


def is_fence(module: str) -> bool:
    """Say whether a module has private names of a library, so that no other needs them."""
    return module.startswith(FENCES)


def private_names(path: Path) -> Iterator[tuple[int, str]]:
    """Return the private names of others in a file, each with its line.

    Those that the file defines are its own; so are those of ``self`` that a base class may define, beside it or in a
    file that it imports from.
    """
    tree = ast.parse(path.read_text())
    own = NAMED_TUPLE | _defined_in(path)
    inherited = frozenset[str]().union(*map(_defined_in, _files_of_bases(path, tree)))
    for node in ast.walk(tree):
        ours = own | inherited if _is_of_self(node) else own
        for name in _used(node):
            if name.startswith("_") and not name.startswith("__") and name not in ours:
                yield node.lineno, name


def _files_of_bases(path: Path, tree: ast.AST) -> set[Path]:
    files = house.python_files()
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named = {name if name in files else name.removeprefix("streamer.") for name in imported if "streamer" in name}
    return {*path.parent.glob("*.py"), *(files[name] for name in named if name in files)}


@cache  # a file is asked for by each file that imports from it
def _defined_in(path: Path) -> frozenset[str]:
    return frozenset[str]().union(*map(_defined, ast.walk(ast.parse(path.read_text()))))


def _is_of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _defined(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    if _is_of_self(node) and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return {node.attr}
    return set()


def _used(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LOOKUPS:
        return [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if isinstance(node, ast.ImportFrom):
        imported = [node.module or "", *(alias.name for alias in node.names)]
    elif isinstance(node, ast.Import):
        imported = [alias.name for alias in node.names]
    else:
        return []
    return (
        [] if imported[0].partition(".")[0] == "streamer" else [part for name in imported for part in name.split(".")]
    )
