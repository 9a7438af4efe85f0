"""The methods of ``streamer::`` that the wrapped file system performs: paths, descriptions and listings."""

from __future__ import annotations

from typing import Any

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from streamer.backends.fsspec.info import make_folders, origin_of
from streamer.backends.private_names.fsspec import parent_of, path_of
from streamer.integrations.fsspec.inner import Inner, WholeFiles

try:
    from fsspec.implementations.chained import ChainedFileSystem
except ImportError:  # before 2025.10, only `fo` has the path of a chain
    ChainedFileSystem = AbstractFileSystem

__all__ = ["ListedInside"]


class ListedInside(WholeFiles, ChainedFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system with the paths of another one. Listings are requested each time, never taken from a cache."""

    @property
    def fs(self) -> AbstractFileSystem:
        """The wrapped file system."""
        return self._inner.fs

    def info(self, path: str, **named: Any) -> dict[str, Any]:
        """Describe a file or folder as the wrapped file system does."""
        path = self._path_of(path)
        with self._inner.with_own_errors(path) as fs:
            origin = origin_of(fs)
            origin.invalidate_cache(parent_of(origin, path))
            description: dict[str, Any] = origin.info(path, **named)
            return description

    def exists(self, path: str, **named: Any) -> bool:
        """Whether a file or folder exists; raises if the storage does not answer, because the file may exist then."""
        try:
            self.info(path, **named)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **named: Any) -> list[Any]:
        """List a folder; raises as `info`."""
        return list(self._listed("ls", path, detail=detail, **named))

    def find(self, path: str, **named: Any) -> Any:
        """List all files below a folder; raises as `info`."""
        return self._listed("find", path, **named)

    def glob(self, path: str, **named: Any) -> Any:
        """List the files that match a pattern; raises as `info`."""
        return self._listed("glob", path, **named)

    def created(self, path: str) -> Any:
        """Return the result of the wrapped file system; raises as `info`."""
        return self._listed("created", path)

    def modified(self, path: str) -> Any:
        """Return the result of the wrapped file system; raises as `info`."""
        return self._listed("modified", path)

    def sign(self, path: str, expiration: int = 100, **named: Any) -> Any:
        """Return the result of the wrapped file system; raises as `info`."""
        with self._inner.with_own_errors(self._path_of(path)) as fs:
            return fs.sign(self._path_of(path), expiration=expiration, **named)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create a folder, and those above it, as the wrapped file system does; raises as `info`.

        With `exist_ok`, as `fsspec.open` calls it before it writes, no bucket is created.
        """
        path = self._path_of(path)
        with self._inner.with_own_errors(path) as fs:
            if exist_ok:
                make_folders(fs, path)
            else:
                fs.makedirs(path)

    def mkdir(self, path: str, create_parents: bool = True, **named: Any) -> None:
        """Create a folder as the wrapped file system does; raises as `info`."""
        path = self._path_of(path)
        with self._inner.with_own_errors(path) as fs:
            fs.mkdir(path, create_parents=create_parents, **named)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Clear the listing cache of the wrapped file system."""
        self.fs.invalidate_cache(None if path is None else self._path_of(path))

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path."""
        return f"streamer::{self.fs.unstrip_protocol(self._path_of(name))}"

    def _list_with(self, inner: Inner, path_of_chain: str) -> None:
        self._inner = inner
        self._path_of_chain = "" if ChainedFileSystem is not AbstractFileSystem else path_of_chain
        self.root_marker, self.sep = inner.fs.root_marker, inner.fs.sep
        self._strip_protocol = self._path_of  # type: ignore[method-assign]  # an instance knows the wrapped file system

    def _listed(self, question: str, path: str, **named: Any) -> Any:
        path = self._path_of(path)
        with self._inner.with_own_errors(path) as fs:
            fs.invalidate_cache(None if question == "glob" else path)
            return getattr(fs, question)(path, **named)

    def _path_of(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._path_of(each) for each in path]
        return path_of(self.fs, _without_own(path) or self._path_of_chain)

    def _parent(self, path: str) -> Any:
        return parent_of(self.fs, path)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the URL without ``streamer::``; the class does not know the wrapped file system."""
        return [cls._strip_protocol(each) for each in path] if isinstance(path, list) else _without_own(path)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        """Return the protocol of ``streamer://nfs://server/path``: fsspec refuses chains with unknown protocols."""
        protocol, mark, _ = _without_own(path).partition("://")
        return {"target_protocol": protocol} if mark else {}


def _without_own(path: Any) -> str:
    text = str(stringify_path(path))
    for own in ("streamer::", "streamer://"):
        text = text.removeprefix(own)
    return text
