"""The rooms of the house: which folders may import which, and which ones do, as read from the code.

    cd tests && ../.venv/bin/python -m house            # draw them
    cd tests && ../.venv/bin/python -m house --write    # into docs/architecture.md

`tests/repo/test_house.py` fails if a room imports from a room above it, or if the page does not show the imports of
the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/architecture.md"

# From the top: a room imports from lines below its own, never from its own line or from above.
PYTHON_ROOMS = [
    "face",
    "integrations.sglang integrations.vllm",
    "integrations.serving",
    "integrations.dcp integrations.diffusers integrations.fsspec integrations.ray",
    "integrations.transformers",
    "integrations",
    "compat",
    "compat.runai compat.safetensors",
    "streamer._commands",
    "streamer._doctor",
    "streamer._push",
    "streamer._pull streamer._save",
    "streamer",
    "plugins.contract",
    "plugins",
    "backends.hf",
    "backends.http",
    "backends.azure backends.gcs backends.nfs backends.s3",
    "backends.fsspec",
    "backends.posix",
    "backends.client",
    "backends",
    "backends.private_names",
    "core.peers",
    "core.cache core.group core.node",
    "core.request",
    "core.verification",
    "core.checkpoint",
    "core.shards",
    "core.other_formats",
    "core.engine",
    "core.tensors",
    "core.encryption",
    "core.discovery",
    "core.store",
    "core.options",
    "core.trace",
    "core.folders",
    "core.format",
    "core.secrets",
    "core.outages",
    "core",
]
ENGINE_ROOMS = [
    "python runai",
    "session",
    "cache gpu http nfs",
    "schedule",
    "io",
    "cuda net plan",
    "base format integrity",
]

FACE = ("streamer", "streamer.__main__", "streamer._cli")  # what users name: the one room that is no folder
LAYERS = ("core", "backends", "plugins", "compat", "integrations")  # folders beside the face, each of its own name
FOLDERS = {"streamer": "src/streamer", **{layer: layer for layer in LAYERS}}


def ranks(rooms: list[str]) -> dict[str, int]:
    """Number the rooms, those on the lowest line with 0."""
    return {room: rank for rank, line in enumerate(reversed(rooms)) for room in line.split()}


def python_files() -> dict[str, Path]:
    """Find the modules, by the name they are imported under, less ``streamer.``."""
    found = {}
    for layer, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            if "example" in inside:  # another distribution
                continue
            parts = inside[:-1] if inside[-1] == "__init__" else inside
            found[".".join([layer, *parts])] = path
    return found


def room_of(module: str) -> str:
    """Say in which room a module of `python_files`, or what is imported under such a name, lies."""
    layer, *inside = module.split(".")
    named = f"{layer}.{inside[0]}" if inside else layer
    if named in FACE:
        return "face"
    return named if named in ranks(PYTHON_ROOMS) else layer


def python_imports(path: Path) -> Iterator[str]:
    """Return what a file imports of this package, as `python_files` names it; the engine is no room of Python's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "streamer":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "streamer"]
        else:
            continue
        for name in names:
            inner = name.removeprefix("streamer.")
            if inner.partition(".")[0] != "_native":
                yield inner if inner.partition(".")[0] in FOLDERS else f"streamer.{inner}".removesuffix(".streamer")


def code_of(path: Path) -> str:
    """Return a Python file without its comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def names_used_in(statement: ast.AST) -> set[str]:
    """Name what a statement reads, less what it only checks, or assigns to the same name again."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Name) and called.id.startswith("check_"):
            return set()
    inner = [name for child in ast.iter_child_nodes(statement) for name in names_used_in(child)]
    used = {statement.id} if isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Load) else set(inner)
    if isinstance(statement, ast.Assign):
        used -= {name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return used


def engine_files() -> dict[str, list[Path]]:
    """Find the sources of the engine, by room."""
    return {room: sorted((ROOT / "native" / room).glob("*.[ch]*")) for room in ranks(ENGINE_ROOMS)}


def engine_includes(path: Path) -> list[str]:
    """Name the rooms that a source includes from."""
    return re.findall(r'#include "([^"/]+)/', path.read_text())


def drawn(rooms: list[str], edges: dict[str, set[str]]) -> str:
    """Draw rooms line by line, each with those it imports."""
    width = max(map(len, ranks(rooms)))
    order = list(ranks(rooms))[::-1]
    lines = []
    for line in rooms:
        for room in line.split():
            imported = [other for other in order if other in edges[room] - {room}]
            lines.append(f"{room:{width}}  → {' '.join(imported)}" if imported else room)
    return "\n".join(lines) + "\n"


def graphs() -> dict[str, str]:
    """Draw both houses, by the language that stands before them on the page."""
    python: dict[str, set[str]] = {room: set() for room in ranks(PYTHON_ROOMS)}
    for module, path in python_files().items():
        python[room_of(module)] |= {room_of(name) for name in python_imports(path)}
    engine = {
        room: {
            included
            for path in paths
            if not path.stem.endswith(("_test", "_fixture"))
            for included in engine_includes(path)
        }
        for room, paths in engine_files().items()
    }
    return {"Python": drawn(PYTHON_ROOMS, python), "C++": drawn(ENGINE_ROOMS, engine)}


def page_with(text: str, drawings: dict[str, str]) -> str:
    """Put the drawings into the page."""
    for language, drawing in drawings.items():
        block = re.compile(rf"(<!-- rooms of {re.escape(language)} -->\n```\n).*?(```)", re.DOTALL)
        text, count = block.subn(lambda match, drawing=drawing: match[1] + drawing + match[2], text)
        assert count == 1, f"no place for the rooms of {language}"
    return text


@click.command(help=__doc__)
@click.option("--write", is_flag=True, help="Put them into docs/architecture.md.")
def main(write: bool) -> None:
    if write:
        PAGE.write_text(page_with(PAGE.read_text(), graphs()))
    else:
        print("\n".join(graphs().values()), end="")


if __name__ == "__main__":
    main()
