"""How large files, functions and classes are: what is larger than the house allows, by name.

`tests/repo/test_house.py` compares the answer with the table of exceptions in CONTRIBUTING.md. A function is measured
without its docstring. Of files of tests, which are lists of sentences, only the functions are measured.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"

MOST_LINES_OF_A_FILE = 300  # of C++, whose declarations stand in a file of their own
MOST_LINES_OF_A_MODULE = 350  # of Python: with 300, several modules were halves of one idea
MOST_LINES_OF_A_FUNCTION = 40
MOST_PUBLIC_METHODS = 15

PRODUCT_FOLDERS = ("core", "src", "plugins", "backends", "compat", "integrations")
PYTHON_FOLDERS = (*PRODUCT_FOLDERS, "extras", "tests", "benchmarks", "examples")
_TESTS = re.compile(r"test_\w+\.py|\w+_test\.cc")


def oversized() -> set[str]:
    """Name every file, function and class that is too large: ``path``, or ``path name``."""
    return {
        f"{path.relative_to(ROOT)} {name}".strip()
        for path in _files()
        for name in (_of_python(path) if path.suffix == ".py" else _of_engine(path))
    }


def exceptions() -> set[str]:
    """Read the names in CONTRIBUTING.md's table of exceptions."""
    section = PAGE.read_text().partition("\n## Sizes\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \| .+ \|$", section, re.MULTILINE))


def totals() -> tuple[int, int]:
    """Count the Python modules of the product, and their lines."""
    files = [
        path for folder in PRODUCT_FOLDERS for path in (ROOT / folder).rglob("*.py") if "example" not in path.parts
    ]
    return len(files), sum(path.read_text().count("\n") for path in files)


def allowed_totals() -> tuple[int, int]:
    """Read what CONTRIBUTING.md allows the product: modules, and lines."""
    found = re.search(r"at most \*\*(\d+) modules\*\* and \*\*([\d ]+) lines\*\*", PAGE.read_text())
    assert found is not None
    return int(found[1]), int(found[2].replace(" ", ""))


def _files() -> Iterator[Path]:
    for folder in PYTHON_FOLDERS:
        yield from (ROOT / folder).rglob("*.py")
    yield from (ROOT / "native").rglob("*.[ch]*")


def _is_long(path: Path, text: str) -> bool:
    most_lines = MOST_LINES_OF_A_MODULE if path.suffix == ".py" else MOST_LINES_OF_A_FILE
    return text.count("\n") > most_lines and not _TESTS.fullmatch(path.name)


def _of_python(path: Path) -> Iterator[str]:
    text = path.read_text()
    if _is_long(path, text):
        yield ""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _lines_of(node) > MOST_LINES_OF_A_FUNCTION:
            yield node.name
        if isinstance(node, ast.ClassDef) and not _TESTS.fullmatch(path.name):
            methods = [each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
            if sum(not name.startswith("_") for name in methods) > MOST_PUBLIC_METHODS:
                yield node.name


def _lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    docstring_lines = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) else 0
    return lines - docstring_lines


def _of_engine(path: Path) -> Iterator[str]:
    text = path.read_text()
    is_test = _TESTS.fullmatch(path.name) is not None
    if _is_long(path, text):
        yield ""
    for block in _parsed(text).inside():
        if not is_test and block.is_function and block.lines > MOST_LINES_OF_A_FUNCTION:
            yield block.name
        if not is_test and block.is_class and block.public_methods() > MOST_PUBLIC_METHODS:
            yield block.name


_CONTAINER = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")
_CLASS = re.compile(r"(?:template <.*> )?(?:class|struct)\b.*?\b(\w+)(?: final)?(?: :.*)?", re.DOTALL)
_ACCESS = re.compile(r"\b(public|private|protected)\s*$")
_NO_METHOD = re.compile(r"operator|=\s*(?:delete|default)$|\b(?:using|friend|static_assert)\b|\(\*")


@dataclass
class _Block:
    """What stands between two braces, and the statement before them."""

    statement: str
    first_line: int = 0
    last_line: int = 0
    is_function: bool = False
    statements: list[str] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=list)

    @property
    def lines(self) -> int:
        return self.last_line - self.first_line + 1

    @property
    def is_container(self) -> bool:
        return bool(_CONTAINER.search(self.statement)) and not self.statement.endswith(")")

    @property
    def is_class(self) -> bool:
        return self.is_container and _CLASS.fullmatch(self.statement) is not None

    @property
    def name(self) -> str:
        if match := _CLASS.fullmatch(self.statement) if self.is_container else None:
            return match[1]
        return self.statement.partition("(")[0].split()[-1]

    def inside(self) -> Iterator[_Block]:
        """Return the classes and functions in it, not those inside of functions."""
        for block in self.blocks:
            yield block
            if block.is_container:
                yield from block.inside()

    def public_methods(self) -> int:
        is_public, count = "struct" in self.statement.partition(self.name)[0], 0
        for statement in self.statements:
            if statement in ("public", "private", "protected"):
                is_public = statement == "public"
                continue
            before = statement.partition("(")[0]
            is_method = "(" in statement and "=" not in before and not _NO_METHOD.search(statement)
            is_constructor = before.endswith(self.name) and before.split()[-1] in (self.name, f"~{self.name}")
            count += is_public and is_method and not is_constructor and not _CONTAINER.match(statement)
        return count


def _parsed(text: str) -> _Block:
    """Read C++ as far as its braces tell."""
    text = _without_text(text)
    stack, parentheses, start = [(_Block(""), 0)], 0, 0
    for index, character in enumerate(text):
        if character in "()":
            parentheses += 1 if character == "(" else -1
        elif character == ";" and not parentheses:
            stack[-1][0].statements.append(_joined(text[start:index]))
            start = index + 1
        elif character == ":" and (access := _ACCESS.search(text, start, index)):
            stack[-1][0].statements.append(access[1])
            start = index + 1
        elif character == "{":
            before = text[start:index]
            block = _Block(_joined(before), text.count("\n", 0, index - len(before.lstrip())))
            block.is_function = all(outer.is_container for outer, _ in stack[1:]) and not block.is_container
            stack.append((block, parentheses))
            parentheses, start = 0, index + 1
        elif character == "}":
            block, parentheses = stack.pop()
            block.last_line = text.count("\n", 0, index)
            block.is_function = block.is_function and not block.statement.endswith(("=", "]"))
            stack[-1][0].blocks.append(block)
            stack[-1][0].statements.append(block.statement)
            start = index + 1
    return stack[0][0]


def _joined(statement: str) -> str:
    return " ".join(statement.split())


_TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/                       # comments
    |R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"      # texts
    |(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'       # characters; behind a digit it is 1'000
    |^\#(?:[^\n]*\\\n)*[^\n]*                  # the preprocessor's
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def _without_text(text: str) -> str:
    """Blank comments, literals and lines of the preprocessor, and keep the line ends."""
    return _TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
