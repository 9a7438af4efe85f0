"""The files of an artifact, as a container sees them: layer over layer, through links, without what was removed.

Guarantees: a mark of an image layer removes files of the layers before, and none of its own. A link is followed when
a path is looked up, so it leads to what the last layer has at its target. No link leads out of the artifact. Pure.
https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

MOST_LINKS = 40  # in one path, as in Linux
FileT = TypeVar("FileT")


@dataclass(frozen=True)
class File(Generic[FileT]):
    """A file of a layer."""

    path: str
    entry: FileT


@dataclass(frozen=True)
class Folder:
    """A folder of a layer, in which the files of earlier layers stay."""

    path: str


@dataclass(frozen=True)
class Link:
    """A symbolic link; a target with a slash at its beginning is a path in the artifact."""

    path: str
    target: str


@dataclass(frozen=True)
class HardLink:
    """Another name of a file that is there when the link is made."""

    path: str
    target: str


@dataclass(frozen=True)
class Removed:
    """What removes a path of earlier layers, and all that is below it."""

    path: str


Member = File[FileT] | Folder | Link | HardLink | Removed


class FileTree(Generic[FileT]):
    """See the module's docstring. Paths have no slash at their ends; the root is the empty path."""

    def __init__(self) -> None:
        self._nodes: dict[str, FileT | Link] = {}
        self._parents: set[str] = set()  # of all nodes, those that were removed included

    def add_layer(self, members: Sequence[Member[FileT]]) -> None:
        """Put a layer over those before, in the order of its members."""
        for each in members:
            if isinstance(each, Removed):
                self._remove(self._place(each.path))
        for each in members:
            if not isinstance(each, Removed):
                self._add(self._place(each.path), each)

    def file(self, path: str) -> FileT | None:
        """Return the file at a path, through links."""
        node = self._nodes.get(self._resolved(path))
        return None if isinstance(node, Link) else node

    def files_in(self, folder: str) -> list[tuple[str, FileT]]:
        """Return the names directly in a folder, and their files, by name."""
        found = ((name, self.file(f"{folder}/{name}")) for name, rest in self._below(folder) if not rest)
        return sorted(((name, file) for name, file in found if file is not None), key=lambda each: each[0])

    def folders_in(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, without links to folders, which may form circles."""
        return sorted({name for name, rest in self._below(folder) if rest})

    def _below(self, folder: str) -> Iterator[tuple[str, str]]:
        real = self._resolved(folder)
        start = f"{real}/" if real else ""
        for path in self._nodes:
            if path.startswith(start):
                name, _, rest = path[len(start) :].partition("/")
                yield name, rest

    def _add(self, path: str, member: Member[FileT]) -> None:
        node: FileT | Link | None = None
        if isinstance(member, File):
            node = member.entry
        elif isinstance(member, Link):
            node = member
        elif isinstance(member, HardLink):
            node = self._nodes.get(self._place(member.target))
            if node is None:  # a folder, or a device
                return
        if isinstance(member, Folder):
            self._nodes.pop(path, None)
        else:
            self._remove(path)
        parent = path
        while parent:
            parent = parent.rpartition("/")[0]
            self._parents.add(parent)
            self._nodes.pop(parent, None)  # a file becomes a folder
        if node is not None and path:
            self._nodes[path] = node

    def _remove(self, path: str) -> None:
        self._nodes.pop(path, None)
        if path in self._parents:
            start = f"{path}/" if path else ""
            for each in [each for each in self._nodes if each.startswith(start)]:
                del self._nodes[each]
            self._parents.discard(path)

    def _place(self, path: str) -> str:
        """Return where a layer puts a path: through links to folders, but not through one at its end."""
        folder, _, name = path.rpartition("/")
        return f"{self._resolved(folder)}/{name}".lstrip("/")

    def _resolved(self, path: str) -> str:
        """Follow the links in a path; a circle ends somewhere in it, where no file is."""
        done: list[str] = []
        rest, links = path.split("/")[::-1], 0
        while rest:
            part = rest.pop()
            if part == "..":
                del done[-1:]
            elif part not in ("", "."):
                done.append(part)
                node = self._nodes.get("/".join(done))
                if isinstance(node, Link) and links < MOST_LINKS:
                    links += 1
                    rest += node.target.split("/")[::-1]
                    del done[0 if node.target.startswith("/") else -1 :]
        return "/".join(done)
