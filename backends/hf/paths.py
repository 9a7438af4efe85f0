"""Parses ``hf://`` URLs: a kind of repository, its name, a revision and a path in it. Pure.

The rules are those of huggingface_hub for URLs and names of repositories. Refuses a path that leaves its repository,
and a repository without an owner.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from streamer.core.errors import UsageError
from streamer.core.secrets.redact import redact

COMMIT = re.compile(r"[0-9a-f]{40}")
DEFAULT_REVISION = "main"

_KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
_SPECIAL = re.compile(r"refs/(?:convert/[\w-]+|pr/[0-9]+)(?=/|$)")  # revisions that contain a slash
# The cache relies on this pattern, too: `..` would leave the cache, and `--` replaces the slash in its folder names.
_PART = re.compile(r"(?!.*(?:--|\.\.))\w(?:[\w.-]{0,94}\w)?(?<!\.git)", re.ASCII)


@dataclass(frozen=True)
class HfPath:
    """A place in a repository of the Hub."""

    kind: str  # ``"model"``, ``"dataset"``, ``"space"`` or ``"bucket"``
    repository: str  # ``owner/name``
    revision: str  # a branch, tag, pull request or commit
    prefix: str  # the repository and revision as the user wrote them
    path: str  # path in the repository, without slashes at its ends; empty for the whole repository

    @property
    def root(self) -> str:
        """Prefix and path."""
        return f"{self.prefix}/{self.path}".rstrip("/")

    @property
    def resolve_prefix(self) -> str:
        """The part before the repository in the URLs of its files."""
        return "" if self.kind == "model" else f"{self.kind}s/"


def parse_uri(uri: str) -> HfPath:
    """Parse ``hf://[models/|datasets/|spaces/]owner/name[@revision][/path]``.

    Example:
        >>> parse_uri("hf://datasets/ada/texts@refs/pr/1/sub/a.json").revision
        'refs/pr/1'
    """
    body = uri.partition("://")[2].strip("/")
    first, _, rest = body.partition("/")
    kind, body_of_kind = (_KINDS[first], rest) if first in _KINDS else ("model", body)
    owner, _, rest = body_of_kind.partition("/")
    name, slash, path = rest.partition("/")
    name, has_revision, revision = name.partition("@")
    if has_revision:
        after = revision + slash + path
        special = _SPECIAL.match(after)
        if special is not None:
            revision, path = special[0], after[special.end() :].strip("/")
    written = revision
    revision = unquote(revision) if has_revision else DEFAULT_REVISION
    path = path.strip("/")
    _check(uri, owner, name, revision, path)
    prefix = f"{'' if kind == 'model' and first != 'models' else first + '/'}{owner}/{name}"
    return HfPath(kind, f"{owner}/{name}", revision, prefix + (f"@{written}" if has_revision else ""), path)


def parse_bucket(uri: str) -> HfPath:
    """Parse ``hf://buckets/owner/name[/path]``; a bucket has no revisions.

    Example:
        >>> parse_bucket("hf://buckets/ada/runs/a/b.json").path
        'a/b.json'
    """
    owner, _, rest = uri.partition("://")[2].strip("/").removeprefix("buckets").strip("/").partition("/")
    name, _, path = rest.partition("/")
    path = path.strip("/")
    _check(uri, owner, name, DEFAULT_REVISION, path)
    return HfPath("bucket", f"{owner}/{name}", "", f"buckets/{owner}/{name}", path)


def _check(uri: str, owner: str, name: str, revision: str, path: str) -> None:
    if not _PART.fullmatch(owner) or not _PART.fullmatch(name):
        raise UsageError(
            "The URL names no repository",
            uri=redact(uri),
            hint="Expected hf://owner/name[@revision][/path], with datasets/ or spaces/ before the owner of these",
        )
    segments = [*revision.split("/"), *(path.split("/") if path else [])]
    if any(segment in ("", ".", "..") for segment in segments) or "\0" in uri:
        raise UsageError(
            "The revision or path is not one of a repository",
            uri=redact(uri),
            hint="Expected hf://owner/name[@revision][/path], without empty parts, `.` and `..`",
        )
