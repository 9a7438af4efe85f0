"""What each store with a server of its own does alike: it lists, reads, notices changes, and names mistakes.

A `Store` says how one of them is reached; a new store gets a row in `STORES` and in the tables of its mistakes.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import assert_same
from each_row import each_row
from safetensors.torch import load as parsed
from servers.places import PLACES, base
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends.azure import AzureStore
from streamer.backends.azure import store as azure
from streamer.backends.gcs.store import GcsStore
from streamer.backends.s3.store import S3Store
from streamer.plugins.contract.storage import opened_object, read_whole

pytestmark = pytest.mark.server

DATA = bytes(range(256)) * 16
CANARY = "CANARY"
_numbers = itertools.count()


@dataclass(frozen=True)
class Store:
    """A store that is running: `open` takes a URL and more options, `bucket` is empty, `checkpoint` is a folder."""

    scheme: str
    server: Any
    bucket: str
    checkpoint: str
    word: str
    open: Callable[[str, dict[str, Any]], Any]

    @property
    def url(self) -> str:
        """The URL of the empty bucket."""
        return f"{self.scheme}://{self.bucket}"

    def options(self, **changes: Any) -> dict[str, Any]:
        """Return the options of somebody who may do everything."""
        return {**self.server.storage_options(), **changes}

    def put(self, name: str, data: bytes) -> str:
        """Write an object into the bucket, and return its version."""
        return str(self.server.put(self.bucket, name, data))

    def store(self, name: str = "", scheme: str = "") -> Any:
        """Return the store of an object or a folder of the bucket."""
        return self.open(f"{scheme or self.scheme}://{self.bucket}/{name}", self.options())


# The scheme, the name of the fixtures, what a bucket is called, and the class.
STORES = {
    "s3": ("s3", "bucket", S3Store),
    "gs": ("gcs", "bucket", GcsStore),
    "az": ("azure", "container", AzureStore),
}


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide logins, options and certificates of the machine."""
    for name in os.environ:
        if name.startswith(("GCS", "CLOUDSDK_", "FSSPEC_")) or name.endswith(("SSL_CERT_FILE", "_CA_BUNDLE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, no_login: None) -> Store:
    name, word, kind = STORES[request.param]
    server = request.getfixturevalue(f"{name}_server")
    bucket = f"every-store-{os.getpid()}-{next(_numbers)}"
    getattr(server, f"make_{word}")(bucket)
    return Store(request.param, server, bucket, request.getfixturevalue(f"{name}_checkpoint"), word, kind)


@pytest.fixture(scope="module")
def shard(checkpoint: Path) -> bytes:
    return (checkpoint / "model-00001-of-00004.safetensors").read_bytes()


# --- listings and objects -------------------------------------------------------------------------------------------

ALIASES = {"s3": ("s3", "s3a"), "gs": ("gs", "gcs"), "az": ("az", "abfs", "abfss")}


def test_info_has_the_size_and_the_version(place: Store) -> None:
    version = place.put("models/a.safetensors", DATA)
    for scheme in ALIASES[place.scheme]:
        store = place.store("models/a.safetensors", scheme)
        info = store.info(store.root)
        path = f"{place.bucket}/models/a.safetensors"
        assert (info.path, info.uri) == (path, f"{scheme}://{path}")
        assert (info.size_bytes, info.version) == (len(DATA), version)


def test_a_listing_has_the_objects_of_one_folder_as_info_describes_them(place: Store) -> None:
    for name in ("m/b.bin", "m/a.bin", "m/sub/c.bin", "mm.bin", "m/empty.bin"):
        place.put(name, b"" if "empty" in name else DATA)
    store = place.store("m/")
    listed = store.find(store.root)
    assert [info.path for info in listed] == [f"{place.bucket}/m/{name}" for name in ("a.bin", "b.bin", "empty.bin")]
    assert listed == [store.info(info.path) for info in listed]


def test_a_whole_bucket_is_listed(place: Store) -> None:
    place.put("a.bin", DATA)
    store = place.open(place.url, place.options())
    assert [info.path for info in store.find(store.root)] == [f"{place.bucket}/a.bin"]


def test_a_listing_of_several_pages_is_complete(place: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = 1005 if place.scheme == "s3" else 10  # a page of S3 has 1000 objects
    if place.scheme == "gs":
        monkeypatch.setattr(place.server.gate, "page_size", 1)
    monkeypatch.setattr(azure, "LIST_PAGE_BLOBS", 3)
    for number in range(count):
        (tmp_path / f"{number:04}").write_bytes(b"x")
    place.server.upload_folder(tmp_path, place.bucket, "many")
    store = place.store("many")
    assert [info.path for info in store.find(store.root)] == [f"{place.bucket}/many/{n:04}" for n in range(count)]


NAMES = ["a b+c%20é.bin", "#?&~()'!*@=:;,$", "日本/模型.safetensors", "a//b", "%", "folder/x\\y", "tilde~/dots..."]
NAMES_OF = {"s3": NAMES, "gs": [*NAMES[:3], *NAMES[4:5], NAMES[6], "a#b?c=d"], "az": ["#&~()'!*@=:;,$", *NAMES[::2]]}


def test_a_name_of_any_letters_is_read_and_listed(place: Store, subtests: pytest.Subtests) -> None:
    for name in NAMES_OF[place.scheme]:
        with subtests.test(name=name):
            place.put(name, name.encode())
            store = place.store(name)
            assert read_whole(opened_object(store)) == name.encode()
            if "//" not in name and "\\" not in name:  # which SeaweedFS lists as folders
                assert store.root in [info.path for info in store.find(store.root.rpartition("/")[0])]


# The code of an absent object, the code of an absent bucket, and how its message goes on.
ABSENT = {
    "s3": ("NoSuchKey", "NoSuchBucket", ""),
    "gs": ("notFound", "notFound", ""),
    "az": ("BlobNotFound", "ContainerNotFound", " in account 'acct"),
}


def test_an_absent_object_and_an_absent_bucket_have_different_messages(place: Store) -> None:
    *codes, more = ABSENT[place.scheme]
    with pytest.raises(streamer.ObjectNotFoundError) as caught:
        place.store("absent").info(f"{place.bucket}/absent")
    assert (caught.value.status, caught.value.code) == (404, codes[0])
    assert caught.value.request_id
    assert "absent-bucket" not in str(caught.value)
    store = place.open(f"{place.scheme}://absent-bucket/a", place.options())
    for ask in (store.info, store.find):
        with pytest.raises(streamer.ObjectNotFoundError, match=f"no {place.word} 'absent-bucket'{more}") as caught:
            ask("absent-bucket/a")
        assert caught.value.code == codes[1]


def test_a_bucket_is_no_object(place: Store) -> None:
    with pytest.raises(streamer.ObjectNotFoundError, match=f"a {place.word}"):
        place.open(place.url, place.options()).info(place.bucket)


# --- loads ----------------------------------------------------------------------------------------------------------

SHARDS = ["", "/", "/model.safetensors.index.json", "/*.safetensors", "/model-0000?-of-00004.safetensors"]
FORMS_OF = {
    "s3": ["s3a://private/models/small"],
    "gs": ["gcs://private/models/small"],
    "az": [
        "abfs://private/models/small",
        "abfs://private@{account}.dfs.core.windows.net/models/small",
        "abfss://private@{account}.dfs.core.windows.net/models/small",
        "https://{account}.blob.core.windows.net/private/models/small",
        "https://{account}.blob.core.windows.net/private/models/small/model.safetensors.index.json",
        "https://{account}.blob.core.windows.net/private/models/small/*.safetensors",
    ],
}


def test_every_url_of_a_checkpoint_gives_equal_tensors(
    place: Store, reference: dict[str, torch.Tensor], subtests: pytest.Subtests
) -> None:
    account = getattr(place.server, "account", "")
    of_scheme = [each.format(account=account) for each in FORMS_OF[place.scheme]]
    for url in [*(place.checkpoint + end for end in SHARDS), *of_scheme]:
        with subtests.test(url=url):
            assert_same(streamer.load(url, storage_options=place.options()), reference)
    with subtests.test(url="list"):
        names = [f"{place.checkpoint}/model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
        assert_same(streamer.load(names, storage_options=place.options()), reference)


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_chain_of_fsspec_gives_equal_tensors(
    scheme: str, request: pytest.FixtureRequest, reference: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    name = STORES[scheme][0]
    own = request.getfixturevalue(f"{name}_server").storage_options()
    url = f"simplecache::{request.getfixturevalue(f'{name}_checkpoint')}/*.safetensors"
    options = {scheme: own, "simplecache": {"cache_storage": str(tmp_path)}}
    assert_same(streamer.load(url, storage_options=options), reference)


def test_small_blocks_and_little_memory_change_no_tensor(place: Store, reference: dict[str, torch.Tensor]) -> None:
    tight = streamer.Options(block_bytes=64 << 10, memory_limit_bytes=1 << 20, http_reactors=3, http_in_flight=2)
    with streamer.stream(place.checkpoint, storage_options=place.options(), options=tight) as stream:
        assert_same(dict(stream), reference)
    assert stream.report.peak_held_bytes <= max(1 << 20, *(tensor.nbytes for tensor in reference.values()))


def test_an_open_checkpoint_reads_headers_and_a_slice_reads_its_rows(
    place: Store, reference: dict[str, torch.Tensor]
) -> None:
    name = max(reference, key=lambda key: reference[key].nbytes)
    few = streamer.Options(coalesce_gap_bytes=0)
    with streamer.open(place.checkpoint, storage_options=place.options(), options=few) as checkpoint:
        assert checkpoint.keys() == sorted(reference)
        assert torch.equal(checkpoint.get_slice(name)[3:5].view(torch.uint8), reference[name][3:5].view(torch.uint8))
    with streamer.stream(place.checkpoint, names=name, storage_options=place.options(), options=few) as stream:
        list(stream)
    assert stream.report.bytes_read == reference[name].nbytes


def test_a_public_checkpoint_needs_no_credentials(place: Store, shard: bytes) -> None:
    place.server.put("public", "open/x.safetensors", shard)
    url = f"{place.scheme}://public/open/x.safetensors"
    assert_same(streamer.load(url, storage_options=place.server.anonymous_options()), parsed(shard))


def test_an_object_that_is_replaced_after_its_header_was_read_is_an_error(place: Store, shard: bytes) -> None:
    place.put("swap/x.safetensors", shard)
    opened = streamer.open(f"{place.url}/swap/x.safetensors", storage_options=place.options())
    place.put("swap/x.safetensors", shard[:-8] + b"\0\1\2\3\4\5\6\7")
    with pytest.raises(streamer.ChangedError, match=r"swap/x\.safetensors"):
        opened.get_tensors()


def test_an_object_that_is_deleted_after_its_header_was_read_is_an_error(place: Store, shard: bytes) -> None:
    place.put("gone/x.safetensors", shard)
    opened = streamer.open(f"{place.url}/gone/x.safetensors", storage_options=place.options())
    place.server.delete(place.bucket, "gone/x.safetensors")
    # A server of Azure may look at the condition on the version before it looks for the name.
    either = (streamer.ObjectNotFoundError, *([streamer.ChangedError] if place.scheme == "az" else []))
    with pytest.raises(either, match="NoSuchKey" if place.scheme == "s3" else r"gone/x\.safetensors"):
        opened.get_tensors()


def test_an_index_that_lists_a_missing_shard_is_an_error_with_its_name(place: Store) -> None:
    index = {"weight_map": {"a": "model-1.safetensors"}}
    place.put("partial/model.safetensors.index.json", json.dumps(index).encode())
    with pytest.raises(streamer.ObjectNotFoundError, match=r"model-1\.safetensors"):
        streamer.load(f"{place.url}/partial", storage_options=place.options())


def test_a_truncated_upload_is_refused(place: Store, shard: bytes) -> None:
    place.put("cut/x.safetensors", shard[: len(shard) // 2])
    with pytest.raises(streamer.TruncatedError, match="cut/x"):
        streamer.load(f"{place.url}/cut/x.safetensors", storage_options=place.options())


# --- mistakes -------------------------------------------------------------------------------------------------------

# The changed options, the part of the URL behind the scheme, and the error.
NO_OBJECTS: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("private/models/nix", {}, streamer.ObjectNotFoundError),
    ("private/models/nix.safetensors", {}, streamer.ObjectNotFoundError),
    ("nosuchbucket/models", {}, streamer.ObjectNotFoundError),
]
SMALL = "private/models/small"
MISTAKES: dict[str, list[tuple[str, dict[str, Any], type[Exception]]]] = {
    "s3": [
        (SMALL, {"secret": CANARY}, streamer.CredentialsError),
        (SMALL, {"key": "AKIDUNKNOWN"}, streamer.CredentialsError),
        (SMALL, {"key": None, "secret": None, "anon": True}, streamer.AccessDeniedError),
        (SMALL, {"endpoint_url": "http://127.0.0.1:9"}, streamer.ConnectError),
        (SMALL, {"endpoint_url": "https://127.0.0.1:9"}, streamer.ConnectError),
        (SMALL, {"client_kwargs": {"verify": False}}, streamer.OptionError),
    ],
    "gs": [
        (SMALL, {"token": f"ya29.{CANARY}"}, streamer.CredentialsError),
        (SMALL, {"token": None}, streamer.CredentialsError),
        (SMALL, {"token": "anon"}, streamer.AccessDeniedError),
        (SMALL, {"endpoint_url": "http://127.0.0.1:9"}, streamer.ConnectError),
        (SMALL, {"endpoint_url": "https://127.0.0.1:9", "token": "anon"}, streamer.ConnectError),
        (SMALL, {"requester_pays": "nobody"}, streamer.AccessDeniedError),
    ],
    "az": [
        (SMALL, {"account_key": "Q0FOQVJZ"}, streamer.CredentialsError),
        (SMALL, {"account_key": None, "anon": True}, streamer.AccessDeniedError),
        (SMALL, {"account_host": "127.0.0.1:9/account"}, streamer.ConnectError),
        (SMALL, {"connection_verify": False}, streamer.OptionError),
        (SMALL, {"connection_verify": None}, streamer.TlsError),
    ],
}


@pytest.mark.usefixtures("no_login")
@pytest.mark.parametrize("scheme", STORES)
def test_a_mistake_has_its_class_soon_and_shows_no_secret(
    scheme: str, request: pytest.FixtureRequest, checkpoint: Path, subtests: pytest.Subtests
) -> None:
    server = request.getfixturevalue(
        f"{STORES[scheme][0]}_tls_server" if scheme == "az" else f"{STORES[scheme][0]}_server"
    )
    server.upload_folder(checkpoint, "private", "models/small")
    for path, changes, error in NO_OBJECTS + MISTAKES[scheme]:
        with subtests.test(path=path, changes=changes):
            options = server.storage_options(**changes) if scheme == "az" else {**server.storage_options(), **changes}
            began = time.monotonic()
            with pytest.raises(error) as caught:
                streamer.load(f"{scheme}://{path}", storage_options=options)
            assert time.monotonic() - began < 20
            text = "".join(traceback.format_exception(caught.value))
            for secret in (CANARY, "Q0FOQVJZ", "X-Amz-Signature", "PRIVATE KEY", "sig=", "Bearer"):
                assert secret not in text
            for attribute in ("secret_key", "key"):
                assert getattr(server, attribute, CANARY) not in text
            assert path.partition("/")[0] in str(caught.value) or error is streamer.OptionError


UNUSABLE: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("s3://bucket/key", {"no_such_option": 1}, streamer.OptionError),
    ("s3://bucket/key", {"client_kwargs": {"no_such_option": 1}}, streamer.OptionError),
    ("s3://bucket/key", {"config_kwargs": {"no_such_option": 1}}, streamer.OptionError),
    ("s3://bucket/key", {"endpoint_url": "no-url"}, streamer.OptionError),
    ("s3://bucket/key", {"profile": "absent"}, streamer.CredentialsError),
    ("gs://bucket/key", {"endpoint_url": "no-url"}, streamer.OptionError),
    ("gs://bucket/key", {"endpoint_url": "http://user:CANARY@host"}, streamer.OptionError),
    ("gs://bucket/key", {"asynchronous": True}, streamer.OptionError),
    ("gs://bucket/key", {"access": CANARY}, streamer.OptionError),
    ("gs://bucket/key", {"token": f"/no/such/{CANARY}"}, streamer.OptionError),
    ("gs://bucket/key", {"token": {CANARY: 1}}, streamer.OptionError),
    ("gs://bucket/key", {"token": 7}, streamer.OptionError),
    ("az://container/a", {"connection_string": CANARY}, streamer.OptionError),
    ("az://container/a", {"connection_string": f"AccountKey={CANARY}"}, streamer.OptionError),
    ("az://container/a", {"account_name": "a", "client_id": "x", "client_secret": CANARY}, streamer.OptionError),
    (
        "az://container/a",
        {"account_name": "a", "account_key": "a", "connection_verify": "/none.pem"},
        streamer.OptionError,
    ),
    (
        "abfs://c@one.dfs.core.windows.net/a",
        {"connection_string": f"AccountName=two;AccountKey={CANARY}"},
        streamer.OptionError,
    ),
]
GIVEN: dict[str, dict[str, Any]] = {"s3": {"key": "AKID", "secret": CANARY}, "gs": {"token": "anon"}}


@each_row(("uri", "changes", "error"), UNUSABLE)
def test_options_that_cannot_be_used_are_refused(uri: str, changes: dict[str, Any], error: type[Exception]) -> None:
    scheme = uri.partition("://")[0]
    kind = STORES.get(scheme, STORES["az"])[2]
    with pytest.raises(error) as caught:  # S3 reads some options for the first request
        kind(uri, {**GIVEN.get(scheme, {}), **changes}).info("bucket/key")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@each_row("url", ["{}://", "{}:///key", "{}://user:CANARY@bucket/key", "{}://user:CAN/ARY@bucket/key"])
def test_a_url_without_a_bucket_or_with_a_password_is_refused(url: str) -> None:
    for scheme, kind in (("s3", S3Store), ("gs", GcsStore)):
        with pytest.raises(streamer.UsageError) as caught:
            kind(url.format(scheme), {})
        assert "ARY" not in str(caught.value)


def test_options_of_the_caller_and_the_environment_stay_as_they_are(place: Store) -> None:
    more: dict[str, dict[str, Any]] = {
        "s3": {"client_kwargs": {}, "config_kwargs": {"s3": {}}},
        "gs": {"session_kwargs": {}, "project": None},
        "az": {"proxies": {}},
    }
    place.put("a.bin", DATA)
    options = place.options(**more[place.scheme])
    before, environment = copy.deepcopy(options), dict(os.environ)
    store = place.open(f"{place.url}/a.bin", options)
    store.source(store.info(store.root))
    store.close()
    assert (options, dict(os.environ)) == (before, environment)


# --- servers that do not answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [name for name in PLACES if name != "file"])
def test_a_server_that_does_not_run_is_a_refused_connection(storage: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, so nobody else listens there
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        for scheme in ("http", "https"):
            url, options = PLACES[storage](f"{scheme}://{host}")
            began = time.monotonic()
            with pytest.raises(streamer.ConnectError, match=host) as caught:
                streamer.load(url, storage_options=options)
            assert time.monotonic() - began < 15
            assert caught.value.attempts
            assert caught.value.elapsed_s > 0


SHORT_TIMES: dict[str, dict[str, Any]] = {
    "web": {"timeout": 0.2},
    "s3": {"config_kwargs": {"read_timeout": 0.2, "retries": {"total_max_attempts": 1}}},
    "gcs": {"requests_timeout": 0.2},
    "hub": {"timeout": 0.2},
    "azure": {"read_timeout": 0.2, "retry_total": 0},
}


@pytest.mark.parametrize("storage", SHORT_TIMES)
def test_a_server_that_never_answers_is_a_timeout(storage: str) -> None:
    with ScriptedServer(b"") as server:
        server.script = lambda request, answer: server.stopping.wait()
        server.answers_head = True
        url, options = PLACES[storage](base(server))
        with pytest.raises(streamer.TransferTimeoutError):
            streamer.load(url, storage_options={**options, **SHORT_TIMES[storage]})
