"""Resolves the name of a model to a URL, a folder on a disk or a repository of the Hub; pulls small files and LoRAs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from streamer._checkpoint_headers import open_checkpoint, pinned
from streamer._pull.listing import is_selected
from streamer._pull.pull import pull
from streamer._pull.record import PullArguments
from streamer._versions import LATEST, split
from streamer.core.errors import FormatError, ObjectNotFoundError, StreamerError, UsageError
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.request.request import Request
from streamer.core.secrets.environment import variable
from streamer.core.secrets.redact import redact
from streamer.core.shards.missing import INCOMPLETE
from streamer.core.shards.shards import settled, sized
from streamer.core.shards.small_files import folder_files
from streamer.integrations.library_calls import Location
from streamer.integrations.small_files import LARGEST_BYTES, left_behind

_ADAPTER = "adapter_config.json"
_OF_ADAPTER = (_ADAPTER, "adapter_model*.safetensors", "adapter_model*.bin", "new_embeddings.*", "added_tokens.json")
_OF_MODELS = ("config.json", "params.json")  # an engine knows a model by one of them
_INSIDE = re.compile(r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)*")  # a client chooses it: no .., escape, query or other URL


def is_url(name: Any) -> bool:
    """Whether an engine's name of a model is a URL."""
    return isinstance(name, str) and "://" in name


def weights_of(name: str, subfolder: str | None, revision: str | None, download_dir: str | None) -> str:
    """Return the path or URL of a model's folder.

    A repository of the Hub is read from the Hub, without a copy on the disk, unless all of it was downloaded before.
    """
    if is_url(name) and revision:
        scheme = name.partition("://")[0].lower()
        hint = "Write it into the URL: hf://owner/name@revision" if scheme == "hf" else "Leave --revision out"
        raise UsageError(f"only a repository of the Hub has a revision, not {scheme}://", uri=redact(name), hint=hint)
    if (version := split(name)) is not None and not os.path.isdir(name):
        if version[1] == LATEST:
            what = "the processes of an engine could find different versions of @latest"
            hint = "Name the folder of one, which streamer.watch yields. If this is a plain name, end it with a slash"
            raise UsageError(what, uri=redact(name), hint=hint)
        name = "/".join(version)
    if is_url(name) or os.path.isdir(name) or name.startswith(("/", "./", "../")):  # no name of the Hub begins so
        return _inside(name, subfolder)
    downloaded = _downloaded(name, subfolder, revision, download_dir)
    if downloaded is not None:
        return downloaded
    return _inside(f"hf://{name}@{revision}" if revision else f"hf://{name}", subfolder)


def without_ignored(
    folder: str, patterns: Sequence[str] | str | None, storage_options: Any, options: Options | None
) -> str | list[str]:
    """Return the shards of a folder without those that match ``ignore_patterns``, or the folder if none match."""
    wanted = [each for each in ([patterns] if isinstance(patterns, str) else patterns or ()) if "/" not in each]
    if not wanted:
        return folder
    location = Location(uri=folder, storage_options=storage_options, options=options)
    with location.store(resolve(options)) as store:
        names = [name for name in sorted(folder_files(store, ())) if name.endswith(".safetensors")]
    kept = [name for name in names if not any(fnmatchcase(name, each) for each in wanted)]
    return folder if kept == names else [location.inside(name).uri for name in kept]


def _downloaded(name: str, subfolder: str | None, revision: str | None, download_dir: str | None) -> str | None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 (engines need it; others do not)
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    with suppress(LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError, StreamerError):
        folder = snapshot_download(name, revision=revision, cache_dir=download_dir, local_files_only=True)
        folder = _inside(folder, subfolder)
        open_checkpoint(Request(uri=folder))  # raises if a shard is missing
        return folder
    return None


def _inside(folder: str, subfolder: str | None) -> str:
    return f"{folder.rstrip('/')}/{subfolder.strip('/')}" if subfolder else folder


def pull_small_files(url: str, folder: str, log: logging.Logger, *, takes_code: bool) -> None:
    """Pull the small files of a model into a folder, once per node."""
    wanted = PullArguments(exclude=left_behind(takes_code=takes_code), largest_bytes=LARGEST_BYTES)
    report = pull(url, folder, wanted, progress=False, on_wait=log.info)
    log.info("Pulled %d files of %s into %s", report.files, report.uri, folder)
    if not any(os.path.isfile(os.path.join(folder, name)) for name in _OF_MODELS):
        log.warning("%s: no %s. Name the folder that holds it", report.uri, " or ".join(_OF_MODELS))


def adapter_url(name: str) -> str | None:
    """Return the URL of a LoRA adapter that a client names: one below a URL of ``STREAMER_LORA_URL``.

    A plain name is below the first of these URLs. None if the name is neither plain nor a URL, or no URL is set for it.

    Raises:
        UsageError: The name is a URL below none of them, or one with other characters.
    """
    url, is_below = name.removesuffix("/") if is_url(name) else name, False
    for above in (variable("STREAMER_LORA_URL") or "").split():
        inside = url.removeprefix(above.rstrip("/") + "/")
        if _INSIDE.fullmatch(inside):
            return str(Location(uri=above).inside(inside).uri)
        is_below |= inside != url
    if is_below:
        hint = "Below a URL of STREAMER_LORA_URL, names have letters, digits, _, -, . and /; no part begins with a dot"
        raise UsageError("this name of a LoRA adapter has other characters", uri=redact(name), hint=hint)
    if is_url(name):
        hint = "Set it for the server: URLs of folders whose adapters clients may name, with spaces between"
        raise UsageError("this LoRA adapter is not below a URL of STREAMER_LORA_URL", uri=redact(name), hint=hint)
    return None


def pull_adapter(url: str, above: str, log: logging.Logger, version: str | None = None) -> str:
    """Pull a LoRA adapter, once per node, and check that it is one; return its folder.

    The name of the folder is `above` with the version: whoever holds the folder of an older version keeps that version.
    With a version, the folder that another process has pulled counts, whatever the storage has now.
    """
    if version is not None and _is_pulled(f"{above}-{version}"):
        return f"{above}-{version}"
    hint = f"Name a folder in which PEFT's save_pretrained wrote a LoRA: {_ADAPTER} beside adapter_model.safetensors"
    wanted = PullArguments(include=_OF_ADAPTER, exclude=("*/*",))
    try:
        (url,) = pinned(Request(uri=url)).uris
        found = _version_of(url)
        if version not in (None, found):
            raise UsageError(f"this LoRA adapter is no longer of version {version}", uri=url, hint="Load it again")
        folder = f"{above}-{found}"
        report = pull(url, folder, wanted, progress=False, on_wait=log.info)
    except ObjectNotFoundError as error:
        error.hint = hint
        raise
    try:
        config = json.loads(Path(folder, _ADAPTER).read_bytes())
        base, rank = config["base_model_name_or_path"], config["r"]
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        reason = "without" if isinstance(error, FileNotFoundError) else f"{error!r} in"
        raise FormatError(f"this is no LoRA adapter: {reason} {_ADAPTER}", uri=report.uri, hint=hint) from error
    has_weights = any(name.startswith("adapter_model") for name in os.listdir(folder))
    if not (base and isinstance(base, str) and isinstance(rank, int) and rank > 0 and has_weights):
        reason = f"base model {base!r}, rank {rank!r}, {'with' if has_weights else 'without'} weights"
        raise FormatError(f"this is no LoRA adapter: {reason}", uri=report.uri, hint=hint)
    log.info("Pulled a LoRA adapter of rank %d for %s from %s into %s", rank, base, report.uri, folder)
    return folder


def _is_pulled(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, _ADAPTER)) and not os.path.exists(os.path.join(folder, INCOMPLETE))


def _version_of(url: str) -> str:
    settings = resolve(None)
    with Location(uri=url).store(settings) as store:
        files = sorted(folder_files(store, [name for name in _OF_ADAPTER if "*" not in name]).items())
        infos = settled(store, sized(store, [info for name, info in files if is_selected(name, _OF_ADAPTER, ())]))
    versions = [(info.path, info.size_bytes, info.version) for info in infos]
    return hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16]
