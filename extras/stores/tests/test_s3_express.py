"""Directory buckets: the contract, their sessions, and what only their signatures may do."""

from __future__ import annotations

import numpy as np
import pytest
from express_server import BUCKET, KEY, READER, REGION, SECRET, ExpressServer
from safetensors.numpy import save

import streamer
from streamer.plugins.contract import BackendContract

TENSORS = {"a": np.arange(300_000, dtype=np.float32), "b": np.ones((3, 5), dtype=np.float16)}
FOLDER = f"s3express://{BUCKET}/llama"


@pytest.fixture
def server():
    with ExpressServer() as server:
        server.put("llama/model.safetensors", save(TENSORS))
        yield server


class TestContract(BackendContract):
    folder_uri = f"s3express://{BUCKET}/contract"
    secrets = (SECRET, "session-0-of-the-tests")

    @pytest.fixture(autouse=True)
    def _on_a_server(self):
        with ExpressServer() as self.server:
            self.storage_options = self.server.options()
            self.denied_options = self.server.options(key="AKIAANOTHERKEY")
            yield

    def put(self, name, data):
        self.server.put(f"contract/{name}", data)

    def delete(self, name):
        self.server.objects.pop(f"contract/{name}", None)


def assert_loads(server, **options):
    options = {**server.options(), **options}
    loaded = streamer.load(FOLDER, storage_options=options, framework="np", progress=False)
    assert all(np.array_equal(loaded[name], TENSORS[name]) for name in TENSORS)


def test_one_session_serves_a_load(server):
    assert_loads(server)
    assert sum("session" in path.partition("?")[2] and "X-Amz" not in path for _, path in server.seen) == 1


def test_a_cache_serves_the_next_load(server, tmp_path):
    """A login that is an object of this process would keep the bucket out of caches and of shared reads."""

    def loaded(**options):
        options = {"storage_options": server.options(**options), "options": streamer.Options(cache_dir=tmp_path)}
        with streamer.stream(FOLDER, framework="np", progress=False, **options) as stream:
            assert np.array_equal(dict(stream)["a"], TENSORS["a"])
        return [path for _, path in server.seen if path.partition("?")[0].endswith(".safetensors")]

    first = loaded()
    assert loaded() == first
    assert len(loaded(key=READER)) > len(first)  # another login may not find the same


def test_the_ordinary_signature_is_refused(server):
    """By the stand-in, as by S3: otherwise the other tests would prove nothing."""
    with pytest.raises(streamer.AccessDeniedError):
        streamer.load(
            FOLDER.replace("s3express", "s3"), storage_options=server.options(), framework="np", progress=False
        )


def test_on_amazons_own_hosts_s3_says_what_is_needed():
    with pytest.raises(streamer.UsageError, match="plug-in for directory buckets"):
        streamer.load(f"s3://{BUCKET}/llama", storage_options={"key": KEY, "secret": SECRET}, framework="np")


def test_a_login_that_may_only_read_gets_a_session_for_that(server):
    assert_loads(server, key=READER)
    assert {mode for _, _, mode in server.sessions.values()} == {"ReadOnly"}


def test_a_session_that_ends_during_a_load_is_renewed(server):
    server.lifetime_s = 0  # each is renewed before its next use
    reads = []

    def script(handler):
        if "X-Amz-S3session-Token" in handler.query:
            reads.append(handler.path)
            if len(reads) == 2:
                server.sessions.clear()

    server.script = script
    options = streamer.Options(block_bytes=100_000)
    loaded = streamer.load(FOLDER, storage_options=server.options(), framework="np", progress=False, options=options)
    assert np.array_equal(loaded["a"], TENSORS["a"])
    assert len(server.sessions) < len([path for _, path in server.seen if path.endswith("?session")])


def test_a_session_is_renewed_by_the_clock_of_the_server_regression(server):
    server.clock_s, server.lifetime_s = 600, 30  # each session ends within the minute in which it is renewed
    assert_loads(server)
    assert len(server.sessions) > 1


@pytest.mark.parametrize("place", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "profile", "services"])
def test_an_endpoint_of_the_environment_is_that_of_the_sessions_regression(server, place, tmp_path, monkeypatch):
    lines = {
        "profile": f"[default]\nendpoint_url = {server.url}\n",
        "services": f"[default]\nservices = local\n[services local]\ns3 =\n  endpoint_url = {server.url}\n",
    }
    (tmp_path / "config").write_text(lines.get(place, ""))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if place not in lines:
        monkeypatch.setenv(place, server.url)
    options = {name: value for name, value in server.options().items() if name != "endpoint_url"}
    loaded = streamer.load(FOLDER, storage_options=options, framework="np", progress=False)
    assert np.array_equal(loaded["a"], TENSORS["a"])


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_region_of_the_environment_is_that_of_the_sessions_regression(server, variable, monkeypatch):
    monkeypatch.setenv(variable, REGION)
    assert_loads(server, client_kwargs={})


def test_a_session_that_ends_early_is_made_anew_regression(server):
    """The load gave up after half a minute, and the save at once: both went on with the keys of the old session."""
    ended = []

    def script(handler):
        if handler.command == "PUT" or "Range" in handler.headers:
            ended.append(handler.path)
            if len(ended) == 2:
                server.sessions.clear()

    server.script = script
    streamer.save(TENSORS, f"s3express://{BUCKET}/new", storage_options=server.options(), progress=False)
    assert len(ended) > 2
    ended.clear()
    assert_loads(server)
    assert len(ended) > 2


def test_a_mistake_is_named_by_what_was_mistaken_regression(server, tmp_path, monkeypatch):
    with pytest.raises(streamer.CredentialsError, match="no such profile"):
        assert_loads(server, profile="nobody")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "config").write_text("no section")
    with pytest.raises(streamer.CredentialsError, match="cannot be read"):
        assert_loads(server, profile="nobody")
    monkeypatch.delenv("AWS_CONFIG_FILE")
    server.script = lambda handler: (
        handler.path.endswith("?session") and (handler.send(404, b"<Error><Code>NoSuchBucket</Code></Error>") or True)
    )
    with pytest.raises(streamer.ObjectNotFoundError, match="no such bucket"):
        assert_loads(server)


def test_a_fault_of_the_server_makes_no_session_that_cannot_write_regression(server):
    failed = []

    def script(handler):
        if len(failed) < 6 and handler.headers.get("x-amz-create-session-mode") == "ReadWrite":
            failed.append(handler.path)
            handler.send(503, Retry_After="0")
            return True
        return False

    server.script = script
    streamer.save(TENSORS, f"s3express://{BUCKET}/new", storage_options=server.options(), progress=False)
    assert len(failed) == 6


def test_a_checkpoint_is_saved_in_parts_and_not_replaced_by_accident(server):
    uri = f"s3express://{BUCKET}/new"
    how = {"storage_options": server.options(), "progress": False}
    streamer.save(TENSORS, uri, max_shard_bytes=1_100_000, **how)
    loaded = streamer.load(uri, storage_options=server.options(), framework="np", progress=False)
    assert all(np.array_equal(loaded[name], TENSORS[name]) for name in TENSORS)
    assert any("partNumber" in path for _, path in server.seen)
    with pytest.raises(streamer.UsageError):
        streamer.save(TENSORS, uri, **how)
    streamer.save({"c": np.zeros(3)}, uri, overwrite=True, resume=True, **how)
    assert list(streamer.load(uri, storage_options=server.options(), framework="np", progress=False)) == ["c"]


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (403, b"<Error><Code>AccessDenied</Code></Error>", streamer.AccessDeniedError),
        (404, b"<Error><Code>NoSuchBucket</Code></Error>", streamer.ObjectNotFoundError),
        (200, b"<html>a page of a proxy</html>", streamer.StorageError),
    ],
)
def test_a_refused_session_is_an_error_with_its_reason(server, status, body, error):
    server.script = lambda handler: handler.path.endswith("?session") and (handler.send(status, body) or True)
    with pytest.raises(error) as caught:
        streamer.load(f"{FOLDER}/model.safetensors", storage_options=server.options(), framework="np", progress=False)
    assert SECRET not in str(caught.value)


def test_faults_that_pass_are_waited_for(server):
    failed = []

    def script(handler):
        if len(failed) < 2 and handler.command == "GET":
            failed.append(handler.path)
            handler.send(503, Retry_After="0")
            return True
        return False

    server.script = script
    assert_loads(server)
    assert len(failed) == 2


@pytest.mark.parametrize(
    "uri", ["s3express://weights/llama", f"s3express://{BUCKET.upper()}/llama", "s3express:///llama"]
)
def test_other_buckets_are_refused(uri):
    with pytest.raises(streamer.UsageError, match="not the URL of a directory bucket"):
        streamer.load(uri, framework="np", storage_options={"key": KEY, "secret": SECRET})


def test_a_version_is_refused():
    with pytest.raises(streamer.UsageError, match="keep no versions"):
        streamer.load(f"{FOLDER}/model.safetensors?versionId=7", framework="np")


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:80", "http://127.0.0.1:80/b"),
        ("http://[::1]:80", "http://[::1]:80/b"),
        (
            "https://s3express-usw2-az1.us-west-2.amazonaws.com/",
            "https://b.s3express-usw2-az1.us-west-2.amazonaws.com/",
        ),
    ],
)
def test_sessions_are_made_where_the_bucket_is(endpoint, url):
    from streamer_stores.s3_express import _url_of

    assert _url_of(endpoint, "b") == url
