"""Which URIs one store has together."""

from __future__ import annotations

import pytest
from each_row import each_row

from streamer.core.checkpoint.checkpoint_in_folder import are_of_one_folder


@each_row("folder", ["/models/llama", "s3://bucket", "s3a://bucket/a/b", "gs://b/x y", "az://c", ""])
def test_shards_of_one_folder_are_together(folder):
    assert are_of_one_folder(f"{folder}/a.safetensors", f"{folder}/model-00002-of-00003.safetensors")


@each_row(
    "other",
    [
        "s3://bucket/other/b.safetensors",
        "s3://else/folder/b.safetensors",
        "gs://bucket/folder/b.safetensors",
        "s3://bucket/folder/b.safetensors?versionId=7",
        "s3://bucket/folder/*.safetensors",
        "s3://bucket/folder/b%20c.safetensors",
        "s3://bucket/folder/b.safetensors#1",
        "s3://bucket/folder/..safetensors",
        "s3://bucket/folder/model.safetensors.index.json",
        "s3://bucket/folder/",
        "s3://bucket/folder/sub.folder",
    ],
)
def test_what_means_more_than_its_name_is_by_itself(other):
    assert not are_of_one_folder("s3://bucket/folder/a.safetensors", other)


def test_a_relative_folder_is_one_folder():
    assert are_of_one_folder("models/a.safetensors", "models/b.safetensors")


@pytest.mark.parametrize(
    "folder", ["https://host/x", "hf://org/model", "nfs://server/x", "simplecache::s3://b", "x:models"]
)
def test_schemes_whose_stores_are_of_one_url_are_by_themselves(folder):
    assert not are_of_one_folder(f"{folder}/a.safetensors", f"{folder}/b.safetensors")
