"""The weights of a private folder: its shards stay at the URL and are read from there, or are written as real files.

An index in the folder names the shards. If a library checks whether the shards exist, empty files stand for them.
Reading one of these files through `FolderWeights` gives the tensors of the URL, from one read plan of all shards.

Real files are for a library that reads only files. Guarantees: every tensor is read and verified as by `streamer.load`,
with the same bound on memory. A local file is linked, not copied. Refuses to begin if the disk has too little room.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from streamer.compat.hooks import SWITCH
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.errors import ObjectNotFoundError, UsageError
from streamer.core.folders.private_folders import make_folders_above, room_in
from streamer.core.format.index import parse_index
from streamer.core.options.switches_and_sizes import is_on
from streamer.core.quoting import size_text
from streamer.core.store.sources import ObjectInfo
from streamer.core.tensors.devices import Placement
from streamer.core.tensors.frameworks import framework_of
from streamer.integrations.library_calls import Location
from streamer.integrations.naming import is_accelerator
from streamer.integrations.read_ahead import ReadAhead
from streamer.integrations.shard_handles import WholeCheckpoint


def write_weight_files(checkpoint: WholeCheckpoint, folder: str, shards: Collection[str]) -> None:
    """Write shards into a folder."""
    copied: dict[str, str] = {}  # the name of the shard by the path of the file
    for name in shards:
        path, local = os.path.join(folder, name), checkpoint.local_file(name)
        make_folders_above(Path(path), folder)
        if os.path.lexists(path):
            os.unlink(path)
        if local is None:
            copied[path] = name
        else:
            os.symlink(local, path)
    needed_bytes = sum(
        _size_bytes(each) for name in copied.values() for each in checkpoint.tensors_of_file(name).values()
    )
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise _no_room(folder, f"{size_text(free_bytes)} are free", needed_bytes, checkpoint.label)
    try:
        _copy(checkpoint, copied)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_room(folder, str(error.strerror), needed_bytes, checkpoint.label) from error


def _copy(checkpoint: WholeCheckpoint, copied: Mapping[str, str]) -> None:
    """Read all shards as bytes in one plan, and write each tensor at its offset."""
    with ExitStack() as stack:
        places: dict[str, tuple[int, int]] = {}
        wanted: list[ShardTensor] = []
        for path, shard in copied.items():
            tensors = checkpoint.tensors_of_file(shard)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            header = _header(tensors, checkpoint.metadata_of_file(shard))
            _write(descriptor, memoryview(header), 0)
            first = min((each.entry.begin for each in tensors.values()), default=0)
            for name, each in tensors.items():
                places[name] = descriptor, len(header) + each.entry.begin - first
                wanted.append(ShardTensor(each.shard, each.entry._replace(dtype="U8", shape=(_size_bytes(each),))))
        for name, data in stack.enter_context(checkpoint.stream(wanted, framework_of("np", "cpu", None))):
            _write(places[name][0], memoryview(data), places[name][1])


def _header(tensors: Mapping[str, ShardTensor], metadata: Mapping[str, str]) -> bytes:
    """Return the header of a file whose tensors keep the order and the distances of the original."""
    first = min((each.entry.begin for each in tensors.values()), default=0)
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, entry in ((name, each.entry) for name, each in tensors.items()):
        offsets = [entry.begin - first, entry.end - first]
        entries[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns the tensors
    return len(text).to_bytes(8, "little") + text


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data.nbytes:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _no_room(folder: str, how_much: str, needed_bytes: int, label: str) -> UsageError:
    other = f"unset {SWITCH}" if is_on(SWITCH) else "install a version of the library that the log does not name"
    return UsageError(
        f"the weights must be written to {os.path.dirname(folder)} first, which takes {size_text(needed_bytes)}, "
        f"and {how_much}",
        uri=label,
        hint=f"Set TMPDIR to a folder with more room, or {other}",
    )


def _size_bytes(tensor: ShardTensor) -> int:
    return tensor.entry.end - tensor.entry.begin


PYTORCH = ("pt", "torch", "pytorch")


class FolderWeights:
    """All shards of one checkpoint, which a library loads from a private folder."""

    def __init__(
        self,
        folder: str,
        location: Location,
        *,
        listed: Sequence[ObjectInfo] | None = None,
        takes_parts: bool = False,  # the library will request rows of tensors
        goes_to_devices: bool = False,  # most tensors do, so the engine also reads local files
    ) -> None:
        self._goes_to_devices = goes_to_devices
        self.path, self._location = folder, location
        self._checkpoint = location.checkpoint(listed)
        self.shard_of_tensor = self._checkpoint.shard_of_tensor()
        self.shards = sorted(set(self.shard_of_tensor.values()))
        self.is_read = not self.shards
        self._plan = self._checkpoint.read_ahead(takes_parts=takes_parts)
        self._plans_of_shards: dict[str, ReadAhead] = {}  # by device
        self._devices: dict[str, Any] = {}
        self._lock = threading.Lock()

    def write_index(self, name: str, *, without: str | None = None) -> None:
        """Write an index of the shards, with the metadata of the checkpoint's own index."""
        if len(self.shards) > 1:
            self.shard_of_tensor = {tensor: shard for tensor, shard in self.shard_of_tensor.items() if shard != without}
            self.shards = [shard for shard in self.shards if shard != without]
        path = Path(self.path, name)
        metadata: dict[str, Any] = {}
        if path.exists() and not self._checkpoint.is_one_file:  # one file needs no index
            own = parse_index(path.read_bytes(), uri=self._location.label)
            metadata = dict(own.metadata)
            absent = [shard for shard in own.shards if shard not in self.shards]
            if absent:
                raise ObjectNotFoundError(
                    f"{name} names shard {absent[0][:80]!r}, which does not exist",
                    uri=self._location.label,
                    hint="Fetch it",
                )
        with room_in(self.path):
            path.write_bytes(json.dumps({"metadata": metadata, "weight_map": self.shard_of_tensor}).encode())

    def write_empty_files(self) -> None:
        """Create an empty file for each shard."""
        with room_in(self.path):
            for shard in self.shards:
                path = Path(self.path, shard)
                make_folders_above(path, self.path)
                path.touch()

    def write_weights(self) -> None:
        """Write each shard as a real file, for a reader that cannot be replaced; raises as `write_weight_files`."""
        self.stop()
        with room_in(self.path):
            write_weight_files(self._checkpoint, self.path, self.shards)

    def remove_weights(self) -> None:
        """Remove the files of `write_weights` or `write_empty_files`; existing memory maps of them stay valid."""
        for shard in self.shards:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, shard))

    def place(self, device_map: Mapping[str, Any]) -> None:
        """Read tensors of whole shards directly to their devices; call it before the first shard is taken."""
        placement = Placement({"": "cpu", **device_map})
        with self._lock:
            if not self._plans_of_shards:
                devices = {name: placement.of(name) for name in self.shard_of_tensor}
                self._devices = {name: device for name, device in devices.items() if is_accelerator(device)}

    def opened(self, path: str, framework: str = "pt", device: Any = "cpu", **others: Any) -> Any:
        """Open a shard as ``safe_open`` does; return None for any other file.

        Without options, safetensors itself maps a file that is in the page cache, which copies nothing.
        """
        name = self._name_of(path)
        if name is None or framework not in PYTORCH:
            return None
        warm = self._warm_file(name)
        if warm is not None:
            return safetensors.safe_open(warm, framework, device, **others)
        return self._checkpoint.opened_shard(name, device, self._plan)

    def opened_whole(self, path: str, framework: str = "pt", device: Any = "cpu", **others: Any) -> Any:
        """Open a shard whose tensors will all be taken, possibly for different devices; otherwise as `opened`."""
        name = self._name_of(path)
        if name is None or framework not in PYTORCH:
            return None
        warm = self._warm_file(name) if str(device) == "cpu" else None
        if warm is not None:
            return safetensors.safe_open(warm, framework, device, **others)
        return self._checkpoint.opened_whole_shard(name, device, self._shards_ahead("cpu"))

    def loaded(self, path: str, device: Any = "cpu", **_others: Any) -> dict[str, Any] | None:
        """Load a shard as ``load_file`` of safetensors does; return None for any other file."""
        name = self._name_of(path)
        if name is None:
            return None
        warm = self._warm_file(name) if str(device) == "cpu" else None
        if warm is not None:
            return dict(safetensors.torch.load_file(warm))
        return self._checkpoint.whole_shard(name, device, self._shards_ahead(device))

    def stop(self) -> None:
        """Stop reading in the background; tensors that are requested later are read one by one."""
        with self._lock:
            plans = [*self._plans_of_shards.values(), self._plan]
        for plan in plans:
            plan.stop()

    def cancel(self) -> None:
        """Stop all reads: later requests raise, for instance those of a thread that outlives a failed load."""
        self.stop()
        self._checkpoint.cancel()

    def _name_of(self, path: str) -> str | None:
        name = os.path.relpath(path, self.path)
        if name not in self.shards:
            return None
        self.is_read = True
        return name

    def _warm_file(self, name: str) -> str | None:
        is_mapped = self._location.options is None and not self._goes_to_devices and not self._devices
        return self._checkpoint.warm_file(name) if is_mapped else None

    def _shards_ahead(self, device: Any) -> ReadAhead:
        with self._lock:
            if str(device) not in self._plans_of_shards:
                plan = self._plans_of_shards[str(device)] = self._checkpoint.read_shards_ahead(device)
                for name, each in self._devices.items() if str(device) == "cpu" else ():
                    plan.place(name, each)
            return self._plans_of_shards[str(device)]
