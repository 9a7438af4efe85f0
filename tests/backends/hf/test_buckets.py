"""Buckets of the Hub are read by the engine: files by their Xet hash, at the place that the Hub redirects to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save
from servers.hub import TOKEN

import streamer
from streamer.backends.hf.bucket import BucketStore
from streamer.core.options.limits import Limits

pytestmark = pytest.mark.server

_numbers = itertools.count()
TENSORS = {"a": np.arange(400_000, dtype="f4"), "b": np.ones(3, "f4")}


@pytest.fixture
def bucket(hub_server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    name = f"ada/bucket-{next(_numbers)}"
    hub_server.seen.clear()
    hub_server.cdn_seen.clear()
    return name, hub_server.make(name, kind="bucket", private=True)


def test_a_bucket_is_loaded_by_the_engine_without_the_token_at_the_store(bucket, hub_server):
    name, repository = bucket
    repository.commit({"run/model.safetensors": save(TENSORS), "run2/model.safetensors": save({"x": TENSORS["b"]})})
    with streamer.stream(f"hf://buckets/{name}/run", framework="np") as stream:
        found = dict(stream)
    assert {each: array.tobytes() for each, array in found.items()} == {k: v.tobytes() for k, v in TENSORS.items()}
    assert stream.report.readers.keys() == {"http"}
    assert hub_server.cdn_seen
    assert not any(has_token for _, _, has_token in hub_server.cdn_seen)
    one = streamer.load(f"hf://buckets/{name}/run2/model.safetensors", framework="np")
    assert one.keys() == {"x"}


def test_a_file_of_a_bucket_that_is_replaced_is_an_error(bucket):
    name, repository = bucket
    repository.commit({"model.safetensors": save(TENSORS)})
    with streamer.open(f"hf://buckets/{name}", framework="np") as opened:
        assert opened["b"].shape == (3,)
        repository.commit({"model.safetensors": save({**TENSORS, "a": TENSORS["a"] + 1})})
    store = BucketStore(f"hf://buckets/{name}", {}, Limits())
    info = store.info(f"buckets/{name}/model.safetensors")
    repository.commit({"model.safetensors": save(TENSORS)})
    with pytest.raises(streamer.ChangedError, match="replaced meanwhile"):
        store.source(info)


def test_names_and_listings_of_a_bucket(bucket):
    name, repository = bucket
    files = {"a b#1.txt": b"1", "d/100%25.json": b"{}", "d/\u00fc?.bin": b"3", "d/e/f.txt": b"", "d2/x": b"5"}
    repository.commit(files)
    store = BucketStore(f"hf://buckets/{name}", {}, Limits())
    root = f"buckets/{name}"
    assert [info.path for info in store.find(root)] == [f"{root}/a b#1.txt"]
    assert [info.path for info in store.find(f"{root}/d")] == [f"{root}/d/100%25.json", f"{root}/d/\u00fc?.bin"]
    assert store.folders(root) == ["d", "d2"]
    assert {*store.peek(f"{root}/d")} == {"100%25.json", "\u00fc?.bin", "e/", "x"}
    for path, data in files.items():
        assert store.info(f"{root}/{path}").size_bytes == len(data)
    versions = {store.info(f"{root}/{path}").version for path in files}
    assert len(versions) == len(files)


def test_what_is_not_there_or_not_allowed_says_what_to_do(bucket, monkeypatch):
    name, repository = bucket
    repository.commit({"model.safetensors": save(TENSORS)})
    with pytest.raises(streamer.ObjectNotFoundError, match="no such file"):
        streamer.load(f"hf://buckets/{name}/absent.safetensors")
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(f"hf://buckets/{name}-no")
    with pytest.raises(streamer.UsageError, match="names no repository"):
        streamer.load("hf://buckets/ada")
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(f"hf://buckets/{name}", storage_options={"token": False})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(streamer.UsageError, match="HF_HUB_OFFLINE=1"):
        streamer.load(f"hf://buckets/{name}")


def test_a_save_to_a_bucket_goes_through_huggingface_hub(bucket, monkeypatch):
    pytest.importorskip("hf_xet")
    name, repository = bucket
    repository.commit({"readme.txt": b"a bucket"})
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    for seed in (1, 2):
        random = np.random.default_rng(seed)
        tensors = {each: random.integers(0, 256, 300_000, "u1") for each in "ab"}
        streamer.save(tensors, f"hf://buckets/{name}/run", max_shard_bytes=300_000, overwrite=True)
        found = streamer.load(f"hf://buckets/{name}/run", framework="np", verify="manifest")
        assert found.keys() == tensors.keys()
        assert all(np.array_equal(found[each], tensors[each]) for each in tensors)
    with pytest.raises(streamer.UsageError, match="there is a checkpoint already"):
        streamer.save(tensors, f"hf://buckets/{name}/run")
    names = repository.found("main")[1].keys()
    assert len([each for each in names if each.endswith(".safetensors")]) == 2
    assert "readme.txt" in names


def test_what_is_published_to_a_bucket_is_loaded_as_latest_regression(bucket, monkeypatch):
    pytest.importorskip("hf_xet")
    name, repository = bucket
    repository.commit({})
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    run = f"hf://buckets/{name}/run"
    for seed in (1, 2):
        published = {"a": np.random.default_rng(seed).integers(0, 256, 30_000, "u1")}
        streamer.publish(published, run)
        assert np.array_equal(streamer.load(f"{run}@latest", framework="np")["a"], published["a"])
    with pytest.raises(streamer.UsageError, match="names no repository"):  # after the name of a bucket it is no version
        streamer.load(f"hf://buckets/{name}@latest")
