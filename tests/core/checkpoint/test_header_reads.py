"""Headers are parsed as they arrive; what is reported does not depend on which came first."""

import fsspec
import pytest
import torch
from each_row import each_row
from safetensors.torch import save

import streamer
from streamer.core.checkpoint.catalog import LEAST_FIRST_BYTES, _first_bytes, _Parser
from streamer.core.engine.session import SourceObject
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.store.sources import FileSource
from streamer.integrations.serving.weights_location import weights_of

HEADER = b"\x02\0\0\0\0\0\0\0{}"


def parser_of(*sizes):
    shards = [SourceObject(f"{number}.safetensors", FileSource("/"), size) for number, size in enumerate(sizes)]
    return _Parser(shards, resolve(None))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_the_first_of_several_malformed_headers_is_reported(order):
    parser = parser_of(10, 10, 10)
    for index in order:
        parser.parse([index], [memoryview(HEADER), memoryview(b"\x02\0\0\0\0\0\0\0[]"), memoryview(b"\xff" * 10)])
    assert list(parser.headers) == [0]
    with pytest.raises(streamer.HeaderError, match="JSON") as caught:
        parser.check()
    assert caught.value.uri == "1.safetensors"


def test_a_header_of_which_a_part_was_read_is_left_for_later():
    parser = parser_of(10, 10)
    parser.parse([1, 0], [memoryview(HEADER), memoryview(HEADER[:9])])
    assert parser.unfinished() == [1]
    assert parser.sizes[1] == 10
    parser.parse([1], [memoryview(b""), memoryview(HEADER)])
    assert parser.unfinished() == []
    assert set(parser.headers) == {0, 1}


# --- how much of a shard is read first: its header, and little more -------------------------------------------------


@each_row(
    ("size_bytes", "first_bytes"),
    [
        (10, 10),
        (LEAST_FIRST_BYTES, LEAST_FIRST_BYTES),
        (100_000, LEAST_FIRST_BYTES),
        (1 << 20, LEAST_FIRST_BYTES),
        (4 << 20, 64 << 10),
        (16 << 20, 256 << 10),
        (5 << 30, 256 << 10),
    ],
)
def test_a_small_shard_is_read_by_a_part(size_bytes, first_bytes):
    assert _first_bytes(size_bytes, resolve(None)) == first_bytes


def test_the_users_own_size_is_the_largest():
    assert _first_bytes(5 << 30, resolve(Options(header_bytes=8))) == 8
    assert _first_bytes(1 << 20, resolve(Options(header_bytes=1 << 20))) == LEAST_FIRST_BYTES


# --- what names a model twice: Mistral's layout beside the usual one, a revision beside a URL -----------------------

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
