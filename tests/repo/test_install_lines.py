"""On the public package index, ``streamer`` is somebody else's: nothing here tells users to install it by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from each_row import each_row

from streamer.backends.builtin_storages import EXTRAS, install_hint

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "src",
    "core",
    "backends",
    "compat",
    "integrations",
    "plugins",
    "extras",
    "docs",
    "examples",
    "benchmarks",
    "tests",
)
PAGES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in (".md", ".py", ".yaml", ".toml", "") and path != Path(__file__)
] + sorted(ROOT.glob("*.md"))
# A command for pip, uv or a like tool that names the project, and not where it is to come from.
BY_NAME = re.compile(r"""\b(?:install|add)\s[^\n`]*?(?<![\w/.-])streamer(?:\[[\w,]*\])?["']?(?=\s|$|`|=|>|<)(?!\s*@)""")
COMMAND = re.compile(r"\b(?:pip3?|uv|pipx|poetry|conda)\b[^#]*")


def lines_by_name(text: str) -> list[str]:
    commands = (found[0] for line in text.splitlines() if (found := COMMAND.search(line)))
    return [each for each in commands if BY_NAME.search(each)]


@pytest.mark.parametrize("command", ["pip install streamer", 'pip install "streamer[s3]"', "uv add streamer[s3]>=1"])
def test_a_command_that_installs_by_name_is_found(command: str) -> None:
    assert lines_by_name(f"Run `{command}` first")


def test_a_command_that_says_where_from_is_not() -> None:
    assert not lines_by_name('pip install "streamer[s3] @ git+URL"\npip install wheels/streamer-1.whl streamer_example')


def test_no_page_and_no_message_installs_by_name_regression() -> None:
    found = {path: lines for path in PAGES if (lines := lines_by_name(path.read_text(errors="replace")))}
    assert not found


@each_row("scheme", EXTRAS)
def test_a_hint_names_the_extra_and_no_command_regression(scheme: str) -> None:
    hint = install_hint(scheme) or ""
    assert f"streamer[{EXTRAS[scheme]}]" in hint
    assert not COMMAND.search(hint)


def test_the_first_command_of_the_readme_installs_from_the_repository_regression() -> None:
    first = next(line for line in (ROOT / "README.md").read_text().splitlines() if "install" in line)
    assert first.startswith('pip install ".[s3]"')
