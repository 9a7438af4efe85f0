"""Sends the files that a library saves to any URL: weights from memory, and small files from a private folder.

Guarantees: all bytes are sent before a file shows up, and the index of a checkpoint, or its only file, shows up last;
after an error no file stays. Weights need no disk if the library writes them by a name that is replaced here; otherwise
the private folder holds them until they are sent. Refuses a folder that is not empty.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any

from streamer._locate_shards import opened_store
from streamer._push.order import turn
from streamer._save.arguments import SaveOptions
from streamer._save.parts import Again, ShardBytes
from streamer._save.saved_tensors import SavedTensors
from streamer._save.saving import SaveReport
from streamer._save.writing import Writing, quiet_writing
from streamer._versions import refuse_version
from streamer.core.errors import OptionError, UsageError
from streamer.core.folders.private_folders import private_folder
from streamer.core.format.header_writer import in_file_order, render_header
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.path_objects import text_of
from streamer.core.secrets.redact import redact
from streamer.core.shards.other_weights import check_replaceable, weights_in_the_way
from streamer.core.store.names import name_in
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.sources import Store
from streamer.integrations.routed_call import RoutedName, routed

_ENCRYPT = "Save the weights with streamer.save(model, url, key=…), and the other files with the library"
_INSTEAD = {
    "key": _ENCRYPT,
    "hide_names": _ENCRYPT,
    "max_shard_bytes": "The library's name for it is max_shard_size",
    "overwrite": "Leave it out: the folder must be empty",
    "progress": "Leave it out: the library shows its own",
}

GIT_FILE = ".gitattributes"  # each repository of the Hub has one, from its beginning
_NOTHING_WRITTEN = "the library wrote no file: of the processes of a group, only one writes"

_Save = Callable[[str], object]
# The names by which the libraries write a file; the arguments are tensors, a path and metadata.
WRITERS: Mapping[str, RoutedName] = {
    module: RoutedName(module, name, ("safetensors.torch", "save_file"), position=1)
    for module, name in (
        ("transformers.modeling_utils", "safe_save_file"),
        ("accelerate.utils.other", "safe_save_file"),
        ("peft.peft_model", "safe_save_file"),
    )
} | {"safetensors.torch": RoutedName("safetensors.torch", "save_file", position=1)}


def saved_folder(
    save: _Save,
    uri: Any,
    modules: Sequence[str],
    *,
    storage_options: Mapping[str, Any] | None,
    options: Options | None,
) -> SaveReport:
    """Call a library that saves into a folder, and send the folder to a URL."""
    began, settings = time.perf_counter(), resolve(options)
    with (
        opened_store(uri, storage_options, None, settings) as store,
        private_folder() as folder,
        quiet_writing(store, uri, settings) as writing,
    ):
        refuse_version(text_of(uri), storage_options, settings)
        if any(name_in(info.path) != GIT_FILE for info in store.find(store.root)):
            hint = "Save to another place, or remove the files: they are never replaced"
            raise UsageError("the folder is not empty", uri=redact(uri), hint=hint)
        sending = _Sending(writing, store, settings, os.path.abspath(folder))
        writers = {WRITERS[each]: sending.send_tensors for each in modules}
        with routed(sending.folder, writers):
            save(folder)
        sending.send_files()
        files = sending.show()
        writing.complete()
    seconds, remarks = time.perf_counter() - began, () if files else (_NOTHING_WRITTEN,)
    return SaveReport(redact(uri), tuple(files), sending.tensors, writing.sent_bytes, seconds, remarks=remarks)


def refuse_hub(named: Mapping[str, Any]) -> None:
    """Refuse to push to the Hub, because the model is saved to the URL."""
    if named.get("push_to_hub"):
        raise OptionError("push_to_hub=True names a second place", hint="Leave it out: the files go to the URL")


def refuse_arguments_of_save(named: Mapping[str, Any], save: Callable[..., object]) -> None:
    """Refuse arguments of `streamer.save` that a library would take as its own and ignore."""
    own = signature(save).parameters
    for each in fields(SaveOptions):
        if each.name in named and each.name not in own:
            what = f"{each.name}= is an argument of streamer.save, which the library ignores"
            raise OptionError(what, hint=_INSTEAD.get(each.name, "Leave it out"))


def check_saves(saved: Any) -> None:
    """Refuse an object without ``save_pretrained``."""
    if isinstance(saved, type) or not callable(getattr(saved, "save_pretrained", None)):
        hint = "Pass a model, and after the URL its tokenizer or processor"
        raise UsageError(f"{type(saved).__name__} has no save_pretrained", hint=hint)


class _Sending:
    def __init__(self, writing: Writing, store: Store, settings: Settings, folder: str) -> None:
        self._writing, self._root, self.folder = writing, store.root.rstrip("/"), folder
        self._store, self._settings = store, settings
        self._uploads: dict[str, OwningUpload] = {}
        self.tensors = 0

    def send_tensors(self, path: str, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bool:
        """Send the bytes of a file that the library would write."""
        saved = SavedTensors(tensors)
        layouts = in_file_order(saved.layouts)
        shard = ShardBytes(render_header(layouts, metadata or {}), saved, layouts, has_digests=False)
        self._send(os.path.relpath(path, self.folder), shard.size_bytes, shard.content)
        self.tensors += len(layouts)
        return True

    def send_files(self) -> None:
        """Send the files that the library has written."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(folder, name)
                size_bytes = os.path.getsize(path)
                self._send(os.path.relpath(path, self.folder), size_bytes, Again(partial(_content, path, size_bytes)))

    def show(self) -> list[str]:
        """Let all files show up, and return their names."""
        names = sorted(self._uploads, key=partial(turn, self._uploads.keys()))
        older = weights_in_the_way(self._store, [f"{self._root}/{name}" for name in names])  # in a sub-folder
        check_replaceable(self._store, older, self._settings, hint="Save to another place, or remove them")
        for name in names:
            if name == names[-1]:
                self._writing.confirm()
            self._writing.show(f"{self._root}/{name}", self._uploads[name], None, names_others=name == names[-1])
        return names

    def _send(self, name: str, size_bytes: int, pieces: Iterable[memoryview]) -> None:
        self._uploads[name] = self._writing.send(f"{self._root}/{name}", size_bytes, pieces, None)


def _content(path: str, size_bytes: int) -> Iterator[memoryview]:
    if not size_bytes:
        return
    with open(path, "rb") as file:
        # The map is closed when nothing refers to it any more: a small file is held until it shows up.
        yield memoryview(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ))
