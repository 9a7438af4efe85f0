"""No version number decides what is served: the product asks whether a name is there, and what it does.

A release of another library comes out the day after ours. If a number in a source line decides, every user meets it
first.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import house
from each_row import each_row

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

MODULES = house.python_files()

# What gives the version of a library or of Python; an object of a storage has a `version`, too, which is another thing.
NAMES = {"__version__", "version_info", "hexversion", "version_of", "parse_version", "Version"}
# Methods that compare texts.
COMPARING = {"startswith", "endswith", "match", "fullmatch"}

# file, and why a comparison with a version may stay there: none of them decides whether a URL is served.
ALLOWED = {"backends/fsspec/caches.py": "versions of a file, not of a library"}

# Requirements that end somewhere, of tools alone: a newer one has other headers or another style.
CAPPED = {
    "clang-format": "another version formats otherwise",
    "nvidia-cuda-runtime-cu12": "its headers are compared with ours",
    "nvidia-cufile-cu12": "the version whose driver is played by a fake",
    "runai-model-streamer": "a figure of a benchmark belongs to a version",
    "runai-model-streamer-s3": "as above",
}


def compared_versions(path: Path) -> Iterator[str]:
    """Return the comparisons of a file that have a version on either side."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_comparing = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in COMPARING
        if (isinstance(node, ast.Compare) or is_comparing) and any(map(_is_version, ast.walk(node))):
            yield ast.unparse(node)


def _is_version(node: ast.AST) -> bool:
    name = getattr(node, "attr", getattr(node, "id", ""))
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "version":
        return bool(node.args) and isinstance(node.args[0], (ast.Constant, ast.Name))  # importlib.metadata's
    return name in NAMES


def test_no_version_is_compared() -> None:
    files = {str(path.relative_to(house.ROOT)): path for path in MODULES.values()}
    found = {name: list(compared_versions(path)) for name, path in files.items() if name not in ALLOWED}
    assert {name: each for name, each in found.items() if each} == {}


def test_a_comparison_is_found(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import sys, torch\nfrom importlib.metadata import version\n"
        "if sys.version_info >= (3, 12): pass\nif version('torch') < '3': pass\n"
        "if torch.__version__.startswith('2'): pass\nif parse(torch.__version__) > parse('2'): pass\n"
    )
    assert len(list(compared_versions(source))) == 4


def test_no_requirement_ends_at_a_version() -> None:
    project = tomllib.loads((house.ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    capped = {each for one in lists for each in one if re.search(r"<|==|~=", each.partition(";")[0])}
    assert {re.split(r"[<=>~\[ ]", each)[0] for each in capped} == set(CAPPED)


@each_row("extra", ["", "s3", "gcs", "azure", "http", "hf"])
def test_every_requirement_of_a_user_has_a_lower_bound_that_is_run(extra: str) -> None:
    """`make test-lowest` installs exactly these."""
    project = tomllib.loads((house.ROOT / "pyproject.toml").read_text())["project"]
    needed = project["optional-dependencies"][extra] if extra else project["dependencies"]
    assert needed
    assert all(re.fullmatch(r"\w+>=[\d.]+", each.partition(";")[0]) for each in needed)
