r"""Recognises other kinds of files, which often stand in place of a safetensors file, by their first bytes. Pure.

A safetensors file begins with the length of its header, whose upper bytes are zero. Nearly all beginnings here are not
an allowed length, but a few are the length of a header of some megabytes. So this module is used only if the length is
wrong, or if no JSON follows the length.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from streamer.core.quoting import quoted


class FileKind(NamedTuple):
    """A description of a file's kind, and a hint for the user."""

    what: str
    hint: str


_CONVERT = (
    "Take the model's *.safetensors instead, or convert it: "
    "safetensors.torch.save_file(torch.load(file, weights_only=True), 'model.safetensors')"
)
_DOWNLOAD = "It was saved in place of the file: download the file again, with a login if it needs one"

# Patterns of the first eight bytes. A pickle's third byte is its first instruction.
_BEGINNINGS: tuple[tuple[re.Pattern[bytes], FileKind], ...] = tuple(
    (re.compile(beginning, re.DOTALL | re.IGNORECASE), FileKind(what, hint))
    for beginning, what, hint in (
        (
            rb"\0{8}",
            "a file that begins with zeros",
            "A download or copy that was not finished leaves such a file: fetch it again",
        ),
        (rb"version ", "a Git LFS pointer", "Fetch the file itself with `git lfs pull`"),
        (rb"\x80[\x02-\x05][\x95}\]c(X\x8a\x8c]", "a Python pickle, as torch.save writes it (*.bin, *.pt)", _CONVERT),
        (rb"PK\x03\x04", "a zip archive, as torch.save writes it (*.bin, *.pt, *.pth)", _CONVERT),
        (rb"GGUF", "a GGUF file, as llama.cpp reads it", "Take the model's *.safetensors instead"),
        (rb"\s*<(!doctyp|html|head|body)", "a web page (HTML)", _DOWNLOAD),
        (rb"\s*<(\?xml|error)", "an XML document, perhaps a storage's error", _DOWNLOAD),
        (rb"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes it (*.h5)", "Take the model's *.safetensors instead"),
        (rb"\x93NUMPY", "an array of numpy (*.npy)", "Save it again with safetensors.numpy.save_file"),
        (rb"\x1f\x8b\x08", "compressed with gzip", "Decompress it first, or ask the server not to compress it"),
        (rb"\x28\xb5\x2f\xfd", "compressed with zstd", "Decompress it first"),
        (
            rb"\s*[{\[]\s*[\"\]}{]",
            "JSON text",
            "Read it: it may be an error, or an index, whose name ends in .safetensors.index.json",
        ),
    )
)


def foreign_format(prefix: bytes) -> FileKind | None:
    r"""Recognise another kind of file; None if the beginning matches none.

    Example:
        >>> foreign_format(b"GGUF\x03\0\0\0").what
        'a GGUF file, as llama.cpp reads it'
    """
    match = next((foreign for beginning, foreign in _BEGINNINGS if beginning.match(prefix)), None)
    if match is None and prefix.isascii() and prefix.decode().isprintable():
        hint = "It is of another format, or an error page that was saved as a file"
        return FileKind(f"text that begins with {quoted(prefix.decode())}", hint)
    return match
