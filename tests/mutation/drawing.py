"""Every small change that one file can have: an inverted condition, an off-by-one, a dropped check. Pure.

It leaves out what no test should depend on: texts, annotations, constants of a module (they are tuning, with a reason
beside each), and what only type checkers read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Drawn", "native_changes", "python_changes"]


@dataclass(frozen=True)
class Drawn:
    """One change of a text.

    Attributes:
        line: Counted from one.
        begin: Where the old text begins, in characters.
        end: Where it ends.
        new: What stands there instead.
    """

    line: int
    begin: int
    end: int
    new: str

    def made_in(self, text: str) -> str:
        """Return the changed text."""
        return text[: self.begin] + self.new + text[self.end :]


OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def python_changes(text: str) -> list[Drawn]:
    """List the changes of a Python file, in its order."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    encoded = text.encode()

    def place(line: int, column: int) -> int:
        return len(encoded[: starts[line - 1] + column].decode())

    drawn = []
    for node, new in _python_nodes(ast.parse(text)):
        begin, end = place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0)
        drawn.append(Drawn(node.lineno, begin, end, new))
    return sorted(drawn, key=lambda each: (each.begin, each.end, each.new))


def _python_nodes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        continue  # walked by itself
                    for new in _python_news(node):
                        assert isinstance(node, ast.expr | ast.stmt)
                        yield node, new


def _python_news(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        opposite = OPPOSITES[type(node.ops[0])]()
        yield f"({ast.unparse(ast.Compare(node.left, [opposite], node.comparators))})"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield repr(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield repr(node.value + 1)
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "pass"


OPERATORS = {
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " == ": " != ",
    " != ": " == ",
    " && ": " || ",
    " || ": " && ",
    "(!": "(",
    " + 1": "",
    " - 1": "",
}
_OPERATOR = re.compile("|".join(re.escape(text) for text in sorted(OPERATORS, key=len, reverse=True)))
_CALL = re.compile(r"^ +[a-z_.>()-]+\([^;{}]*\);$")  # a statement that is a call and nothing else


def native_changes(text: str) -> list[Drawn]:
    """List the changes of a C++ file, line by line; where one does not compile, the compiler has noticed it."""
    drawn = []
    at = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        code = line.partition("//")[0]
        if not code.lstrip().startswith(("#", "template", "static_assert", "constexpr")) and '"' not in code:
            for match in _OPERATOR.finditer(code):
                drawn.append(Drawn(number, at + match.start(), at + match.end(), OPERATORS[match.group()]))
            if _CALL.match(code.rstrip("\n")):
                drawn.append(Drawn(number, at, at + len(code.rstrip("\n")), "  ;"))
        at += len(line)
    return drawn
