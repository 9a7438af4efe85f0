"""Reads the user's cache of the Hugging Face Hub, which huggingface_hub fills; never writes to it.

A file is used only if it belongs to the requested commit; a file of an older commit is never used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from streamer.backends.hf.paths import COMMIT, HfPath
from streamer.backends.hub_variables import hub_cache
from streamer.core.folders.paths import followed


def is_offline() -> bool:
    """Say whether ``HF_HUB_OFFLINE`` forbids requests to the Hub."""
    return bool(constants.HF_HUB_OFFLINE)


def cached_file(place: HfPath, commit: str, path: str) -> str | None:
    """Return the path of a file of a commit, or None if it is not cached."""
    cached = huggingface_hub.try_to_load_from_cache(
        place.repository, path, cache_dir=hub_cache(), revision=commit, repo_type=place.kind
    )
    return cached if isinstance(cached, str) and os.path.isfile(cached) else None


def cached_sha256(path: str) -> str | None:
    """Return the SHA-256 that names the blob of a cached file; None for a small file, whose blob has Git's own hash."""
    name = os.path.basename(followed(path))
    return name if re.fullmatch(r"[0-9a-f]{64}", name) else None


def cached_commit(place: HfPath) -> str | None:
    """Return the commit of the revision at the last download, or None."""
    if COMMIT.fullmatch(place.revision):
        return place.revision
    try:
        commit = (_folder(place) / "refs" / place.revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def cached_files(place: HfPath, commit: str, folder: str) -> Iterator[tuple[str, int]]:
    """Yield name and size of the files directly in a folder of a cached commit."""
    try:
        entries = list(os.scandir(_folder(place) / "snapshots" / commit / folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_file():  # follows links to the cache's blobs
            yield entry.name, entry.stat().st_size


def cached_folders(place: HfPath, commit: str, folder: str) -> list[str]:
    """Return the names of the folders directly in a folder of a cached commit."""
    try:
        with os.scandir(_folder(place) / "snapshots" / commit / folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []


def _folder(place: HfPath) -> Path:
    return Path(hub_cache()) / repo_folder_name(repo_id=place.repository, repo_type=place.kind)
