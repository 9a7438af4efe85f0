"""The HTTP backend against nginx, and against scripted servers where nginx cannot misbehave."""

from __future__ import annotations

import gc
import logging
import shutil
import ssl
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp
import pytest
from comparison import assert_same
from pulls import wait_for
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends.client import redirects as http_redirects
from streamer.backends.http import stream as http_stream
from streamer.backends.http.client import HttpClient
from streamer.backends.http.options import merged_options
from streamer.backends.http.store import HttpStore
from streamer.backends.http.stream import OneStream
from streamer.core.options.limits import Limits
from streamer.core.store.sources import HttpSource, PythonSource
from streamer.plugins import open_store

pytestmark = pytest.mark.server

DATA = bytes(range(256)) * 64
SECRET = "hunter2-canary"
SMALL = streamer.Options(block_bytes=64 << 10)


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


@pytest.fixture
def two_servers():
    """A server, and another that it may redirect to; the second records what it is asked."""
    with ScriptedServer(DATA) as second, ScriptedServer(DATA) as first:
        yield first, second


def redirecting(first: ScriptedServer, to: str, status: int = 302) -> None:
    first.script = lambda request, answer: answer.become(status, Location=to)


def opened(uri: str, **options: Any) -> HttpStore:
    return HttpStore(uri, merged_options(options))


def source_of(uri: str, **options: Any) -> HttpSource:
    store = opened(uri, **options)
    source = store.source(store.info(store.root))
    assert isinstance(source, HttpSource)
    return source


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


# --- whole loads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end", ["", "/", "/model.safetensors.index.json", "/*.safetensors", "/model-0000[1-4]-of-00004.safetensors"]
)
def test_every_way_to_name_it_gives_equal_tensors(http_server, reference, end):
    with streamer.stream(f"{http_server.http_url}/open/model{end}") as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"http": 4}
    assert stream.report.remarks == ()


def test_an_index_works_where_folders_are_not_shown(http_server, reference):
    uri = f"{http_server.http_url}/unlisted/model"
    assert_same(streamer.load(f"{uri}/model.safetensors.index.json"), reference)
    assert_same(streamer.load(uri), reference)  # by the usual name of an index


def test_a_folder_that_is_not_shown_and_has_no_usual_names_is_refused(http_server, checkpoint):
    folder = http_server.root / "unusual"
    folder.mkdir(exist_ok=True)
    shutil.copy(next(checkpoint.glob("*.safetensors")), folder / "weights.safetensors")
    with pytest.raises(streamer.AccessDeniedError, match="name a file or an index"):
        streamer.load(f"{http_server.http_url}/unlisted/unusual")


def test_it_loads_over_tls_under_a_ca_that_an_option_names(https_server, reference):
    options = {"verify": https_server.ca_file}
    assert_same(streamer.load(f"{https_server.https_url}/open/model", storage_options=options), reference)


def test_it_loads_over_tls_under_a_ca_of_the_environment(https_server, reference, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", https_server.ca_file)
    assert_same(streamer.load(f"{https_server.https_url}/open/model"), reference)


LOGINS = {
    "pair": lambda server: {"auth": (server.user, server.password)},
    "client": lambda server: {"client_kwargs": {"auth": (server.user, server.password)}},
    "header": lambda server: {"headers": {"Authorization": server.basic}},
    "client header": lambda server: {"client_kwargs": {"headers": {"authorization": server.basic}}},
}


@pytest.mark.parametrize("login", LOGINS.values(), ids=LOGINS)
def test_it_loads_with_basic_auth(http_server, reference, login):
    uri = f"{http_server.http_url}/private/model"
    assert_same(streamer.load(uri, storage_options=login(http_server)), reference)


@pytest.mark.filterwarnings("ignore:BasicAuth is deprecated")
def test_aiohttps_own_login_is_understood(http_server, reference):
    auth = aiohttp.BasicAuth(http_server.user, http_server.password)
    assert_same(streamer.load(f"{http_server.http_url}/private/model", storage_options={"auth": auth}), reference)


def test_a_user_in_the_url_is_sent_as_a_header_and_never_shown(http_server, reference):
    place = f"{http_server.user}:{http_server.password}@"
    uri = f"{http_server.http_url.replace('://', '://' + place)}/private/model"
    with streamer.stream(uri) as stream:
        assert_same(dict(stream), reference)
    assert http_server.password not in str(stream.report)
    assert http_server.password not in opened(uri).root


def test_a_netrc_is_read_only_where_the_user_says_so(http_server, reference, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login {http_server.user} password {http_server.password}\n")
    netrc.chmod(0o600)
    uri = f"{http_server.http_url}/private/model"
    with pytest.raises(streamer.CredentialsError):
        streamer.load(uri)
    assert_same(streamer.load(uri, storage_options={"client_kwargs": {"trust_env": True}}), reference)


def test_it_loads_with_a_bearer_token(http_server, reference):
    options = {"headers": {"Authorization": f"Bearer {http_server.token}"}}
    assert_same(streamer.load(f"{http_server.http_url}/bearer/model", storage_options=options), reference)


def test_a_file_system_the_user_made_is_read_natively(http_server, reference):
    from fsspec.implementations.http import HTTPFileSystem

    fs = HTTPFileSystem(headers={"Authorization": f"Bearer {http_server.token}"})
    with streamer.stream(f"{http_server.http_url}/bearer/model", fs=fs) as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"http": 4}


def test_a_file_system_that_names_no_protocol_is_read_natively_regression(http_server, reference, monkeypatch):
    """As fsspec's of HTTP did until 2025: it was read through Python."""
    from fsspec.implementations.http import HTTPFileSystem

    monkeypatch.setattr(HTTPFileSystem, "protocol", "abstract")
    with streamer.stream(f"{http_server.http_url}/open/model", fs=HTTPFileSystem()) as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"http": 4}


def test_what_only_fsspec_can_honour_is_read_through_it_with_a_remark(https_server, reference):
    options = {"ssl": ssl.create_default_context(cafile=https_server.ca_file)}
    with streamer.stream(f"{https_server.https_url}/open/model", storage_options=options) as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"python": 4}
    assert "option ssl" in stream.report.remarks[0]


def test_a_query_is_sent_for_every_object_and_never_shown(http_server, reference):
    uri = f"{http_server.http_url}/open/model/model.safetensors.index.json?sig={SECRET}"
    with streamer.stream(uri) as stream:
        assert_same(dict(stream), reference)
    assert SECRET not in str(stream.report)
    asked = {each.uri.partition("?")[0] for each in http_server.requests(SECRET)}
    assert {f"/open/model/model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)} < asked


def test_names_that_need_quoting_are_listed_and_read(http_server):
    folder = http_server.root / "odd"
    folder.mkdir(exist_ok=True)
    names = ["a b.bin", "100%.bin", "größe.bin", "what?.bin", "c#.bin", "a&b+c.bin"]
    for name in names:
        (folder / name).write_bytes(name.encode())
    (folder / "sub").mkdir(exist_ok=True)
    store = opened(f"{http_server.http_url}/open/odd")
    found = {unquote(info.path.rpartition("/")[2]): store.source(info) for info in store.find(store.root)}
    assert sorted(found) == sorted(names)
    for name, source in found.items():
        assert urllib.request.urlopen(source.url).read() == name.encode()


# --- what is reported ------------------------------------------------------------------------------------------------


def test_info_has_size_and_etag_and_the_source_sends_no_more_requests(http_server):
    store = opened(f"{http_server.http_url}/open/model/model-00001-of-00004.safetensors?count=me")
    info = store.info(store.root)
    while not (before := len(http_server.requests("count=me"))):  # the log is written after the answer
        time.sleep(0.01)
    source = store.source(info)
    assert len(http_server.requests("count=me")) == before
    assert info.size_bytes == (http_server.root / "model/model-00001-of-00004.safetensors").stat().st_size
    assert (source.version, source.version_header) == (info.version, "ETag")


def test_without_an_etag_the_modification_time_is_the_version(two_servers):
    first, _ = two_servers
    reported = "Wed, 21 Oct 2015 07:28:00 GMT"
    first.script = lambda request, answer: (
        answer.headers.pop("ETag"),
        answer.headers.update({"Last-Modified": reported}),
    )
    source = source_of(first.url)
    assert (source.version, source.version_header) == (reported, "Last-Modified")


def test_without_etag_and_modification_time_no_version_is_pinned(two_servers):
    first, _ = two_servers
    first.script = lambda request, answer: answer.headers.pop("ETag")
    source = source_of(first.url)
    assert (source.version, source.version_header) == (None, "ETag")


@pytest.mark.parametrize("location", ["open", "whole"])
@pytest.mark.parametrize("size", [0, 1])
def test_an_empty_file_and_one_of_a_byte_have_their_sizes(http_server, location, size):
    (http_server.root / f"tiny{size}.bin").write_bytes(b"x" * size)
    store = opened(f"{http_server.http_url}/{location}/tiny{size}.bin")
    info = store.info(store.root)
    assert info.size_bytes == size
    assert isinstance(store.source(info), HttpSource)


def test_an_object_of_another_store_is_looked_up_again_and_must_be_the_same(two_servers):
    first, _ = two_servers
    store = opened(first.url)
    info = store.info(store.root)
    assert opened(first.url).source(info).version == '"v1"'
    first.etag = '"v2"'
    with pytest.raises(streamer.ChangedError):
        opened(first.url).source(info)


def test_a_range_that_is_another_one_is_refused(two_servers):
    first, _ = two_servers
    first.script = lambda request, answer: answer.headers.update({"Content-Range": f"bytes 1-1/{len(DATA)}"})
    with pytest.raises(streamer.RangeResponseError):
        source_of(first.url)


def test_a_compressed_answer_is_refused(two_servers):
    first, _ = two_servers
    first.script = lambda request, answer: answer.headers.update({"Content-Encoding": "gzip"})
    with pytest.raises(streamer.RangeResponseError, match="compresses"):
        source_of(first.url)


# --- redirects --------------------------------------------------------------------------------------------------------

GIVEN = {"headers": {"Authorization": f"Bearer {SECRET}", "Cookie": f"c={SECRET}", "X-Custom": SECRET}}


def test_a_load_follows_a_redirect_to_another_host(http_server, reference):
    uri = f"{http_server.http_url}/moved/model/model.safetensors.index.json"
    assert_same(streamer.load(uri, storage_options=GIVEN), reference)
    at_other_host = [seen for seen in http_server.requests("/open/") if seen.host.startswith("localhost")]
    assert len(at_other_host) > 8
    assert {(seen.authorization, seen.cookie, seen.custom) for seen in at_other_host} == {("", "", "")}
    assert all(SECRET in seen.authorization + seen.custom for seen in http_server.requests("/moved/"))


def test_a_redirect_to_the_metadata_server_is_refused(two_servers):
    first, _ = two_servers
    redirecting(first, "http://169.254.169.254/latest/meta-data")
    with pytest.raises(streamer.RedirectError, match="redirects to a link-local address"):
        source_of(first.url)


@pytest.mark.parametrize("allowed", [True, False])
def test_redirects_to_this_machine_can_be_allowed(two_servers, monkeypatch, allowed):
    first, second = two_servers
    # 127.0.0.1, where the first server is, passes for an address elsewhere.
    monkeypatch.setattr(http_redirects, "_locality", lambda host: "loopback" if host == "localhost" else "")
    target = second.url.replace("127.0.0.1", "localhost")
    redirecting(first, target)
    with nullcontext() if allowed else pytest.raises(streamer.RedirectError, match="loopback"):
        assert source_of(first.url, local_redirects=allowed).url == target


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_headers_stay_behind_when_the_port_differs(two_servers, status):
    first, second = two_servers
    redirecting(first, second.url, status)
    source = source_of(first.url, **GIVEN)
    assert (source.url, dict(source.headers)) == (second.url, {})
    assert first.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in str(second.requests[0].headers)


def test_headers_go_along_within_one_server(two_servers):
    first, _ = two_servers

    def script(request, answer):
        if request.path == "/object":
            answer.become(302, Location="other?a=b")

    first.script = script
    source = source_of(first.url, **GIVEN)
    assert source.url == first.url.replace("/object", "/other?a=b")
    assert source.headers["authorization"] == f"Bearer {SECRET}"


def test_headers_are_not_taken_up_again_on_the_way_back(two_servers):
    first, second = two_servers

    def script(request, answer):
        if request.path == "/object":
            answer.become(302, Location=second.url)

    first.script = script
    redirecting(second, first.url.replace("/object", "/back"))
    assert dict(source_of(first.url, **GIVEN).headers) == {}
    assert SECRET not in str(first.requests[-1].headers)


def test_a_listing_shows_no_header_to_the_host_it_is_redirected_to(two_servers):
    first, second = two_servers
    redirecting(first, second.url)
    opened(first.url, **GIVEN).find(first.url)
    assert second.requests
    assert SECRET not in str(second.requests[0].headers)


@pytest.mark.parametrize(
    "refusal",
    [
        b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
        b"<Error><Code>AccessDenied</Code><Message>Access denied</Message></Error>",  # as CloudFront says it
        b"",
    ],
)
def test_a_redirect_target_that_expires_is_found_again(two_servers, reference, checkpoint, refusal):
    """The second host takes each address for some requests only, as signed ones expire."""
    first, second = two_servers
    second.data = first.data = (checkpoint / "model-00001-of-00004.safetensors").read_bytes()
    uses: dict[str, int] = {}

    def script(request, answer):
        uses[request.path] = uses.get(request.path, 0) + 1
        if uses[request.path] > 15:
            answer.become(403, refusal)

    second.script = script
    first.script = lambda request, answer: answer.become(302, Location=f"{second.url}?s={len(first.requests)}")
    with streamer.stream(first.url, options=SMALL) as stream:
        got = dict(stream)
    assert got
    assert_same(got, {name: reference[name] for name in got})
    assert stream.report.credential_refreshes >= 1


def test_a_redirect_target_that_refuses_is_resolved_once_more(two_servers):
    first, second = two_servers
    second.script = lambda request, answer: answer.become(403) if request.number else None
    first.script = lambda request, answer: answer.become(302, Location=second.url)
    with pytest.raises(streamer.AccessDeniedError):
        streamer.load(first.url)
    assert len(first.requests) == 2


def test_a_refresh_that_finds_another_version_raises(two_servers):
    first, second = two_servers
    redirecting(first, second.url)
    source = source_of(first.url)
    assert source.refresh is not None
    assert source.refresh() == source
    second.etag = '"v2"'
    with pytest.raises(streamer.ChangedError):
        source.refresh()


def test_a_signed_redirect_says_when_it_expires(two_servers):
    first, second = two_servers
    redirecting(first, f"{second.url}?X-Amz-Date=20300101T000000Z&X-Amz-Expires=60&X-Amz-Signature={SECRET}")
    source = source_of(first.url)
    assert source.expires_at_s == 1893456060.0
    assert SECRET not in repr(source)


BAD_REDIRECTS = {
    "round": ("/round/x.safetensors", "more than 5"),
    "ftp": ("/ftp/x.safetensors", "scheme that is not HTTP"),
}


@pytest.mark.parametrize(("path", "message"), BAD_REDIRECTS.values(), ids=BAD_REDIRECTS)
def test_a_redirect_that_leads_nowhere_is_refused(http_server, path, message):
    with pytest.raises(streamer.RedirectError, match=message):
        streamer.load(http_server.http_url + path)


def test_a_redirect_never_leaves_tls(https_server):
    with pytest.raises(streamer.RedirectError, match="from TLS to plain"):
        streamer.load(f"{https_server.https_url}/down/x.safetensors", storage_options={"verify": https_server.ca_file})


# --- servers without ranges -------------------------------------------------------------------------------------------


def test_a_server_without_ranges_is_read_in_one_stream(http_server, reference):
    with streamer.stream(f"{http_server.http_url}/whole/model") as stream:
        assert_same(dict(stream), reference)
    assert stream.report.readers == {"python": 4}
    assert stream.report.remarks == (f"{http_server.http_url} does not honour byte ranges: read in one stream",)


def test_many_small_blocks_and_threads_still_make_one_request_per_reading(http_server, reference, monkeypatch):
    monkeypatch.setattr(http_stream, "EARLY_WAIT_S", 2.0)  # so that a busy machine cannot change the count
    mark = "?blocks=small"
    uri = f"{http_server.http_url}/whole/model/model.safetensors.index.json{mark}"
    assert_same(streamer.load(uri, options=SMALL), reference)

    def whole_answers() -> int:
        seen = [each for each in http_server.requests(mark) if ".safetensors?" in each.uri]
        return len([each for each in seen if not each.range])

    # The first byte, the header, and the data behind it, of each of four shards. The server notes an answer at its end.
    wait_for(lambda: whole_answers() >= 4 * 2)
    assert whole_answers() == 4 * 2


def one_stream(server: ScriptedServer, limits: Limits | None = None) -> OneStream:
    """A reader of the server's only object."""
    server.script = server.script or without_ranges
    store = opened(server.url)
    info = store.info(store.root)
    client = HttpClient(store._access, limits=limits or Limits())
    return OneStream(client, store._start(store.root), info, store._probes[store.root])


def without_ranges(request, answer):
    answer.status, answer.body = 200, DATA
    answer.headers = {"Content-Length": str(len(DATA)), "ETag": '"v1"'}


def read(reader: Any, begin: int, end: int) -> bytes:
    buffer = bytearray(end - begin)
    assert reader.read_into(memoryview(buffer), begin) == end - begin
    return bytes(buffer)


def test_blocks_asked_for_in_the_wrong_order_come_from_one_request(two_servers, monkeypatch):
    monkeypatch.setattr(http_stream, "EARLY_WAIT_S", 60.0)  # it ends with the first block, however busy the machine
    first, _ = two_servers
    reader = one_stream(first)
    found = {}
    early = threading.Thread(target=lambda: found.update(second=read(reader, 5000, 9000)))
    early.start()
    with reader._turn:
        assert reader._turn.wait_for(lambda: reader._waiting, 60)
    found["first"] = read(reader, 0, 5000)
    early.join()
    assert found == {"first": DATA[:5000], "second": DATA[5000:9000]}
    assert len(first.requests) == 2  # the probe, and the stream


def test_a_stream_skips_forward_and_starts_again_to_go_back(two_servers):
    first, _ = two_servers
    reader = one_stream(first)
    assert read(reader, 1000, 2000) == DATA[1000:2000]
    assert read(reader, 9000, 9001) == DATA[9000:9001]
    assert len(first.requests) == 2
    assert read(reader, 10, 20) == DATA[10:20]
    assert len(first.requests) == 3


def test_several_streams_of_one_server_do_not_mix(http_server):
    names = [f"part{number}.bin" for number in range(12)]
    for number, name in enumerate(names):
        (http_server.root / name).write_bytes(bytes([number]) * 300_000)
    readers = []
    for name in names:
        store = opened(f"{http_server.http_url}/whole/{name}")
        source = store.source(store.info(store.root))
        assert isinstance(source, PythonSource)
        readers.append(source)
    for begin in (0, 100_000, 200_000):
        for number, reader in enumerate(readers):
            assert read(reader, begin, begin + 100_000) == bytes([number]) * 100_000


def test_a_stream_that_breaks_off_is_read_again(two_servers):
    first, _ = two_servers

    def script(request, answer):
        without_ranges(request, answer)
        if request.number == 1:
            answer.sent_bytes = 7000

    first.script = script
    assert read(one_stream(first), 0, len(DATA)) == DATA
    assert len(first.requests) == 3


def test_a_stream_that_always_breaks_off_is_an_error_with_its_range(two_servers):
    first, _ = two_servers

    def script(request, answer):
        without_ranges(request, answer)
        answer.sent_bytes = 7000

    first.script = script
    with pytest.raises((streamer.TruncatedError, streamer.ConnectError)) as caught:
        read(one_stream(first), 0, len(DATA))
    assert caught.value.byte_range == (0, len(DATA))
    assert caught.value.attempts == 3


def test_a_stream_that_stalls_is_read_again_regression(two_servers):
    """A trickle counted as alive for as long as a byte came every 30 s."""
    first, _ = two_servers
    first.script = trickling(lambda request: request.number == 1)
    assert read(one_stream(first, Limits(stall_timeout_s=0.3)), 0, len(DATA)) == DATA
    assert len(first.requests) == 3


def test_a_stream_that_falls_silent_is_given_up_after_stall_timeout_s_regression(two_servers):
    """It took 30 s three times, whatever the options said."""
    first, _ = two_servers
    is_over = threading.Event()

    def script(request, answer):
        without_ranges(request, answer)
        if request.number > 0:
            write = answer.handler.wfile.write
            answer.handler.wfile.write = lambda data: (write(data[:1000]), is_over.wait(60))

    first.script = script
    try:
        with pytest.raises(streamer.TransferTimeoutError, match="stalled") as caught:
            read(one_stream(first, Limits(stall_timeout_s=0.1)), 0, len(DATA))
    finally:
        is_over.set()
    assert caught.value.attempts == 3


def test_a_stream_that_is_slow_is_given_up_after_block_deadline_s_regression(two_servers):
    first, _ = two_servers
    first.script = trickling(lambda request: request.number > 0)
    reader = one_stream(first, Limits(stall_bytes_per_s=1, stall_timeout_s=0.2, block_deadline_s=0.1))
    with pytest.raises(streamer.TransferTimeoutError, match="block_deadline_s") as caught:
        read(reader, 0, len(DATA))
    assert caught.value.attempts == 1


def trickling(is_meant: Callable[[Any], bool]) -> Callable[[Any, Any], None]:
    """Make a script that answers some requests at a kilobyte a second."""

    def script(request, answer):
        without_ranges(request, answer)
        if is_meant(request):
            write = answer.handler.wfile.write

            def trickle(data):
                for begin in range(0, len(data), 100):
                    write(data[begin : begin + 100])
                    time.sleep(0.1)

            answer.handler.wfile.write = lambda data: write(data) if data[:5] == b"HTTP/" else trickle(data)

    return script


@pytest.mark.parametrize(
    "change",
    [{"ETag": '"v2"'}, {"Content-Length": "10"}],
    ids=["version", "size"],
)
def test_a_stream_of_another_version_is_refused(two_servers, change):
    first, _ = two_servers

    def script(request, answer):
        without_ranges(request, answer)
        if request.number > 0:
            answer.headers.update(change)
            answer.body = answer.body[: int(answer.headers["Content-Length"])]

    first.script = script
    with pytest.raises(streamer.ChangedError):
        read(one_stream(first), 0, 100)


def test_a_compressed_stream_is_refused(two_servers):
    first, _ = two_servers

    def script(request, answer):
        without_ranges(request, answer)
        if request.number > 0:
            answer.headers["Content-Encoding"] = "gzip"

    first.script = script
    with pytest.raises(streamer.RangeResponseError):
        read(one_stream(first), 0, 100)


def test_a_forgotten_stream_gives_its_connection_back(two_servers):
    first, _ = two_servers
    has_left = threading.Event()

    def script(request, answer):
        answer.become(200, bytes(32 << 20), ETag='"v1"')  # more than the sockets between them hold
        try:
            answer.send()
        except OSError:
            if request.number > 0:
                has_left.set()
        answer.sent_bytes = 0

    first.script = script
    reader = one_stream(first)
    assert read(reader, 0, 100) == bytes(100)
    assert not has_left.is_set()
    del reader
    gc.collect()
    assert has_left.wait(30)


def test_a_file_of_unknown_size_is_refused_with_a_way_out(http_server):
    with pytest.raises(streamer.StorageError, match="Download it and load the copy") as caught:
        streamer.load(f"{http_server.http_url}/chunked/model/model-00001-of-00004.safetensors")
    assert "size" in caught.value.message


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/open/nix", streamer.ObjectNotFoundError),
        ("/open/nix.safetensors", streamer.ObjectNotFoundError),
        ("/private/model", streamer.CredentialsError),
        ("/private/model/x.safetensors", streamer.CredentialsError),
        ("/bearer/model", streamer.CredentialsError),
        ("/forbidden/x.safetensors", streamer.AccessDeniedError),
        ("/login/x.safetensors", streamer.CredentialsError),
        ("/login/model.safetensors.index.json", streamer.CredentialsError),
        ("/broken/x.safetensors", streamer.HttpStatusError),
        ("/round/x.safetensors", streamer.RedirectError),
        ("/ftp/x.safetensors", streamer.RedirectError),
        ("/chunked/model/model-00001-of-00004.safetensors", streamer.StorageError),
    ],
)
def test_what_a_server_refuses_has_its_own_class_and_shows_no_secret(http_server, path, error, caplog):
    caplog.set_level(logging.DEBUG)
    uri = f"{http_server.http_url.replace('://', f'://{SECRET}:{SECRET}@')}{path}?sig={SECRET}"
    with pytest.raises(error) as caught:
        streamer.load(
            uri, storage_options={"headers": {"X-Custom": SECRET}}, options=streamer.Options(block_deadline_s=0.1)
        )
    assert SECRET not in shown(caught.value) + "".join(caplog.messages)
    assert urlsplit(http_server.http_url).netloc in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("http://127.0.0.1:9/x.safetensors", streamer.ConnectError),
        ("https://127.0.0.1:9/x.safetensors", streamer.ConnectError),
        ("http://no-such-host.invalid/x.safetensors", streamer.ConnectError),
        ("http://", streamer.UsageError),
        ("http://127.0.0.1:port/x.safetensors", streamer.UsageError),
    ],
)
def test_an_unreachable_server_is_a_connect_error_without_a_secret(uri, error):
    uri = f"{uri}?sig={SECRET}"
    with pytest.raises(error) as caught:
        streamer.load(uri, storage_options={"headers": {"X-Custom": SECRET}})
    assert SECRET not in shown(caught.value)


def test_a_silent_server_is_a_timeout(two_servers):
    first, _ = two_servers
    first.script = lambda request, answer: first.stopping.wait()
    with pytest.raises(streamer.TransferTimeoutError) as caught:
        source_of(f"{first.url}?sig={SECRET}", timeout=0.2)
    assert caught.value.attempts == 2
    assert SECRET not in shown(caught.value)


def test_a_server_that_restarts_is_asked_again(two_servers):
    first, _ = two_servers

    def script(request, answer):
        if request.number < 2:
            answer.become(503)

    first.script = script
    assert source_of(first.url).version == '"v1"'
    assert len(first.requests) == 3


def test_a_signed_url_that_has_expired_says_so(two_servers):
    first, _ = two_servers
    body = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    first.script = lambda request, answer: answer.become(403, body)
    with pytest.raises(streamer.CredentialsError, match="has expired") as caught:
        source_of(first.url)
    assert caught.value.code == "AccessDenied"


def test_a_proxy_that_wants_credentials_shows_none(two_servers, https_server):
    """A server without CONNECT answers as a proxy that refuses; its URL holds a password."""
    first, _ = two_servers
    proxy = f"http://user:{SECRET}@{urlsplit(first.url).netloc}"
    with pytest.raises(streamer.StorageError) as caught:
        source_of(f"{https_server.https_url}/open/x", proxy=proxy, verify=https_server.ca_file)
    assert SECRET not in shown(caught.value)


def test_requests_and_reads_go_through_the_proxy_that_an_option_names(two_servers):
    first, second = two_servers
    source = source_of(second.url, proxy=f"http://{urlsplit(first.url).netloc}")
    assert first.requests[0].path == second.url
    assert not second.requests
    assert source.proxy == f"http://{urlsplit(first.url).netloc}"


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_obeyed(two_servers, monkeypatch, name):
    first, second = two_servers
    monkeypatch.setenv(name, f"http://{urlsplit(first.url).netloc}")
    monkeypatch.setenv("no_proxy", "")
    source_of(second.url)
    assert first.requests[0].path == second.url


def test_an_open_store_serves_both_schemes(http_server, https_server):
    assert isinstance(open_store(f"{http_server.http_url}/open"), HttpStore)
    assert isinstance(open_store(f"{https_server.https_url}/open"), HttpStore)


@pytest.mark.parametrize("kind", [None, "application/xhtml+xml"])
def test_a_page_of_links_needs_no_content_type_regression(kind):
    """The folder was one without files, and then a file that is not there."""

    def script(request, answer):
        if request.path == "/folder/":
            answer.become(200, b'\n<html><a href="a.safetensors">a</a>', **({"Content_Type": kind} if kind else {}))
        elif request.path == "/folder":
            answer.become(404)

    shard = (2).to_bytes(8, "little") + b"{}"
    with ScriptedServer(shard, script) as server:
        url = server.url.replace("/object", "/folder")
        assert [info.path for info in opened(url).find(url)] == [f"{url}/a.safetensors"]


def test_what_has_no_type_and_is_no_page_is_none():
    def script(request, answer):
        if request.path == "/folder/":
            answer.become(200, bytes(17 << 20))

    with ScriptedServer(b"x", script) as server:
        url = server.url.replace("/object", "/folder")
        assert opened(url).find(url) == []


def test_a_header_that_is_too_long_is_no_other_service_regression():
    def script(request, answer):
        answer.headers["X-Long"] = "a" * 200_000  # more than libcurl takes

    with ScriptedServer(b"x", script) as server, pytest.raises(streamer.StorageError, match=r"headers .* do not end"):
        opened(server.url).info(server.url)
