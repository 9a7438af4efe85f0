"""Decides which weights of a folder would hide weights that are written beside them: a reader may take these, or both.

Readers are `streamer.load` of the folder, and transformers, diffusers and PEFT, which look for fixed names in a fixed
order. Pure, except for `weights_in_the_way`, which lists folders, and `check_replaceable`, which reads indexes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from streamer.core.errors import AccessDeniedError, UsageError
from streamer.core.format.shard_names import (
    INDEX_SUFFIX,
    MANIFEST_SUFFIX,
    SHARD_SUFFIX,
    USUAL_INDEX,
    USUAL_SHARD,
    is_consolidated,
    series_of,
)
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.shards.format_choice import is_beside_a_model
from streamer.core.shards.shards import read_index
from streamer.core.store.names import name_in, path_in
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store

OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".tensors")

_REPLACE = "Copy to another place, or pass --replace: they are removed when all new files are there"
_MOVE = "It does not belong to a checkpoint of this folder, so --replace leaves it alone: move it away"

_METADATA = ".metadata"  # DCP's index
_ITEMS = ".distcp"
# The name of a variant's index contains the name of the variant.
_INDEX = re.compile(r".*\.(?:safetensors|bin)\.index(?:\.[^/]+)?\.json|(?:.*/)?\.metadata", re.DOTALL)
_STEMS = {"pytorch_model": "model"}  # stems of `.bin` files that belong to another stem of `.safetensors`
_LOOKED_FOR = re.compile(
    r"(?P<stem>model|pytorch_model|diffusion_pytorch_model|adapter_model)(?:\.(?P<variant>[^.]+))?"
    r"\.(?P<suffix>safetensors|bin)(?P<index>\.index(?:\.(?P<of>[^.]+))?\.json)?",
    re.DOTALL,
)


def is_index(name: str) -> bool:
    """Say whether a file names the shards of a checkpoint."""
    return _INDEX.fullmatch(name) is not None


def is_manifest(name: str) -> bool:
    """Say whether a file is a manifest of digests beside weights."""
    return name.endswith(SHARD_SUFFIX + MANIFEST_SUFFIX)


def is_found_by_name(name: str) -> bool:
    """Say whether readers of a folder look for a file of this name, or take it for a part of a checkpoint.

    Example:
        >>> [is_found_by_name(name) for name in ("model.safetensors", "m-00001-of-00002.gguf", "lora.safetensors")]
        [True, True, False]
    """
    match = _LOOKED_FOR.fullmatch(name)
    return (
        (match is not None and not match["variant"])  # a variant is looked for only by its own name
        or is_index(name)
        or is_consolidated(name)
        or (_is_weights(name) and series_of(name) is not None)
    )


def in_the_way(own: Collection[str], there: Iterable[str]) -> list[str]:
    """Return the files of a folder that hide weights, or that a reader would take for a part of the same checkpoint.

    Example:
        >>> in_the_way(["model.safetensors"], ["model.safetensors.index.json", "pytorch_model.bin", "config.json"])
        ['model.safetensors.index.json']
        >>> in_the_way(["pytorch_model.bin"], ["model.safetensors"])
        ['model.safetensors']
    """
    ours = [name for name in own if _is_weights(name)]
    others = sorted(name for name in there if name not in own and _is_weights(name))
    if not ours or not others:
        return []
    if any(map(_is_of_safetensors, ours)):  # every reader prefers safetensors
        return [name for name in others if _is_of_safetensors(name) or _comes_first(name, ours)]
    if _METADATA in own:  # its folder also holds what a training keeps, in files of any name
        others = [name for name in others if is_found_by_name(name) or _is_of_safetensors(name)]
    return others


def weights_in_the_way(store: Store, paths: Iterable[str]) -> list[ObjectInfo]:
    """List the folders of files that are to be written; return the files that `in_the_way` names."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(path.rpartition("/")[0], []).append(name_in(path))
    found: list[ObjectInfo] = []
    for folder, names in folders.items():
        if any(map(_is_weights, names)):
            listed = {name_in(info.path): info for info in _listed(store, folder)}
            found += [listed[name] for name in in_the_way(names, listed)]
    return found


def check_replaceable(
    store: Store, older: Sequence[ObjectInfo], settings: Settings, *, may_replace: bool = False, hint: str = _REPLACE
) -> None:
    """Refuse to write weights beside others that a reader of the folder would take instead, or as a part of them."""
    infos = {info.path: info for info in older}
    named = set[str]()
    for path, info in infos.items() if may_replace else ():
        if path.endswith(SHARD_SUFFIX + INDEX_SUFFIX):
            index = read_index(store, info, settings)
            named |= {path_in(path.rpartition("/")[0], name) for name in index.shards}
    for path, info in infos.items():
        name = name_in(path)
        is_of_checkpoint = path in named or is_found_by_name(name) or is_manifest(name)
        if not may_replace or not is_of_checkpoint:
            what = f"a load of the folder would read weights that are there already: {quoted(name)}"
            raise UsageError(what, uri=info.uri, hint=_MOVE if may_replace else hint)


def _listed(store: Store, folder: str) -> Sequence[ObjectInfo]:
    """List a folder; if listing is forbidden, look up the files for which a load of the folder looks then."""
    try:
        return store.find(folder or "/")
    except AccessDeniedError:
        infos = []
        for name in (USUAL_INDEX, USUAL_SHARD):
            try:
                infos.append(info_if_present(store, f"{folder}/{name}"))
            except AccessDeniedError:  # a load of the folder cannot find it either
                continue
        return [info for info in infos if info is not None]


def _is_weights(name: str) -> bool:
    if name.startswith("."):
        return name == _METADATA
    is_other = name.endswith((*OTHER_WEIGHTS, _ITEMS)) and not is_beside_a_model(name)
    return is_other or is_index(name) or is_manifest(name) or name.endswith(SHARD_SUFFIX)


def _is_of_safetensors(name: str) -> bool:
    return SHARD_SUFFIX in name and (is_index(name) or is_manifest(name) or name.endswith(SHARD_SUFFIX))


def _comes_first(name: str, ours: Iterable[str]) -> bool:
    """Say whether a library that looks for fixed names finds this file, and none of ours before it."""
    place = _place_of(name)
    if place is None:
        return False
    places = [each for each in map(_place_of, ours) if each is not None]
    own = [turn for kind, turn in places if kind == place[0]]
    has_usual = any(not variant for (_, variant), _ in places)
    return place[1] < min(own) if own else not has_usual and not place[0][1]


def _place_of(name: str) -> tuple[tuple[str, str], int] | None:
    """Return the kind of a file (its stem and variant), and the turn in which it is looked for within its kind."""
    match = _LOOKED_FOR.fullmatch(name)
    if match is None:
        return None
    kind = _STEMS.get(match["stem"], match["stem"]), match["variant"] or match["of"] or ""
    return kind, 2 * (match["suffix"] == "bin") + (match["index"] is not None)
