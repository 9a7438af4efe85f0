"""The manifest as a value: it survives being written, and fits exactly the shard it was made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from each_row import each_row

from streamer.core.errors import ManifestError
from streamer.core.format.header import TensorEntry
from streamer.core.format.manifest import (
    Manifest,
    ShardManifest,
    TensorDigest,
    check_shard,
    parse_manifest,
    render_manifest,
)

MANIFEST = Manifest(
    {
        "a.safetensors": ShardManifest(
            120, {"w": TensorDigest("F32", (2, 3), 24, 0xE3069283), "none": TensorDigest("BF16", (0, 7), 0, 0)}
        )
    }
)
ENTRIES = [
    TensorEntry(name="w", dtype="F32", shape=(2, 3), begin=96, end=120),
    TensorEntry(name="none", dtype="BF16", shape=(0, 7), begin=120, end=120),
]


def test_what_is_written_is_read_again() -> None:
    assert parse_manifest(render_manifest(MANIFEST), uri="m") == MANIFEST


def test_a_manifest_is_json_with_format_version_and_algorithm() -> None:
    document = json.loads(render_manifest(MANIFEST))
    assert (document["format"], document["version"], document["algorithm"]) == ("streamer.manifest", 1, "crc32c")
    tensor = document["shards"]["a.safetensors"]["tensors"]["w"]
    assert tensor == {"dtype": "F32", "shape": [2, 3], "bytes": 24, "crc32c": "e3069283"}


def changed(change: Callable[[Any], Any]) -> bytes:
    document = json.loads(render_manifest(MANIFEST))
    change(document)
    return json.dumps(document).encode()


def tensor_of(document: Any) -> Any:
    return document["shards"]["a.safetensors"]["tensors"]["w"]


@each_row(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"format": "streamer.manifest"}',
        changed(lambda document: document.update(version=2)),
        changed(lambda document: document.update(algorithm="md5")),
        changed(lambda document: document.update(format="other")),
        changed(lambda document: document.update(shards=[])),
        changed(lambda document: document["shards"].update({"b": 7})),
        changed(lambda document: tensor_of(document).pop("crc32c")),
        changed(lambda document: tensor_of(document).update(crc32c="E3069283")),
        changed(lambda document: tensor_of(document).update(crc32c=1)),
        changed(lambda document: tensor_of(document).update(bytes=-1)),
        changed(lambda document: tensor_of(document).update(bytes=True)),
        changed(lambda document: tensor_of(document).update(shape="23")),
        changed(lambda document: tensor_of(document).update(dtype=None)),
    ],
)
def test_a_malformed_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestError, match="manifest"):
        parse_manifest(data, uri="m")


def test_a_manifest_fits_the_shard_it_was_made_of() -> None:
    check_shard("a.safetensors", 120, ENTRIES, MANIFEST, uri="m")


@each_row(
    ("difference", "name", "size_bytes", "entries"),
    [
        ("has no shard 'b.safetensors'", "b.safetensors", 120, ENTRIES),
        ("has 121 bytes, in the manifest 120", "a.safetensors", 121, ENTRIES),
        ("lacks its tensor 'none'", "a.safetensors", 120, ENTRIES[:1]),
        ("'x' of shard 'a.safetensors' is not in it", "a.safetensors", 120, [*ENTRIES, ENTRIES[1]._replace(name="x")]),
        ("has dtype I32, in the manifest F32", "a.safetensors", 120, [ENTRIES[0]._replace(dtype="I32"), ENTRIES[1]]),
        ("has shape", "a.safetensors", 120, [ENTRIES[0]._replace(shape=(3, 2)), ENTRIES[1]]),
        ("has size in bytes 23", "a.safetensors", 120, [ENTRIES[0]._replace(end=119), ENTRIES[1]]),
    ],
)
def test_a_difference_is_refused_and_reported(
    difference: str, name: str, size_bytes: int, entries: list[TensorEntry]
) -> None:
    with pytest.raises(ManifestError, match="does not fit") as caught:
        check_shard(name, size_bytes, entries, MANIFEST, uri="m")
    assert difference in str(caught.value)
    assert "python -m streamer manifest" in str(caught.value)


def test_an_empty_tensor_has_the_digest_of_no_bytes() -> None:
    lying = Manifest({"a": ShardManifest(8, {"none": TensorDigest("BF16", (0, 7), 0, 5)})})
    with pytest.raises(ManifestError, match="is empty"):
        check_shard("a", 8, ENTRIES[1:], lying, uri="m")
