"""What names a model twice: Mistral's layout beside the usual one, a revision beside a URL."""

from __future__ import annotations

import fsspec
import pytest
import torch
from safetensors.torch import save

import streamer
from streamer.integrations.serving.weights_location import weights_of

USUAL = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def written(fs, folder, *names):
    fs.makedirs(folder, exist_ok=True)
    for name in names:
        fs.pipe_file(f"{folder}/{name}", save({f"of {name}": torch.arange(4.0)}))


@pytest.mark.parametrize("second", ["consolidated.safetensors", "consolidated-00001-of-00001.safetensors"])
@pytest.mark.parametrize("scheme", ["file", "memory", "s3"])
def test_a_consolidated_copy_is_loaded_once_regression(request, tmp_path, scheme, second):
    server = request.getfixturevalue("s3_server") if scheme == "s3" else None
    options = server.storage_options() if server else {}
    folder = {"file": str(tmp_path), "memory": "/consolidated", "s3": f"private/models/{len(second)}"}[scheme]
    written(fsspec.filesystem(scheme, **options), folder, *USUAL, second)
    uri = folder if scheme == "file" else f"{scheme}://{folder}"
    with streamer.stream(uri, storage_options=options or None) as stream:
        assert {name for name, _ in stream} == {f"of {name}" for name in USUAL}
    assert any(second in remark for remark in stream.report.remarks)
    assert list(streamer.load(f"{uri}/{second}", storage_options=options or None)) == [f"of {second}"]


def test_a_consolidated_file_alone_is_the_model(tmp_path):
    written(fsspec.filesystem("file"), str(tmp_path), "consolidated.safetensors")
    assert list(streamer.load(tmp_path)) == ["of consolidated.safetensors"]


def test_other_files_beside_the_usual_shards_stay(tmp_path):
    written(fsspec.filesystem("file"), str(tmp_path), *USUAL, "adapter.safetensors")
    assert len(streamer.load(tmp_path)) == 3


@pytest.mark.parametrize("url", ["s3://bucket/m", "gs://bucket/m", "https://user:S3CR3T@host/m", "hf://owner/name"])
def test_a_revision_of_a_url_is_refused_regression(url):
    with pytest.raises(streamer.UsageError, match="revision") as caught:
        weights_of(url, None, "v2", None)
    assert "S3CR3T" not in str(caught.value)
    assert weights_of(url, None, None, None) == url


def test_a_revision_of_a_repository_is_read():
    assert weights_of("owner/not-downloaded", "sub", "v2", "/nowhere") == "hf://owner/not-downloaded@v2/sub"
