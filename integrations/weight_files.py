"""Writes the shards of a checkpoint at any URL as real files, for a library that reads only files.

Guarantees: every tensor is read and verified as by `streamer.load`, with the same bound on memory. A local file is
linked, not copied. Refuses to begin if the disk has too little room.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import ExitStack

from streamer.compat.hooks import SWITCH
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.errors import UsageError
from streamer.core.options.switches_and_sizes import is_on
from streamer.core.quoting import size_text
from streamer.core.tensors.frameworks import framework_of
from streamer.integrations.shard_handles import WholeCheckpoint

__all__ = ["write_weight_files"]


def write_weight_files(checkpoint: WholeCheckpoint, folder: str, shards: Collection[str]) -> None:
    """Write shards into a folder.

    Args:
        checkpoint: The checkpoint of the shards.
        folder: The private folder; an existing file of a shard's name is replaced.
        shards: Names that `WholeCheckpoint.shard_of_tensor` returned.

    Raises:
        UsageError: the disk has too little room.
        StreamerError: as `streamer.load`.
    """
    copied: dict[str, dict[str, ShardTensor]] = {}
    for name in shards:
        path, local = os.path.join(folder, name), checkpoint.local_file(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path):
            os.unlink(path)
        if local is None:
            copied[path] = checkpoint.tensors_of_file(name)
        else:
            os.symlink(local, path)
    needed_bytes = sum(_size_bytes(each) for tensors in copied.values() for each in tensors.values())
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise _no_room(folder, f"{size_text(free_bytes)} are free", needed_bytes, checkpoint.label)
    try:
        _copy(checkpoint, copied)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_room(folder, str(error.strerror), needed_bytes, checkpoint.label) from error


def _copy(checkpoint: WholeCheckpoint, copied: Mapping[str, Mapping[str, ShardTensor]]) -> None:
    """Read all shards as bytes in one plan, and write each tensor at its offset."""
    with ExitStack() as stack:
        places: dict[str, tuple[int, int]] = {}
        wanted: list[ShardTensor] = []
        for path, tensors in copied.items():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            header = _header(tensors, checkpoint.metadata())
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
