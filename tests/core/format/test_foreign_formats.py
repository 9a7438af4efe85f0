"""Another kind of file in place of a safetensors file is called what it is."""

from __future__ import annotations

import gzip
import io
import pickle
import random
from struct import pack
from typing import Any

import pytest
import torch
from each_row import each_row

from streamer.core.errors import HeaderError
from streamer.core.format.header import header_size_bytes, parse_header

URI = "s3://bucket/model.safetensors"


def torch_saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


KINDS = [
    (b"version https://git-lfs", "a Git LFS pointer. Fetch the file itself with `git lfs pull`"),
    (b"<!DOCTYPE html><html>", "a web page"),
    (b"\n <html><head>", "a web page"),
    (b"<?xml version='1.0'?><Error>", "an XML document"),
    (pickle.dumps({"a": [1.0]}, protocol=2), "a Python pickle"),
    (pickle.dumps({"a": b"x" * 70_000}, protocol=4), "a Python pickle"),
    (torch_saved({"a": torch.zeros(3)}), "a zip archive, as torch.save writes it"),
    (torch_saved({"a": torch.zeros(3)}, _use_new_zipfile_serialization=False), "a Python pickle"),
    (b"GGUF\x03\0\0\0", "a GGUF file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (gzip.compress(b"x", mtime=1_700_000_000), "compressed with gzip"),
    (b'{"error": "no"}', "JSON text"),
    (bytes(100), "a file that begins with zeros"),
    (b"Not Found", "text that begins with 'Not Foun'"),
]


@each_row(("data", "words"), KINDS)
@each_row("size", [30, 10**10])
def test_another_kind_of_file_is_recognised(data: bytes, words: str, size: int) -> None:
    with pytest.raises(HeaderError) as caught:
        header_size_bytes(data, size, uri=URI)
    assert f"this is no safetensors file, but {words}" in str(caught.value)


def test_what_begins_with_a_possible_length_is_recognised_by_what_follows_it() -> None:
    data = gzip.compress(random.Random(1).randbytes(10**6), mtime=0)  # its first eight bytes are a header's of 0.6 MB
    assert header_size_bytes(data, len(data), uri=URI) < len(data)
    with pytest.raises(HeaderError, match="no safetensors file, but compressed with gzip"):
        parse_header(data, len(data), uri=URI)


def test_an_empty_file_is_called_that() -> None:
    with pytest.raises(HeaderError, match="the object is empty"):
        header_size_bytes(b"", 0, uri=URI)


@pytest.mark.parametrize("length", [640, 0x0480, 0x7D0000, 99_999_999])
def test_a_header_that_was_cut_short_is_not_taken_for_another_kind_of_file(length: int) -> None:
    with pytest.raises(HeaderError, match="does not fit") as caught:
        header_size_bytes(pack("<Q", length), 100, uri=URI)
    assert "no safetensors file, but" not in str(caught.value)
