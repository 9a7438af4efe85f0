"""Lays out the pages of the site: those of ``docs/``, and a reference made from docstrings and the help of commands."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterable, Iterator
from os.path import relpath
from pathlib import Path
from typing import Any

import click
import griffe

import streamer
from streamer._cli import main as command_line

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "pages"  # the folder that mkdocs.yml names
RENAMED = {"README.md": "index.md", "docs/README.md": "map.md"}
PICTURES = (".svg", ".png", ".webp")
CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s:#]+)(#[^)\s]*)?\)")
FIRST = ("load", "stream", "open", "load_into", "save", "save_model", "publish", "watch")
HOSTS = ("transformers", "diffusers", "accelerate", "dcp", "fsspec", "ray")


def place_of(file: Path) -> Path:
    """Return the place on the site of a file of the repository; a file that is no page is shown on one of its own."""
    name = file.relative_to(ROOT).as_posix()
    page = RENAMED.get(name) or name.removeprefix("docs/")
    return PAGES / (page if page.endswith((".md", *PICTURES)) else f"{page}.md")


def text_of(file: Path) -> str:
    """Return a page's text; a folder has a list of its pages, and any other file is shown as code."""
    if file.is_dir():
        pages = sorted(file.glob("*.md"))
        titles = [page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for page in pages]
        rows = (f"- [{title}]({file.name}/{page.name})\n" for title, page in zip(titles, pages, strict=True))
        return f"# {file.name.capitalize()}\n\n{''.join(rows)}"
    text = file.read_text(encoding="utf-8")
    return text if file.suffix == ".md" else f"# {file.name}\n\n```{file.suffix[1:]}\n{text}```\n"


def lay_out(file: Path) -> Path:
    """Write the page of a file, and of each file that it links to; return its place."""
    if file.is_dir() and (file / "README.md").is_file():
        file = file / "README.md"
    place = place_of(file)
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix in PICTURES:
        return Path(shutil.copyfile(file, place))
    place.touch()  # pages link to each other in circles

    def moved(link: re.Match[str]) -> str:
        there = lay_out((file.parent / link[1]).resolve())
        return f"]({relpath(there, place.parent)}{link[2] or ''})"

    parts = CODE.split(text_of(file))  # code holds things that look like links
    place.write_text("".join(p if p.startswith("```") else LINK.sub(moved, p) for p in parts), encoding="utf-8")
    return place


# --- the reference ----------------------------------------------------------------------------------------------------


def marked(text: str) -> str:
    """Return the text of a docstring in Markdown, with links from the public names in it."""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    return re.sub(r"(?<!`)`(?:streamer\.)?(\w+)`(?!`)", lambda name: linked(name[1]), text)


def linked(name: str) -> str:
    """Return a link to a public name, or the name as code."""
    home = next((page for page, names in groups().items() if name in names), None)
    return f"[`{name}`]({home}.md#{name.lower()})" if home else f"`{name}`"


def groups() -> dict[str, list[str]]:
    """Return the public names of each page of the reference."""
    pages: dict[str, list[str]] = {"functions": [], "classes": [], "errors": []}
    for name in sorted(streamer.__all__, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        value = getattr(streamer, name)
        if inspect.isclass(value):
            pages["errors" if issubclass(value, Exception) else "classes"].append(name)
        elif inspect.isroutine(value):
            pages["functions"].append(name)
    return pages


def signature_of(value: Any) -> str:
    """Return the arguments, one a line if they are many."""
    parameters = []
    for parameter in inspect.signature(value).parameters.values():
        quoted = f"{str(parameter.annotation)!r}" if isinstance(parameter.annotation, str) else ""
        parameters.append(str(parameter).replace(quoted, parameter.annotation) if quoted else str(parameter))
    inside = ", ".join(parameters)
    return inside if len(inside) < 80 else "".join(f"\n    {parameter}," for parameter in parameters) + "\n"


def documented(name: str, value: Any, level: int) -> Iterator[str]:
    """Yield the Markdown of a function or class: its signature, its sections, and its methods."""
    yield f"{'#' * level} {name.rpartition('.')[2]}\n"
    if not (inspect.isclass(value) and (issubclass(value, Exception) or inspect.isabstract(value))):
        yield f"```python\n{name}({signature_of(value)})\n```\n"
    for section in griffe.Docstring(inspect.getdoc(value) or "", parser="google").parse(warnings=False):
        kind, content = section.kind.value, section.value
        if kind == "text":
            yield marked(content) + "\n"
        elif kind == "admonition":
            example = re.sub(r" *# doctest: \+SKIP", "", content.contents)
            yield f"**{section.title}**\n\n```pycon\n{example}\n```\n"
        else:
            yield f"**{section.title or kind.capitalize()}**\n"
            for item in content:
                title = getattr(item, "name", "") or str(item.annotation or "")
                yield f"- {f'`{title}`: ' if title else ''}{marked(' '.join(item.description.split()))}\n"
    if inspect.isclass(value) and not issubclass(value, Exception):
        for method, function in vars(value).items():
            if not method.startswith("_") and inspect.isroutine(function) and inspect.getdoc(function):
                yield from documented(method, getattr(value, method), level + 1)


def commands(command: click.Command, path: str) -> Iterator[str]:
    """Yield the help of a command and of its sub-commands."""
    context = click.Context(command, info_name=path, terminal_width=100)
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


def write(page: str, parts: Iterable[str]) -> None:
    """Write a page of the reference."""
    place = PAGES / "reference" / f"{page}.md"
    place.parent.mkdir(exist_ok=True)
    place.write_text("\n".join([f"# {page.capitalize()}\n", *parts]), encoding="utf-8")


def libraries() -> Iterator[str]:
    """Yield what streamer offers under the names of other libraries."""
    for host in HOSTS:
        module = getattr(streamer, host)
        yield f"## streamer.{host}\n\n{marked(inspect.getdoc(module) or '')}\n"
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]:
            yield from documented(f"streamer.{host}.{name}", getattr(module, name), 3)


if __name__ == "__main__":
    shutil.rmtree(PAGES, ignore_errors=True)
    lay_out(ROOT / "README.md")
    for page, names in groups().items():
        write(page, (part for name in names for part in documented(f"streamer.{name}", getattr(streamer, name), 2)))
    write("libraries", libraries())
    write("commands", commands(command_line, "streamer"))
