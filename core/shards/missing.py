"""What a folder lacks: shards of an index or a numbered series, the end of a pull, or all weights.

At most two more requests are made for the message about a URI without shards. If they fail, it says less.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from streamer.core.errors import MissingShardError, ObjectNotFoundError
from streamer.core.format.shard_names import INDEX_SUFFIX, USUAL_INDEX, incomplete_series, second_copies
from streamer.core.log import OwnLogger
from streamer.core.quoting import names_text, printable
from streamer.core.store.presence import SHARD_SUFFIX, SHOWN_CHARACTERS, PeekingStore, enumerated, near_names
from streamer.core.store.sources import ObjectInfo, RemoteStore, Store

_UNFINISHED = r"\.safetensors\.(aria2|crdownload|download|incomplete|part|partial|tmp)\Z"

_log = OwnLogger()


def check_whole(names: Sequence[str], label: str, *, is_allowed: bool = False) -> tuple[str, ...]:
    """Check that no shard is missing from a folder without an index, by the numbers in the names.

    Returns:
        A remark for each series that is incomplete.
    """
    remarks = tuple(f"the folder holds {each}" for each in incomplete_series(names))
    if remarks and not is_allowed:
        raise MissingShardError(
            f"{remarks[0]}, and no index",
            uri=label,
            hint="Fetch what is missing, or take the rest with Options(allow_missing_shards=True)",
        )
    for remark in remarks:
        _log.warning("%s: %s, which allow_missing_shards permits", printable(label), printable(remark))
    return remarks


def without_second_copies(names: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Drop shards that hold a second copy of the model; return the others, and a remark for each dropped shard."""
    again = second_copies(names)
    remarks = tuple(f"{name} holds the same model once more, and was left out: name it to load it" for name in again)
    return [name for name in names if name not in again], remarks


def missing_shard(shard: str, index_uri: str) -> MissingShardError:
    """Return the error for a shard that an index names and that does not exist."""
    return MissingShardError(
        f"the index names shard {shard[:80]!r}, which does not exist",
        uri=index_uri,
        hint="Fetch it; a pattern (folder/*.safetensors) loads those that are there",
    )


def unnamed(
    names: Sequence[str], shards: Collection[str], suffixes: tuple[str, ...], why: str = "the index does not name"
) -> tuple[str, ...]:
    """Return a remark if weights lie beside those that are loaded: they may be what the user means."""
    others = [name for name in names if name.endswith(suffixes) and name not in shards]
    others = [name for name in others if name not in second_copies([*others, *shards])]
    if not others:
        return ()
    return (f"{why} {names_text(others, 3)}: left out; name the file to load it",)


def unfinished(names: Sequence[str], label: str) -> tuple[str, ...]:
    """Return a remark if unfinished downloads lie beside the shards: a shard may be missing."""
    begun = sorted(name for name in names if re.search(_UNFINISHED, name))
    if not begun:
        return ()
    remark = f"a download left {begun[0]} unfinished" + (f", and {len(begun) - 1} more" if begun[1:] else "")
    _log.warning("%s: %s", printable(label), printable(remark))
    return (remark,)


INCOMPLETE = ".streamer-pull-incomplete"  # a file directly in the folder, so that every storage lists it


def refuse_half_pulled(infos: Iterable[ObjectInfo], label: str) -> None:
    """Check that a folder does not hold the mark of an unfinished pull."""
    if any(info.path.rpartition("/")[2] == INCOMPLETE for info in infos):
        raise ObjectNotFoundError(
            "the folder is half pulled: not all of its files are here",
            uri=label,
            hint="Run python -m streamer pull again with the same URI: it goes on where it stopped",
        )


_CHECK_IT = "Check its name, and that its upload or download is complete"
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".npz", ".onnx", ".pkl", ".keras", ".npy")
# Files of weights that no format reads: how to convert each.
_UNREAD = {
    ".h5": "holds HDF5, as Keras writes it: load it there, and save its arrays with safetensors.numpy.save_file",
    ".keras": "is a model of Keras: load it there, and save its arrays with safetensors.numpy.save_file",
    ".msgpack": "is a file of Flax: flax.serialization.msgpack_restore reads it, safetensors.flax.save_file saves it",
    ".npy": "is one array: load it with numpy.load, and save it with numpy.savez or safetensors.numpy.save_file",
    ".onnx": "is a graph of ONNX: convert the model that it was exported from",
    ".pkl": "is a pickle, which runs code when it is loaded: load it where it was made, and save its arrays",
}


def is_pattern(text: str) -> bool:
    """Say whether a part of a path has characters of an `fnmatch` pattern."""
    return any(mark in text for mark in "*?[")


def nothing_there(error: ObjectNotFoundError, store: Store, label: str, root: str) -> ObjectNotFoundError:
    """Return an error that explains why the store has no object of the requested name."""
    folder, _, name = root.rpartition("/")
    if is_pattern(folder):
        error.hint = "Only the last part of a URI may be a pattern: name each folder, in a list of URIs"
        return error
    names = _names_in(store, root)
    if folders := [each for each in names or () if each.endswith("/")]:
        return _without_shards(label, folders)
    if not isinstance(store, RemoteStore):  # other stores' messages already say that a folder is empty
        return error
    if names is not None and not names and not name.endswith((SHARD_SUFFIX, INDEX_SUFFIX)):
        error.message += f", and nothing lies below it: neither *{SHARD_SUFFIX} nor {USUAL_INDEX}"
        if (error.hint or "").startswith("Name "):  # it asks to name an object, but there is none
            error.hint = _CHECK_IT
    beside = [each for each in _names_in(store, folder) or [] if each != f"{name}/"] if folder else []
    if near := near_names(name, beside):
        error.hint = f"{error.hint}. {near}" if error.hint else near
    return error


def no_match(store: Store, label: str, root: str, listed: Sequence[ObjectInfo]) -> ObjectNotFoundError:
    """Return the error for a pattern that matches no file; its hint names matching folders, or the files there."""
    folder, _, pattern = root.rpartition("/")
    names = _names_in(store, folder or "/") or list(map(_name, listed))
    hint = "There is no such folder, or it is empty"
    if matching := [name for name in names if name.endswith("/") and fnmatchcase(name[:-1], pattern)]:
        hint = f"It matches folders ({enumerated(matching)}), not files: name each, in a list of URIs"
    elif names:
        hint = f"The folder holds {enumerated(names)}"
    return ObjectNotFoundError("no file matches this pattern", uri=label, hint=hint)


def no_shard(
    store: Store, label: str, root: str, listed: Sequence[ObjectInfo], suffixes: Sequence[str] = ()
) -> ObjectNotFoundError:
    """Return the error for a folder without shards; it says what the folder holds."""
    return _without_shards(label, _names_in(store, root) or list(map(_name, listed)), suffixes)


def _without_shards(label: str, names: Sequence[str], suffixes: Sequence[str] = ()) -> ObjectNotFoundError:
    others = [name for name in names if name.endswith(_OTHER_WEIGHTS)]
    hidden = [name for name in names if name.startswith(".") and name.endswith(SHARD_SUFFIX)]
    steps = ["Name one of its folders"] if any(name.endswith("/") and name != "/" for name in names) else []
    if {"blobs/", "snapshots/"} <= set(names):  # the layout of the cache of huggingface_hub
        steps = ["Name a folder in its snapshots/, one for each revision"]
    if "/" in names:  # a folder with an empty name: no URI can name it
        steps.append("Names there have two slashes in a row: name the files")
    if hidden:
        steps.append(f"{_shown(hidden[0])} is hidden, so the folder is loaded without it: rename it, or name it itself")
    unread = next(((name, said) for name in others for end, said in _UNREAD.items() if name.endswith(end)), None)
    if suffixes and unread:
        steps.append(f"{_shown(unread[0])} {unread[1]}")
    elif suffixes and others:
        steps.append(f"{_shown(others[0])} does not seem to be a whole model: name the file to load it")
    elif others:
        steps.append(f"{_shown(others[0])} has another format: convert it, or fetch the *.safetensors")
    hint = ". ".join(steps) or _CHECK_IT
    held = enumerated(sorted(names, key=lambda name: not name.endswith(("/", *_OTHER_WEIGHTS))))
    return ObjectNotFoundError(f"the folder holds no *.safetensors file, but {held}", uri=label, hint=hint)


def _shown(name: str) -> str:
    return printable(name[:SHOWN_CHARACTERS])


def _names_in(store: Store, folder: str) -> list[str] | None:
    """Return the names in a folder; None if the store cannot list it."""
    if not isinstance(store, PeekingStore):
        return None
    try:
        return list(store.peek(folder))
    except Exception:  # the names only improve a message
        return None


def _name(info: ObjectInfo) -> str:
    return info.path.rpartition("/")[2]
