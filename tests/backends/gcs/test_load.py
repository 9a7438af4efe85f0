"""The public face over Google Cloud Storage (emulator and gate): whole loads, tokens that end, objects that change."""

from __future__ import annotations

import json
import os
import traceback

import gcsfs
import pytest
import safetensors.torch
import warm_python
from comparison import assert_same

import streamer
from streamer.backends.gcs.credentials import LOGINS

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch, tmp_path):
    for name in os.environ:
        if name.startswith(("GOOGLE_", "GCS", "CLOUDSDK_", "STORAGE_", "FSSPEC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)
    LOGINS.clear()


@pytest.fixture(scope="module")
def options(gcs_server):
    return gcs_server.storage_options()


@pytest.fixture(scope="module")
def shard(checkpoint):
    return (checkpoint / "model-00001-of-00004.safetensors").read_bytes()


def test_the_bare_emulator_gives_equal_tensors(gcs_server, gcs_checkpoint, reference, monkeypatch):
    """It speaks HTTP/1.0 and sends no generation."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.emulator_url)
    assert_same(streamer.load(gcs_checkpoint), reference)


def test_a_gcsfs_instance_lends_its_options_and_credentials(gcs_server, gcs_checkpoint, reference):
    fs = gcsfs.GCSFileSystem(**gcs_server.storage_options(), skip_instance_cache=True)
    with streamer.stream(gcs_checkpoint.removeprefix("gs://"), fs=fs) as stream:
        assert_same(dict(stream), reference)
    assert stream.report.requests > 0


WITHOUT_SLOW_IMPORTS = """
import json, sys
import streamer
streamer.load(sys.argv[1], storage_options=json.loads(sys.argv[2]))
print([name for name in ("aiohttp", "fsspec", "gcsfs", "requests") if name in sys.modules])
"""


def test_no_library_that_takes_long_to_import_is_imported_for_a_token(gcs_server, gcs_checkpoint):
    """They took two thirds of the time to the first tensor."""
    options = {"endpoint_url": gcs_server.endpoint_url, "token": gcs_server.gate.issue("owner")}
    done = warm_python.run(WITHOUT_SLOW_IMPORTS, gcs_checkpoint, json.dumps(options))
    assert done.stdout.strip() == "[]", done.stderr


def test_every_media_request_carries_the_token_and_the_condition(gcs_server, gcs_checkpoint, options):
    with gcs_server.interfering(lambda seen: None) as requests:
        streamer.load(gcs_checkpoint, storage_options=options)
    media = [seen for seen in requests if seen.is_media]
    assert media
    assert all(seen.headers["Authorization"].startswith("Bearer ya29.") for seen in media)
    assert all("ifGenerationMatch" in seen.query for seen in media)


def test_a_token_that_ends_in_the_middle_is_renewed_once_for_all_shards(gcs_server, gcs_checkpoint, reference):
    """The service account signs in again at the token server; of about fifty requests, the tenth ends every token."""
    asked = iter(range(1000))

    def end_all_tokens(seen):
        if seen.is_media and next(asked) == 10:
            gcs_server.gate.tokens.clear()

    small = streamer.Options(block_bytes=512 << 10, http_reactors=1, http_in_flight=4)
    given = gcs_server.storage_options()
    with (
        gcs_server.interfering(end_all_tokens) as requests,
        streamer.stream(gcs_checkpoint, storage_options=given, options=small) as stream,
    ):
        assert_same(dict(stream), reference)
    assert stream.report.credential_refreshes > 0
    assert sum(seen.path == "/token" for seen in requests) == 2


def test_a_token_that_ends_and_cannot_be_renewed_says_so(gcs_server, gcs_checkpoint):
    token = gcs_server.gate.issue("owner", uses=12)
    small = streamer.Options(block_bytes=512 << 10, http_reactors=1, http_in_flight=4)
    given = {"endpoint_url": gcs_server.endpoint_url, "token": token}
    with pytest.raises(streamer.CredentialsError, match="could not be renewed") as caught:
        streamer.load(gcs_checkpoint, storage_options=given, options=small)
    assert token not in "".join(traceback.format_exception(caught.value))


def test_an_object_replaced_between_two_blocks_is_noticed(gcs_server, shard, options):
    gcs_server.put("private", "swap/y.safetensors", shard)
    asked = iter(range(1000))

    def swap(seen):
        if seen.is_media and next(asked) == 4:
            gcs_server.put("private", "swap/y.safetensors", shard[:-8] + b"\0\1\2\3\4\5\6\7")

    small = streamer.Options(block_bytes=512 << 10, http_reactors=1, http_in_flight=1)
    with gcs_server.interfering(swap), pytest.raises(streamer.ChangedError):
        streamer.load("gs://private/swap/y.safetensors", storage_options=options, options=small)


def test_a_pinned_generation_is_loaded_while_it_exists(gcs_server, shard, options):
    generation = gcs_server.put("private", "pin/x.safetensors", shard)
    uri = f"gs://private/pin/x.safetensors#{generation}"
    assert_same(streamer.load(uri, storage_options=options), safetensors.torch.load(shard))
    gcs_server.put("private", "pin/x.safetensors", shard)
    with pytest.raises(streamer.ObjectNotFoundError, match=generation):
        streamer.load(uri, storage_options=options)


def test_a_reader_without_listing_loads_a_file_it_names(gcs_server, shard):
    gcs_server.put("private", "one/x.safetensors", shard)
    given = gcs_server.storage_options("reader")
    got = streamer.load("gs://private/one/x.safetensors", storage_options=given)
    assert_same(got, safetensors.torch.load(shard))


def test_a_reader_without_listing_loads_an_index_it_names(gcs_server, gcs_checkpoint, reference):
    given = gcs_server.storage_options("reader")
    assert_same(streamer.load(f"{gcs_checkpoint}/model.safetensors.index.json", storage_options=given), reference)


def test_the_reader_pays(gcs_server, shard, options):
    gcs_server.put("paying", "x.safetensors", shard)
    got = streamer.load("gs://paying/x.safetensors", storage_options={**options, "requester_pays": gcs_server.project})
    assert_same(got, safetensors.torch.load(shard))
