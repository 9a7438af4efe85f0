"""A path object that has options of its own (`UPath`, cloudpathlib) is read with these, and never by its text alone."""

from __future__ import annotations

import asyncio
import types

import fsspec
import pytest
import torch
from servers.hub import HubServer

import streamer
from streamer.compat.safetensors import safe_open as patched_open
from streamer.integrations.dcp.reader import StorageReader
from streamer.integrations.library_calls import Location


class Place:
    """As a `UPath` of version 0.3: no `os.PathLike`."""

    def __init__(self, url, **options):
        self._url, self.storage_options = url, types.MappingProxyType(options)

    protocol = property(lambda self: self._url.partition("://")[0])
    fs = property(lambda self: fsspec.filesystem(self.protocol, **self.storage_options))
    path = property(lambda self: self._url.partition("://")[2])

    def __str__(self):
        return self._url

    def as_uri(self):
        return self._url


class PathLikePlace(Place):
    """As a `UPath` of older versions."""

    def __fspath__(self):
        return self._url


class ClosedPlace:
    """As a path of cloudpathlib: its login is in a client, and its path is that of a copy on the disk."""

    client = object()

    def __init__(self, url):
        self._url = url

    def as_uri(self):
        return self._url

    def __str__(self):
        return self._url

    def __fspath__(self):
        raise AssertionError("this would download the file")


KINDS = [Place, PathLikePlace]


def same(got, reference):
    assert got.keys() == reference.keys()
    assert all(torch.equal(torch.as_tensor(got[name]), reference[name]) for name in reference)


@pytest.fixture
def place(s3_server, s3_checkpoint, monkeypatch):
    """Return an S3 place by kind; the environment leads to a server that does not exist."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    return lambda kind: kind(s3_checkpoint, **s3_server.storage_options())


def filled(uri, reference):
    target = {name: torch.zeros_like(tensor) for name, tensor in reference.items()}
    streamer.load_into(uri, target)
    return target


def streamed(uri, reference):
    with streamer.stream(uri) as stream:
        return dict(stream)


ENTRIES = {
    "load": lambda uri, reference: streamer.load(uri),
    "a list": lambda uri, reference: streamer.load([uri]),
    "stream": streamed,
    "open": lambda uri, reference: dict(streamer.open(uri).get_tensors()),
    "load_into": filled,
    "aload": lambda uri, reference: asyncio.run(streamer.aload(uri)),
    "load_file": lambda uri, reference: streamer.load_file(uri),
    "Location": lambda uri, reference: dict(Location(uri=uri).checkpoint().get_tensors()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_reads_with_the_options_of_the_object_regression(place, reference, entry, kind):
    same(ENTRIES[entry](place(kind), reference), reference)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened", [streamer.safe_open, patched_open])
def test_handles_read_with_the_options_of_the_object_regression(place, reference, opened, kind):
    with opened(place(kind), framework="pt") as handle:
        same({name: handle.get_tensor(name) for name in handle.keys()}, reference)  # noqa: SIM118


def test_the_reader_of_dcp_takes_the_options_of_the_object_regression(place):
    reader = StorageReader(place(Place))
    assert reader._location.storage_options == place(Place).storage_options
    reader = StorageReader("/models/llama")
    reader.reset(place(Place))
    assert reader._location.storage_options == place(Place).storage_options
    assert StorageReader.validate_checkpoint_id(place(Place))


def test_a_manifest_is_written_with_the_options_of_the_object_regression(s3_server, checkpoint, place):
    url = s3_server.upload_folder(checkpoint, "private", "models/place-manifest")
    there = Place(url, **place(Place).storage_options)
    assert streamer.write_manifest(there).tensors
    assert streamer.load(there, verify="manifest")


@pytest.mark.parametrize("kind", KINDS)
def test_the_options_of_each_storage_are_taken_regression(
    azure_server, azure_checkpoint, gcs_server, gcs_checkpoint, http_server, checkpoint, reference, kind
):
    with HubServer() as hub:
        hub.upload_folder(checkpoint, "owner/place")
        places = [
            kind(azure_checkpoint, **azure_server.storage_options()),
            kind(gcs_checkpoint, **gcs_server.storage_options()),
            kind("hf://owner/place", endpoint=hub.url),
        ]
        for each in places:
            same(streamer.load(each), reference)


def test_places_of_several_storages_are_one_list(s3_server, s3_checkpoint, gcs_server, gcs_checkpoint, checkpoint):
    shards = sorted(each.name for each in checkpoint.glob("*.safetensors"))
    uris = [
        Place(f"{s3_checkpoint}/{shards[0]}", **s3_server.storage_options()),
        Place(f"{gcs_checkpoint}/{shards[1]}", **gcs_server.storage_options()),
        checkpoint / shards[2],
        Place(f"file://{checkpoint}/{shards[3]}"),
    ]
    assert len(streamer.load(uris)) == sum(len(streamer.load(checkpoint / shard)) for shard in shards)
    beside = [None, None, None, {}]
    assert len(streamer.load(uris, storage_options=beside)) == len(streamer.load(uris))


def test_options_that_are_passed_twice_are_refused(place):
    there = place(Place)
    same_again = dict(there.storage_options)
    assert streamer.load(there, storage_options=same_again)
    for beside in ({"storage_options": {"key": "a", "secret": "b"}}, {"fs": fsspec.filesystem("memory")}):
        with pytest.raises(streamer.OptionError, match="its own storage options") as caught:
            streamer.load(there, **beside)
        assert same_again["secret"] not in str(caught.value)


def test_an_object_without_options_is_its_text(s3_checkpoint, s3_server, checkpoint, reference):
    there = Place(s3_checkpoint)
    same(streamer.load(there, storage_options=s3_server.storage_options()), reference)
    same(streamer.load(there, fs=fsspec.filesystem("s3", **s3_server.storage_options())), reference)
    same(streamer.load(Place(f"file://{checkpoint}")), reference)


def test_a_login_that_cannot_be_read_is_refused_with_what_to_give_regression(s3_checkpoint, s3_server, reference):
    there = ClosedPlace(s3_checkpoint)
    for uri in (there, [there]):
        with pytest.raises(streamer.UsageError, match=r"storage_options= or fs="):
            streamer.load(uri)
    same(streamer.load(there, storage_options=s3_server.storage_options()), reference)


def test_a_upath_is_read_with_its_options(place, s3_checkpoint, s3_server, checkpoint, reference, tmp_path):
    upath = pytest.importorskip("upath")
    options = s3_server.storage_options()
    same(streamer.load(upath.UPath(s3_checkpoint, **options)), reference)
    same(streamer.load(upath.UPath(checkpoint)), reference)
    same(streamer.load(upath.UPath(f"file://{checkpoint}")), reference)
    if tuple(map(int, upath.__version__.split(".")[:2])) >= (0, 3):  # the first that has chained URLs
        shard = sorted(checkpoint.glob("*.safetensors"))[0]
        chained = f"simplecache::{s3_checkpoint}/{shard.name}"
        cache = {"cache_storage": str(tmp_path)}
        same(streamer.load(upath.UPath(chained, s3=options, simplecache=cache)), streamer.load(shard))
