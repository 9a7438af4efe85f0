"""The Hugging Face backend against a stand-in for the Hub that huggingface_hub itself downloads from."""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
import time
import traceback

import huggingface_hub
import pytest
from comparison import assert_same
from each_row import each_row
from huggingface_hub import constants
from servers.hub import STRANGER, TOKEN
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends.hf.store import HfStore
from streamer.core.store.sources import FileSource, HttpSource, PythonSource

pytestmark = pytest.mark.server

CANARY = "hf_canarycanarycanary"
_numbers = itertools.count()


@pytest.fixture
def hub(hub_server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    hub_server.seen.clear()
    hub_server.cdn_seen.clear()
    yield hub_server
    hub_server.lifetime_s, hub_server.honours_ranges = 3600, True  # tests of other files have the same server


@pytest.fixture
def name():
    return f"ada/model-{next(_numbers)}"


def download(hub, name, **how):
    """Fill the cache as the user's own tools do."""
    return huggingface_hub.snapshot_download(name, endpoint=hub.url, **how)


def go_offline(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.seen.clear()


# --- whole loads ------------------------------------------------------------------------------------------------------


def test_it_loads_a_repository(hub, name, checkpoint, reference):
    hub.upload_folder(checkpoint, name)
    with streamer.stream(f"hf://{name}") as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"http": 4}


@pytest.mark.parametrize("form", ["hf://models/{}", "hf://{}@main", "hf://{}/*.safetensors", "hf://{}/"])
def test_every_way_to_name_it_gives_equal_tensors(hub, name, checkpoint, reference, form):
    hub.upload_folder(checkpoint, name)
    assert_same(streamer.load(form.format(name)), reference)


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", "refs%2Fpr%2F1", "with%2Fslash"])
def test_it_loads_a_folder_of_a_revision(hub, name, checkpoint, reference, revision):
    files = {f"sub/{file.name}": file.read_bytes() for file in checkpoint.iterdir()}
    made = hub.make(name)
    made.commit({"README.md": b"nothing here"})
    made.commit(files, "v1", "refs/pr/1", "with/slash")
    assert_same(streamer.load(f"hf://{name}@{revision}/sub"), reference)
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(f"hf://{name}/sub")


def test_it_loads_a_commit_by_its_sha(hub, name, checkpoint, reference):
    made = hub.upload_folder(checkpoint, name)
    sha = made.revisions["main"]
    made.commit({"README.md": b"emptied"})
    assert_same(streamer.load(f"hf://{name}@{sha}"), reference)


@pytest.mark.parametrize("kind", ["dataset", "space"])
def test_datasets_and_spaces_hold_weights_too(hub, name, checkpoint, reference, kind):
    hub.upload_folder(checkpoint, name, kind=kind)
    assert_same(streamer.load(f"hf://{kind}s/{name}"), reference)


def test_the_token_never_reaches_the_second_host(hub, name, checkpoint, reference):
    hub.upload_folder(checkpoint, name, private=True)
    assert_same(streamer.load(f"hf://{name}", storage_options={"token": TOKEN}), reference)
    assert all(has_token for _, _, has_token in hub.seen)
    assert hub.cdn_seen
    assert not any(has_token for _, _, has_token in hub.cdn_seen)


def test_the_token_of_the_environment_opens_a_gated_repository(hub, name, checkpoint, reference, monkeypatch):
    hub.upload_folder(checkpoint, name, gated=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert_same(streamer.load(f"hf://{name}"), reference)


def test_the_saved_login_is_used(hub, name, checkpoint, reference, tmp_path):
    hub.upload_folder(checkpoint, name, private=True)
    (tmp_path / "token").write_text(TOKEN)
    assert_same(streamer.load(f"hf://{name}"), reference)
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(f"hf://{name}", storage_options={"token": False})


def test_a_second_host_without_ranges_is_read_in_one_stream(hub, name, checkpoint, reference):
    hub.upload_folder(checkpoint, name)
    hub.honours_ranges = False
    with streamer.stream(f"hf://{name}") as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"python": 4}
    assert "does not honour byte ranges" in stream.report.remarks[0]


# --- one commit -------------------------------------------------------------------------------------------------------


def test_a_push_between_two_questions_changes_nothing(hub, name):
    made = hub.make(name)
    made.commit({"a.bin": b"old", "sub/c.bin": b"c"})
    store = HfStore(f"hf://{name}", {})
    first = store.find(store.root)
    made.commit({"a.bin": b"newer", "b.bin": b"b"})
    assert store.find(store.root) == first
    assert [(info.path, info.size_bytes) for info in first] == [(f"{name}/a.bin", 3)]
    assert store.info(f"{name}/a.bin").size_bytes == 3
    other = HfStore(f"hf://{name}", {})
    assert [info.size_bytes for info in other.find(other.root)] == [5, 1]


def test_what_another_process_described_is_read_from_its_commit(hub, name):
    """Its store resolved the revision; since then there was a push, of a file of the same size."""
    repository = hub.make(name)
    first = repository.commit({"a.safetensors": b"old"})
    other = HfStore(f"hf://{name}", {})
    (info,) = other.find(other.root)
    repository.commit({"a.safetensors": b"new"})
    source = HfStore(f"hf://{name}", {}).source(info)
    assert info.version == first
    assert first in source.url


def test_a_listing_of_several_pages_is_complete(hub, name):
    hub.make(name).commit({f"f/{number:02}.bin": b"x" * number for number in range(10)})
    store = HfStore(f"hf://{name}/f", {})
    assert [info.size_bytes for info in store.find(store.root)] == list(range(10))


def test_a_large_file_is_named_at_its_second_host_until_it_expires(hub, name):
    hub.make(name).commit({"large.bin": bytes(2 << 20), "small.bin": b"small"})
    store = HfStore(f"hf://{name}", {"token": TOKEN})
    before = time.time()
    large, small = (store.source(info) for info in store.find(store.root))
    assert isinstance(large, HttpSource)
    assert isinstance(small, HttpSource)
    assert large.url.startswith(hub.cdn_url)
    assert (dict(large.headers), large.version_header) == ({}, None)
    assert large.expires_at_s is not None
    assert before + 3590 < large.expires_at_s <= time.time() + 3600
    assert small.headers == {"authorization": f"Bearer {TOKEN}"}
    assert small.expires_at_s is None
    assert large.refresh is not None
    assert large.refresh().url.partition("?")[0] == large.url.partition("?")[0]
    assert TOKEN not in repr((large, small))


def test_a_refresh_gives_an_address_that_is_good_for_longer(hub, name):
    hub.make(name).commit({"large.bin": bytes(2 << 20)})
    hub.lifetime_s = 300
    store = HfStore(f"hf://{name}/large.bin", {})
    source = store.source(store.info(store.root))
    hub.lifetime_s = 3600
    assert isinstance(source, HttpSource)
    assert source.refresh is not None
    assert source.expires_at_s is not None
    assert source.refresh().expires_at_s > source.expires_at_s + 3000


# --- the cache --------------------------------------------------------------------------------------------------------


def test_what_is_in_the_cache_is_read_from_there(hub, name, checkpoint, reference):
    hub.upload_folder(checkpoint, name)
    download(hub, name)
    hub.cdn_seen.clear()
    with streamer.stream(f"hf://{name}") as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"file": 4}
    assert not hub.cdn_seen


def test_half_a_cache_is_completed_from_the_hub(hub, name, checkpoint, reference):
    hub.upload_folder(checkpoint, name)
    download(hub, name, allow_patterns=["*1-of-00004.safetensors"])
    with streamer.stream(f"hf://{name}") as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"file": 1, "http": 3}


def test_the_cache_of_an_older_commit_is_not_used(hub, name):
    made = hub.make(name)
    made.commit({"a.bin": b"old"})
    download(hub, name)
    made.commit({"a.bin": b"new"})
    store = HfStore(f"hf://{name}/a.bin", {})
    assert isinstance(store.source(store.info(store.root)), HttpSource)


@pytest.mark.parametrize("end", ["", "@main", "/model.safetensors.index.json"])
def test_offline_the_cache_is_enough(hub, name, checkpoint, reference, monkeypatch, end):
    hub.upload_folder(checkpoint, name)
    download(hub, name)
    go_offline(hub, monkeypatch)
    with streamer.stream(f"hf://{name}{end}") as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"file": 4}
    assert not hub.seen


def test_an_uncached_file_is_not_found_offline(hub, name, monkeypatch):
    made = hub.make(name)
    made.commit({"a.bin": b"a", "b.bin": b"b"}, "main", "v1")
    download(hub, name, allow_patterns=["a.bin"])
    go_offline(hub, monkeypatch)
    store = HfStore(f"hf://{name}", {})
    assert [info.path for info in store.find(store.root)] == [f"{name}/a.bin"]
    assert isinstance(store.source(store.info(f"{name}/a.bin")), FileSource)
    for absent in (f"hf://{name}/b.bin", f"hf://{name}@v1/a.bin", "hf://ada/never-seen"):
        with pytest.raises(streamer.ObjectNotFoundError, match="HF_HUB_OFFLINE"):
            streamer.load(absent)
    assert not hub.seen


def test_the_librarys_own_environment_is_obeyed(hub, name, checkpoint, tmp_path):
    """In a process of its own, because huggingface_hub reads these variables when it is imported."""
    hub.upload_folder(checkpoint, name)
    download(hub, name, cache_dir=str(tmp_path / "home" / "hub"))
    code = f"import streamer; print(streamer.open('hf://{name}', framework='np').keys())"
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert "norm" in done.stdout, done.stderr


# --- errors -----------------------------------------------------------------------------------------------------------


def shown(error):
    return "".join(traceback.format_exception(error)) + repr(error)


REFUSALS = {
    "no repository": ("hf://ada/nix", None, streamer.ObjectNotFoundError, "private.*HF_TOKEN"),
    "no repository, with a login": ("hf://ada/nix", STRANGER, streamer.ObjectNotFoundError, "private.*HF_TOKEN"),
    "private": ("hf://ada/private", None, streamer.ObjectNotFoundError, "private.*HF_TOKEN"),
    "private, of others": ("hf://ada/private", STRANGER, streamer.ObjectNotFoundError, "private.*HF_TOKEN"),
    "gated": ("hf://ada/gated", None, streamer.AccessDeniedError, "(?s)gated.*terms.*HF_TOKEN"),
    "gated, not accepted": ("hf://ada/gated", STRANGER, streamer.AccessDeniedError, "(?s)gated.*terms.*HF_TOKEN"),
    "bad token": ("hf://ada/open", CANARY, streamer.CredentialsError, "does not accept this token"),
    "no revision": ("hf://ada/open@nix", None, streamer.ObjectNotFoundError, "no such branch, tag or commit"),
    "no commit": (f"hf://ada/open@{'0' * 40}", None, streamer.ObjectNotFoundError, "no such branch, tag or commit"),
    "no file": ("hf://ada/open/nix.safetensors", None, streamer.ObjectNotFoundError, "no such file"),
    "no folder": ("hf://ada/open/nix", None, streamer.ObjectNotFoundError, "no such file"),
}


@pytest.mark.parametrize(("uri", "token", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_the_hub_refuses_has_its_own_class(hub, uri, token, error, message, caplog):
    caplog.set_level(logging.DEBUG)
    weights = {"x.safetensors": b"\x02\0\0\0\0\0\0\0{}"}
    hub.make("ada/open").commit(weights)
    hub.make("ada/private", private=True).commit(weights)
    hub.make("ada/gated", gated=True).commit(weights)
    with pytest.raises(error, match=message) as caught:
        streamer.load(uri, storage_options={"token": token or False})
    assert uri in str(caught.value)
    assert caught.value.request_id == "Root=1-hub"
    assert not token or token not in shown(caught.value) + "".join(caplog.messages)


@each_row(
    ("options", "error"),
    [
        ({"endpoint": "http://127.0.0.1:9"}, streamer.ConnectError),
        ({"endpoint": "https://127.0.0.1:9"}, streamer.ConnectError),
        ({"endpoint": f"http://ada:{CANARY}@127.0.0.1:9"}, streamer.OptionError),
        ({"endpoint": "file:///etc"}, streamer.OptionError),
        ({"token": 5}, streamer.OptionError),
        ({"token": f"{CANARY}\r\nX-Other: x"}, streamer.OptionError),
        ({"verify": False}, streamer.OptionError),
    ],
)
def test_a_hub_that_cannot_be_asked_has_its_own_class_and_shows_no_secret(options, error):
    with pytest.raises(error) as caught:
        streamer.load("hf://ada/open", storage_options={"token": CANARY, **options})
    assert CANARY not in shown(caught.value)


def test_only_the_named_hub_gets_requests_regression(hub_server, name, checkpoint, tmp_path):
    hub_server.upload_folder(checkpoint, name)
    code = f"""
import streamer
assert streamer.load("hf://{name}", storage_options={{"endpoint": "{hub_server.url}", "token": False}}, progress=False)
"""
    with ScriptedServer(b"") as other:  # what huggingface_hub would ask of its own accord
        environment = {**os.environ, "HF_ENDPOINT": other.url.rpartition("/")[0], "HF_HOME": str(tmp_path)}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
        assert other.requests == []


def test_token_true_without_a_login_says_so():
    with pytest.raises(streamer.CredentialsError, match="no saved login"):
        streamer.load("hf://ada/open", storage_options={"token": True})


def test_a_server_that_is_no_hub_is_recognised():
    with ScriptedServer(b"<html>") as other:
        endpoint = other.url.removesuffix("/object")
        with pytest.raises(streamer.StorageError, match="heck the endpoint"):
            streamer.load("hf://ada/open", storage_options={"endpoint": endpoint, "token": False})


def test_the_token_does_not_follow_the_pages_of_a_listing_to_another_host():
    link = {"Link": '<http://localhost:1/next>; rel="next"'}
    with ScriptedServer(b"") as lying:
        lying.script = lambda request, answer: answer.become(200, b"[]", **link)
        store = HfStore(f"hf://ada/open@{'0' * 40}", {"endpoint": lying.url.removesuffix("/object"), "token": CANARY})
        with pytest.raises(streamer.StorageError, match="another server"):
            store.find(store.root)
    assert len(lying.requests) == 1


@each_row("relation", ['rel="next"', "rel=next", 'title="page 2"; Rel="last next"'])
@each_row("prefix", ["", "/api/hub/proxy"])
def test_all_pages_come_from_the_mirror_that_was_named_regression(prefix, relation):
    """Page two was overlooked, or sought at the original host; now all is asked from the mirror, below its path."""
    shard = (2).to_bytes(8, "little") + b"{}"
    commit = "5" * 40
    tree = f"{prefix}/api/models/ada/open/tree/{commit}"
    with ScriptedServer(b"") as origin, ScriptedServer(shard) as mirror:

        def script(request, answer):
            if not request.path.startswith(tree):
                return
            page = int("cursor=b" in request.path)
            listed = json.dumps([{"type": "file", "path": f"{page}.safetensors", "size": len(shard)}]).encode()
            link = f"<http://127.0.0.1:{origin.port}{tree.removeprefix(prefix)}?cursor=b>; {relation}"
            answer.become(200, listed, **({} if page else {"Link": link}))

        mirror.script = script
        endpoint = mirror.url.removesuffix("/object") + prefix
        store = HfStore(f"hf://ada/open@{commit}", {"endpoint": endpoint, "token": CANARY})
        assert [info.path.rpartition("/")[2] for info in store.find(store.root)] == ["0.safetensors", "1.safetensors"]
    assert origin.requests == []


def test_a_listing_whose_link_cannot_be_parsed_is_no_whole_one_regression():
    with ScriptedServer(b"") as odd:
        odd.script = lambda request, answer: answer.become(200, b"[]", Link="</next?cursor=b> rel=next")
        store = HfStore(f"hf://ada/open@{'0' * 40}", {"endpoint": odd.url.removesuffix("/object"), "token": False})
        with pytest.raises(streamer.StorageError, match="cannot be parsed"):
            store.find(store.root)


def test_a_file_of_another_size_than_listed_is_refused(hub, name):
    made = hub.make(name)
    sha = made.commit({"a.bin": b"12345"})
    store = HfStore(f"hf://{name}", {})
    (info,) = store.find(store.root)
    made.commits[sha]["a.bin"] = b"123"
    with pytest.raises(streamer.ChangedError):
        store.source(info)


def test_a_python_source_is_what_a_host_without_ranges_gets(hub, name):
    hub.make(name).commit({"large.bin": bytes(2 << 20)})
    hub.honours_ranges = False
    store = HfStore(f"hf://{name}/large.bin", {})
    assert isinstance(store.source(store.info(store.root)), PythonSource)


def test_a_mistyped_option_is_refused(hub_server):
    with pytest.raises(streamer.OptionError, match="hf:// has no storage option 'tokn'"):
        streamer.load("hf://owner/name", storage_options={"tokn": "x", "endpoint": hub_server.url})


def test_a_web_server_that_is_no_hub_is_reported_regression(tmp_path, monkeypatch):
    """It was reported as a missing file, with advice about index pages."""
    with ScriptedServer(b"", lambda _, answer: answer.become(404, b"<html>", Content_Type="text/html")) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.port}")
        for revision in ("", "@" + "a" * 40):
            with pytest.raises(
                streamer.ObjectNotFoundError, match=r"not one of the Hub's \(HTTP 404\)\. Check the endp"
            ):
                streamer.load(f"hf://ada/model{revision}")
