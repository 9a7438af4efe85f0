"""Authenticates the encrypted files of a pull before any of them gets its final name, as a load with the key would.

Guarantees: every byte of every encrypted file was authenticated, there is at least one, and a checkpoint has all of its
files unless the user chose files by patterns. Every other file is a text, an image or a tokenizer: by its content,
whatever its name is, so who can write the storage does not choose what is checked. The files are read from the disk.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from streamer._check import read_in_full
from streamer._checkpoint_headers import open_checkpoint
from streamer._pull.checkpoints import Copied, header_of
from streamer._pull.record import PullArguments
from streamer.backends.private_names.python import PythonUnpickler
from streamer.core.encryption.sealed_files import SealedParameters, parsed_parameters
from streamer.core.errors import FormatError, StreamerError, TamperedError, TruncatedError
from streamer.core.options.settings import Settings
from streamer.core.other_formats.interface import HEAD_BYTES
from streamer.core.other_formats.tensorizer import MAGIC as TENSORIZER_MAGIC
from streamer.core.request.request import Request

READ_BYTES = 1 << 20
_IMAGE = re.compile(rb"\x89PNG\r\n|\xff\xd8\xff|GIF8|%PDF-|RIFF....WEBP", re.DOTALL)
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".pdf", ".webp")
# A vocabulary of SentencePiece: its first piece with its score, and the beginning of the second piece.
_VOCABULARY = re.compile(rb"\n[\x01-\x7f]\n[\x01-\x7f][^\0]{1,127}\x15.{4}(?:\x18.)?\n", re.DOTALL)
_VOCABULARY_NAME = re.compile(r".*(\.spm|\.model(\.v[0-9]+)?)")


def authenticate(copied: Copied, wanted: PullArguments, settings: Settings, *, is_whole: bool) -> int:
    """Read all files that may hold tensors; return their number."""
    with ExitStack() as opened:
        uri_of: dict[str, str] = {}  # paths on this disk, and where the files came from
        groups: dict[str, list[str]] = {}
        counts: dict[str, int] = {}
        for name, info in copied.infos.items():
            descriptor = copied.opened(name)
            opened.callback(os.close, descriptor)
            if _holds_no_tensors(name, descriptor):
                continue
            path = f"/proc/self/fd/{descriptor}"  # the files have no final names yet
            uri_of[path] = info.uri
            parameters = _parameters(descriptor, info.uri, settings)
            group = name if parameters is None else parameters.checkpoint
            groups.setdefault(group, []).append(path)
            counts[group] = 1 if parameters is None else parameters.shards
        if not uri_of:
            what = f"a key is given, and none of the {len(copied.infos)} files is encrypted: nothing was authenticated"
            raise TamperedError(what, uri=copied.label, hint="Pull without the key if that is right")
        for group, paths in groups.items():
            _authenticate(paths, uri_of, wanted)
            if is_whole and len(paths) < counts[group]:  # authentic by now, as all of the header is
                what = f"{len(paths)} of the {counts[group]} files of the encrypted checkpoint are there"
                raise TamperedError(what, uri=uri_of[paths[0]], hint="Get it again from where it was saved")
        return len(uri_of)


def _holds_no_tensors(name: str, descriptor: int) -> bool:
    """Say whether a file is a text that is no pickle, an image, or a vocabulary of a tokenizer.

    A name counts only for formats that no program takes for weights under this name.
    """
    head = os.pread(descriptor, HEAD_BYTES, 0)
    if name.lower().endswith(_IMAGE_SUFFIXES) and _IMAGE.match(head):
        return True
    if _VOCABULARY_NAME.fullmatch(name.lower()) and _VOCABULARY.match(head):
        return True
    return _is_text(descriptor) and not _is_pickle(descriptor)


def _is_text(descriptor: int) -> bool:
    """Say whether a file is text in UTF-8 without a zero byte, which every other format of tensors has."""
    decoder, position = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        while data := os.pread(descriptor, READ_BYTES, position):
            decoder.decode(data)
            position += len(data)
            if b"\0" in data:
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _is_pickle(descriptor: int) -> bool:
    """Say whether a text is a pickle of protocol 0 that makes objects: other texts hold no tensors for torch.load.

    It is read as `pickle.load` reads it, up to its last byte, because that runs code before it notices a wrong end; and
    torch.load reads several pickles from one file.
    """
    try:
        with open(os.dup(descriptor), "rb") as file:
            file.seek(0)
            unpickler = _ObjectFinder(file, encoding="latin1")  # takes every text that another encoding takes
            while True:  # until the end of the file, or what is no pickle, raises an exception
                unpickler.load()
    except _ObjectError:
        return True
    except Exception:  # a text may be malformed in every way
        return False


class _ObjectError(Exception):
    """A pickle makes an object."""


class _Named(type):
    """A class of classes, because a pickle may set the state of a class, too."""

    def __setstate__(cls, state: Any) -> None:
        raise _ObjectError


class _NamedObject(metaclass=_Named):
    """Stands for everything that a pickle names; raises as soon as it is called."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        raise _ObjectError


class _ObjectFinder(PythonUnpickler):  # type: ignore[misc]  # its type is not known
    """Imports and calls nothing."""

    def find_class(self, module: str, name: str) -> Any:
        del module, name
        return _NamedObject

    def get_extension(self, code: int) -> None:
        del code
        raise _ObjectError  # a name that a program has registered under a number: no text has one

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _parameters(descriptor: int, uri: str, settings: Settings) -> SealedParameters | None:
    """Return the parameters of an encrypted file; None for a file of Tensorizer, which is a checkpoint of its own."""
    if os.pread(descriptor, len(TENSORIZER_MAGIC), 0) == TENSORIZER_MAGIC:
        return None
    try:
        parameters = parsed_parameters(header_of(os.dup(descriptor), uri, settings).metadata, uri)
    except (FormatError, TruncatedError):
        parameters = None
    if parameters is None:
        hint = "If that is right, pull without the key, or leave the file out (--exclude), and remove one that is there"
        raise TamperedError("a key is given, and the file is not encrypted", uri=uri, hint=hint)
    return parameters


def _authenticate(paths: list[str], uri_of: Mapping[str, str], wanted: PullArguments) -> None:
    try:
        request = Request(uri=paths, key=wanted.key, context=wanted.context, options=wanted.options, progress=False)
        read_in_full(open_checkpoint(request, uses_cache=False, any_format=True), request.progress)
    except StreamerError as error:
        error.uri = uri_of.get(error.uri or "", error.uri)
        raise
