"""Authenticates the encrypted files of a pull before any of them gets its final name, as a load with the key would.

Guarantees: every byte of every tensor was authenticated, every file of tensors is encrypted with the key, and a
checkpoint has all of its files unless the user chose files by patterns. The files are read from the disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack

from streamer._checkpoint_headers import open_checkpoint
from streamer._full_read import read_in_full
from streamer._pull.checkpoints import Copied, header_of, is_of
from streamer.core.encryption.keys import KeyOption
from streamer.core.encryption.sealed_files import SealedParameters, parsed_parameters
from streamer.core.errors import StreamerError, TamperedError
from streamer.core.format.shard_names import SHARD_SUFFIX
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings
from streamer.core.other_formats.tensorizer import SUFFIX as TENSORIZER_SUFFIX
from streamer.core.request.request import Request

__all__ = ["authenticate"]


def authenticate(copied: Copied, key: KeyOption, settings: Settings, options: Options | None, *, is_whole: bool) -> int:
    """Read all files of tensors; return their number.

    Args:
        copied: The files.
        key: As for `streamer.load`.
        settings: Limits for headers.
        options: As for `streamer.load`.
        is_whole: No file was left out by the user.

    Raises:
        TamperedError: a file is not as it was saved, or not encrypted, or one of its checkpoint is missing.
        EncryptionKeyError: the key is another one, or cannot be used.
        FormatError: a header is malformed.
        OSError: a file cannot be read.
    """
    with ExitStack() as opened:
        uri_of: dict[str, str] = {}  # paths on this disk, and where the files came from
        groups: dict[str, list[str]] = {}
        counts: dict[str, int] = {}
        for name, info in copied.infos.items():
            if not is_of(name, SHARD_SUFFIX) and not is_of(name, TENSORIZER_SUFFIX):
                continue
            descriptor = copied.opened(name)
            opened.callback(os.close, descriptor)
            path = f"/proc/self/fd/{descriptor}"  # the files have no final names yet
            uri_of[path] = info.uri
            group = name  # a file of Tensorizer is a checkpoint of its own
            if is_of(name, SHARD_SUFFIX):
                parameters = _parameters(descriptor, info.uri, settings)
                group, counts[parameters.checkpoint] = parameters.checkpoint, parameters.shards
            groups.setdefault(group, []).append(path)
        for group, paths in groups.items():
            _authenticate(paths, uri_of, key, options)
            if is_whole and len(paths) < counts.get(group, 1):  # authentic by now, as all of the header is
                what = f"{len(paths)} of the {counts[group]} files of the encrypted checkpoint are there"
                raise TamperedError(what, uri=uri_of[paths[0]], hint="Get it again from where it was saved")
        return len(uri_of)


def _parameters(descriptor: int, uri: str, settings: Settings) -> SealedParameters:
    parameters = parsed_parameters(header_of(os.dup(descriptor), uri, settings).metadata, uri)
    if parameters is None:
        hint = "Pull without the key, or leave the file out with --exclude, if that is right"
        raise TamperedError("a key is given, and the file is not encrypted", uri=uri, hint=hint)
    return parameters


def _authenticate(paths: list[str], uri_of: Mapping[str, str], key: KeyOption, options: Options | None) -> None:
    try:
        request = Request(uri=paths, key=key, options=options, progress=False)
        read_in_full(open_checkpoint(request, uses_cache=False, any_format=True), request.progress)
    except StreamerError as error:
        error.uri = uri_of.get(error.uri or "", error.uri)
        raise
