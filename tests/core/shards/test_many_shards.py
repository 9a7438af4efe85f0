"""Shards that are named one by one: one store and one listing find those that lie in one folder."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest
import torch
from comparison import assert_same
from safetensors.torch import save_file

import streamer
from streamer.backends.s3.client import S3Client
from streamer.core.verification import by_manifest as manifest_verification

SHARDS = 40


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    random = torch.Generator().manual_seed(7)
    contents = {f"part-{i:02}.safetensors": {f"t{i}": torch.randn(30 + i, generator=random)} for i in range(SHARDS)}
    for name, tensors in contents.items():
        save_file(tensors, folder / name)
    return folder, contents


@pytest.fixture
def requests(monkeypatch):
    """Count what is asked of S3; everything is really asked."""
    counts: Counter[str] = Counter()
    call = S3Client.call

    def counted(self, method, *arguments, **named):
        counts[method] += 1
        return call(self, method, *arguments, **named)

    monkeypatch.setattr(S3Client, "call", counted)
    return counts


def all_of(contents):
    return {name: tensor for tensors in contents.values() for name, tensor in tensors.items()}


def test_files_are_found_in_any_order(shards):
    folder, contents = shards
    names = [*contents][::-1]
    loaded = streamer.load([folder / name for name in names])
    assert_same(loaded, all_of(contents))
    assert [*loaded] == [f"t{i}" for i in reversed(range(SHARDS))]


def test_a_missing_file_is_named(shards):
    folder, contents = shards
    paths = [*(str(folder / name) for name in contents), f"{folder}/part-99.safetensors"]
    with pytest.raises(streamer.ObjectNotFoundError, match="part-99"):
        streamer.load(paths)


def test_a_manifest_of_many_files_is_read_once(shards, monkeypatch, tmp_path):
    folder, contents = shards
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    streamer.write_manifest(copy)
    parsed = []
    parse = manifest_verification.parse_manifest
    monkeypatch.setattr(manifest_verification, "parse_manifest", lambda *a, **b: parsed.append(1) or parse(*a, **b))
    loaded = streamer.load([copy / name for name in contents], verify="manifest")
    assert_same(loaded, all_of(contents))
    assert len(parsed) == 1


def test_a_file_with_brackets_in_its_name_is_itself(tmp_path):
    for name in ("b[1]", "b1"):
        save_file({name: torch.ones(3)}, tmp_path / f"{name}.safetensors")
    assert [*streamer.load(tmp_path / "b[1].safetensors")] == ["b[1]"]
    assert [*streamer.load(f"{tmp_path}/b[0-9].safetensors")] == ["b1"]


@pytest.mark.server
def test_many_objects_cost_one_listing(shards, s3_server, requests):
    folder, contents = shards
    uri = s3_server.upload_folder(folder, "many", "one-listing")
    options = s3_server.storage_options()
    loaded = streamer.load([f"{uri}/{name}" for name in contents], storage_options=options)
    assert_same(loaded, all_of(contents))
    assert requests == {"list_objects_v2": 1}


@pytest.mark.server
def test_a_few_objects_cost_no_listing(shards, s3_server, requests):
    folder, contents = shards
    uri = s3_server.upload_folder(folder, "many", "few")
    uris = [f"{uri}/{name}" for name in [*contents][:3]]
    streamer.load(uris, storage_options=s3_server.storage_options())
    assert requests == {"head_object": 3}


@pytest.mark.server
def test_a_folder_with_far_more_in_it_is_not_listed_to_its_end(shards, s3_server, requests, monkeypatch):
    monkeypatch.setattr("streamer._locate_shards.LISTED_PER_FILE", 1)
    folder, contents = shards
    uri = s3_server.upload_folder(folder, "many", "large")
    uris = [f"{uri}/{name}" for name in [*contents][:20]]
    loaded = streamer.load(uris, storage_options=s3_server.storage_options())
    assert len(loaded) == 20
    assert requests == {"list_objects_v2": 1, "head_object": 20}


@pytest.mark.server
def test_an_object_that_the_listing_lacks_is_asked_for_and_named(shards, s3_server):
    folder, contents = shards
    uri = s3_server.upload_folder(folder, "many", "lacking")
    uris = [*(f"{uri}/{name}" for name in contents), f"{uri}/part-99.safetensors"]
    with pytest.raises(streamer.ObjectNotFoundError, match="part-99"):
        streamer.load(uris, storage_options=s3_server.storage_options())


@pytest.mark.server
def test_shards_of_two_folders_keep_their_order(shards, s3_server):
    folder, contents = shards
    first = s3_server.upload_folder(folder, "many", "first")
    names = [*contents]
    uris = [f"{first}/{name}" for name in names[:20]] + [str(folder / name) for name in names[20:]]
    loaded = streamer.load(uris, storage_options=s3_server.storage_options())
    assert_same(loaded, all_of(contents))
    assert [*loaded] == [f"t{i}" for i in range(SHARDS)]


@pytest.mark.server
def test_the_report_counts_requests_for_headers_too(shards, s3_server):
    folder, _ = shards
    uri = s3_server.upload_folder(folder, "many", "counted")
    with streamer.stream(uri, storage_options=s3_server.storage_options()) as stream:
        assert len(list(stream)) == SHARDS
    report = stream.report
    assert report.requests - report.hedges - report.retries == 2 * SHARDS  # a header, and a block
