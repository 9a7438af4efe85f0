"""What to say where no shard was found: a pattern that matches nothing, a folder of folders, weights in another format.

Two more requests at most are made for that, and they may fail: the message then says less.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from streamer.core.errors import ObjectNotFoundError
from streamer.core.format.shard_names import INDEX_SUFFIX, USUAL_INDEX
from streamer.core.quoting import printable
from streamer.core.store.glances import SHARD_SUFFIX, SHOWN_CHARACTERS, PeekingStore, enumerated, near_names
from streamer.core.store.sources import ObjectInfo, RemoteStore, Store

__all__ = ["is_pattern", "no_match", "no_shard", "nothing_there"]

_CHECK_IT = "Check its name, and that its upload or download is complete"
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".npz", ".onnx", ".pkl")


def is_pattern(text: str) -> bool:
    """Whether a part of a path is a pattern as of `fnmatch`, or looks like one."""
    return any(mark in text for mark in "*?[")


def nothing_there(error: ObjectNotFoundError, store: Store, label: str, root: str) -> ObjectNotFoundError:
    """Explain why the store has no object of the user's name.

    Args:
        error: The store's.
        store: Of the URI.
        label: The URI, without secrets.
        root: The store's path of it.
    """
    folder, _, name = root.rpartition("/")
    if is_pattern(folder):
        error.hint = "Only the last part of a URI may be a pattern: name each folder, in a list of URIs"
        return error
    names = _peek(store, root)
    if folders := [each for each in names or () if each.endswith("/")]:
        return _without_shards(label, folders)
    if not isinstance(store, RemoteStore):  # whose message says that a folder is empty
        return error
    if names is not None and not names and not name.endswith((SHARD_SUFFIX, INDEX_SUFFIX)):
        error.message += f", and nothing lies below it: neither *{SHARD_SUFFIX} nor {USUAL_INDEX}"
        if (error.hint or "").startswith("Name "):  # an object in a bucket or a folder, which has none
            error.hint = _CHECK_IT
    beside = [each for each in _peek(store, folder) or [] if each != f"{name}/"] if folder else []
    if near := near_names(name, beside):
        error.hint = f"{error.hint}. {near}" if error.hint else near
    return error


def no_match(store: Store, label: str, root: str, listed: Sequence[ObjectInfo]) -> ObjectNotFoundError:
    """Say that a pattern matches none of the listed files, and what it matches, or what there is."""
    folder, _, pattern = root.rpartition("/")
    names = _peek(store, folder or "/") or list(map(_name, listed))
    hint = "There is no such folder, or it is empty"
    if matching := [name for name in names if name.endswith("/") and fnmatchcase(name[:-1], pattern)]:
        hint = f"It matches folders ({enumerated(matching)}), not files: name each, in a list of URIs"
    elif names:
        hint = f"The folder holds {enumerated(names)}"
    return ObjectNotFoundError("no file matches this pattern", uri=label, hint=hint)


def no_shard(store: Store, label: str, root: str, listed: Sequence[ObjectInfo]) -> ObjectNotFoundError:
    """Say what a folder holds in place of shards."""
    return _without_shards(label, _peek(store, root) or list(map(_name, listed)))


def _without_shards(label: str, names: Sequence[str]) -> ObjectNotFoundError:
    others = [name for name in names if name.endswith(_OTHER_WEIGHTS)]
    hidden = [name for name in names if name.startswith(".") and name.endswith(SHARD_SUFFIX)]
    steps = ["Name one of its folders"] if any(name.endswith("/") and name != "/" for name in names) else []
    if {"blobs/", "snapshots/"} <= set(names):  # of the cache of huggingface_hub
        steps = ["Name a folder in its snapshots/, one for each revision"]
    if "/" in names:  # a folder without a name, which no URI of a folder can end in
        steps.append("Names there have two slashes in a row: name the files")
    if hidden:
        steps.append(f"{_shown(hidden[0])} is hidden, and so no shard of the folder: rename it, or name it itself")
    if others:
        steps.append(f"{_shown(others[0])} has another format: convert it, or fetch the *.safetensors")
    hint = ". ".join(steps) or _CHECK_IT
    held = enumerated(sorted(names, key=lambda name: not name.endswith(("/", *_OTHER_WEIGHTS))))
    return ObjectNotFoundError(f"the folder holds no *.safetensors file, but {held}", uri=label, hint=hint)


def _shown(name: str) -> str:
    return printable(name[:SHOWN_CHARACTERS])


def _peek(store: Store, folder: str) -> list[str] | None:
    """Name what is in a folder; None if the store does not say."""
    if not isinstance(store, PeekingStore):
        return None
    try:
        return list(store.peek(folder))
    except Exception:  # only the message would have been better
        return None


def _name(info: ObjectInfo) -> str:
    return info.path.rpartition("/")[2]
