"""Decides which files of a model are pulled while its weights stay at the URL: one rule for every library.

All files are pulled, with few exceptions: a tokenizer may have ``bpe.codes`` or ``source.spm``, and code may read a
``.yaml``. The exceptions: weights in any format; code and pickles (which run code when they are loaded), unless the
user trusts them; hidden files, which are notes of tools; and large files, with a warning. For a tokenizer or processor,
sub-folders are pulled too (``additional_chat_templates``, ``qformer_tokenizer``), but not those of other checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from streamer._pull.listing import is_safe, is_selected
from streamer.core.errors import AccessDeniedError
from streamer.core.folders.private_folders import make_folders_above, room_in
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.quoting import printable
from streamer.core.shards.shards import sized
from streamer.core.shards.small_files import MOST_BYTES, read_files, without_large
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import FolderStore, ObjectInfo, Store

MOST_FOLDERS = 64  # a folder of many models has more; a tokenizer has one or two
LARGEST_BYTES = 128 << 20  # the limit of one file: a tokenizer.json has 40 MB; unrelated data are larger

_WEIGHTS = (
    *("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.ggml", "*.h5", "*.keras", "*.msgpack", "*.ot"),
    *("*.onnx", "*.onnx_data", "*.onnx.data", "*.tflite", "*.mlmodel", "*.tensors", "*.npz", "*.distcp", "*.nemo"),
    *("*.pdparams", "*.engine", "original/*"),  # original/ has Llama's format beside that of Hugging Face
)
_CODE = ("*.py", "*.pyc", "*.so", "*.pkl", "*.pickle", "*.joblib")
_HIDDEN = (".*", "*/.*")
# Libraries look for files of these names. Such a file is never left out for lack of room or permission.
USUAL = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt")

_log = OwnLogger()


def left_behind(*, takes_code: bool) -> tuple[str, ...]:
    """Return patterns of the files that stay where they are, as for ``pull --exclude``.

    Example:
        >>> [is_selected(name, (), left_behind(takes_code=False)) for name in ("bpe.codes", "a.gguf", "a.py")]
        [True, False, False]
    """
    return (*_WEIGHTS, *_HIDDEN, *(() if takes_code else _CODE))


def files_of_sub_folders(store: Store, label: str) -> dict[str, ObjectInfo]:
    """List the files one level below the store's root, by relative name, without the folders that hold weights."""
    root = store.root.rstrip("/")

    def listed(folder: str) -> dict[str, ObjectInfo]:
        with suppress(AccessDeniedError):
            infos = store.find(f"{root}/{folder}" if root else folder)
            return {f"{folder}/{info.path.rpartition('/')[2]}": info for info in infos}
        return {}

    folders: list[str] = []
    if isinstance(store, FolderStore):
        with suppress(AccessDeniedError):
            folders = [each for each in store.folders(root or "/") if is_selected(each, (), _HIDDEN)]
    if len(folders) > MOST_FOLDERS:
        _log.warning("%s: its %d sub-folders are too many to look into", printable(label), len(folders))
        return {}
    found: dict[str, ObjectInfo] = {}
    for files in in_parallel(listed, folders, role="list"):
        if not any(is_selected(name, _WEIGHTS, ()) for name in files):  # a checkpoint of a training run
            found.update(files)
    return found


def write_small_files(
    path: str, store: Store, listed: Mapping[str, ObjectInfo], settings: Settings, *, takes_code: bool
) -> None:
    """Write the small files of a folder into another one."""
    patterns = left_behind(takes_code=takes_code)
    wanted = {name: info for name, info in listed.items() if is_selected(name, (), patterns) and is_safe(name)}
    contents = _contents(store, wanted, settings)
    with room_in(path):
        for name, content in contents.items():
            file = Path(path, name)
            make_folders_above(file, path)
            file.write_bytes(content)


def _contents(store: Store, wanted: Mapping[str, ObjectInfo], settings: Settings) -> dict[str, bytes]:
    """Read files; leave out, with a warning, files of unusual names that may not be read."""
    try:
        infos = dict(zip(wanted, sized(store, list(wanted.values())), strict=True))
        infos = _fitting(without_large(infos, LARGEST_BYTES))
        return dict(zip(infos, read_files(store, list(infos.values()), settings), strict=True))
    except AccessDeniedError as error:
        rest = {name: info for name, info in wanted.items() if info.uri != error.uri or _is_usual(name)}
        if len(rest) == len(wanted):
            raise
        _log.warning("%s: not pulled, as it may not be read", printable(str(error.uri)))
        return _contents(store, rest, settings)


def _fitting(infos: Mapping[str, ObjectInfo]) -> dict[str, ObjectInfo]:
    """Leave out the largest files of unusual names until the rest fits into `MOST_BYTES`."""
    unusual = {name: info for name, info in infos.items() if not _is_usual(name)}
    room_bytes = MOST_BYTES - sum(_size(info) for name, info in infos.items() if name not in unusual)
    left = {}
    for name, info in sorted(unusual.items(), key=lambda each: _size(each[1])):
        room_bytes -= _size(info)
        if room_bytes < 0:
            _log.warning("%s: not pulled, as the files beside the weights are too large together", printable(info.uri))
            left[name] = info
    return {name: info for name, info in infos.items() if name not in left}


def _is_usual(name: str) -> bool:
    return is_selected(name, USUAL, ())


def _size(info: ObjectInfo) -> int:
    return info.size_bytes or 0
