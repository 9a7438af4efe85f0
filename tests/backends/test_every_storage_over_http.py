"""What holds for the requests of every storage over HTTP: a name, demanded pauses, encodings, totals left open."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from importlib.metadata import version
from math import ceil
from typing import Any

import numpy as np
import pytest
import s3fs
from each_row import each_row
from servers.one_file import DATA, FILES, TENSORS, is_block, is_lookup, one_file, place_of
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import Options

pytestmark = pytest.mark.server

QUICK = Options(deadline_s=20, block_bytes=64 << 10)
OURS = f"streamer/{version('streamer')}"


def loaded(storage: str, server: ScriptedServer, **more: Any) -> dict[str, Any]:
    uri, options = place_of(storage, server)
    return streamer.load(uri, framework="np", storage_options={**options, **more}, options=QUICK)


def is_whole(tensors: dict[str, Any]) -> bool:
    return tensors.keys() == TENSORS.keys() and all(np.array_equal(tensors[name], TENSORS[name]) for name in TENSORS)


# --- a name -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", FILES)
def test_every_request_has_a_user_agent_regression(storage: str) -> None:
    """The engine sent no User-Agent, and the usual rules of firewalls answered 403."""

    def script(request: Request, answer: Answer) -> None:
        if not request.headers.get("user-agent"):
            answer.become(403, b"<html>Request blocked</html>", Content_Type="text/html")

    with one_file(script) as server:
        assert is_whole(loaded(storage, server))
    assert {request.headers["user-agent"] for request in server.requests if is_block(request)} == {OURS}


def test_the_users_own_name_wins_over_redirects_to_other_hosts_too_regression() -> None:
    with one_file() as cdn:

        def redirect(request: Request, answer: Answer) -> None:
            answer.become(302, Location=f"{cdn.url.removesuffix('/object')}/a.safetensors")

        with ScriptedServer(b"", redirect) as named:
            headers = {"User-Agent": "mine/1", "Authorization": "Bearer x"}
            url = f"http://127.0.0.1:{named.port}/a.safetensors"
            assert is_whole(streamer.load(url, framework="np", storage_options={"headers": headers}, options=QUICK))
    assert {request.headers.get("user-agent") for request in [*named.requests, *cdn.requests]} == {"mine/1"}
    assert not any("authorization" in request.headers for request in cdn.requests)
    assert any(is_block(request) for request in cdn.requests)


@each_row(
    ("config", "of_lookups", "of_blocks"),
    [
        ({"user_agent": "mine/1"}, "mine/1", "mine/1"),
        ({"user_agent": "mine/1", "user_agent_extra": "team/a"}, "mine/1 ", "mine/1 team/a"),
        ({"user_agent_extra": "team/a"}, "", f"{OURS} team/a"),
        ({"user_agent_extra": "team/a", "user_agent_appid": "shop"}, "", f"{OURS} app/shop team/a"),
    ],
)
@each_row("way", ["options", "file system"])
def test_s3s_configuration_of_the_name_counts_on_both_planes_regression(
    config: dict[str, str], of_lookups: str, of_blocks: str, way: str
) -> None:
    """Lookups had the user's name, and the engine's reads its own."""
    with one_file() as server:
        if way == "options":
            assert is_whole(loaded("s3", server, config_kwargs=config))
        else:
            uri, options = place_of("s3", server)
            fs = s3fs.S3FileSystem(**options, config_kwargs=config)
            assert is_whole(streamer.load(uri, framework="np", fs=fs, options=QUICK))
    lookups = [each.headers["user-agent"] for each in server.requests if is_lookup(each)]
    assert lookups
    assert all(name.startswith(of_lookups) and name.endswith(config.get("user_agent_extra", "")) for name in lookups)
    assert {each.headers["user-agent"] for each in server.requests if is_block(each)} == {of_blocks}


def test_the_headers_of_gcs_sessions_are_those_of_reads_too_regression() -> None:
    with one_file() as server:
        headers = {"User-Agent": "mine/1", "X-Team": "a", "Accept-Encoding": "br"}
        assert is_whole(loaded("gs", server, session_kwargs={"headers": headers}))
    assert {(each.headers["user-agent"], each.headers["x-team"]) for each in server.requests} == {("mine/1", "a")}
    assert {each.headers["accept-encoding"] for each in server.requests if is_block(each)} == {"identity"}


def test_the_application_in_the_environment_is_named_in_reads_too_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "shop")
    with one_file() as server:
        assert is_whole(loaded("s3", server))
    assert all("app/shop" in each.headers["user-agent"] for each in server.requests)


@pytest.mark.parametrize("name", ["user_agent", "user_agent_appid", "user_agent_extra"])
def test_a_name_that_cannot_be_sent_is_refused_before_the_first_request(name: str) -> None:
    with one_file() as server:
        for value, fault in (("mine/1\n", "line feed"), (5, "must be text")):
            with pytest.raises(streamer.OptionError, match=fault):
                loaded("s3", server, config_kwargs={name: value})
    assert server.requests == []


# --- demanded pauses --------------------------------------------------------------------------------------------------


def a_date(seconds: float) -> dict[str, str]:
    now = time.time()
    return {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(ceil(now + seconds), usegmt=True)}


def a_date_of_a_wrong_clock(seconds: float) -> dict[str, str]:
    now = int(time.time()) + 3600
    return {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now + seconds, usegmt=True)}


DEMANDS: dict[str, Callable[[float], dict[str, str]]] = {
    "seconds": lambda seconds: {"Retry-After": str(ceil(seconds))},
    "date": a_date,
    "date of a wrong clock": a_date_of_a_wrong_clock,
    "RateLimit": lambda seconds: {"RateLimit": f'"api";r=0;t={ceil(seconds)}'},
}


def refusing(
    concerned: Callable[[Request], bool], demand: Callable[[], dict[str, str]], seconds: float
) -> tuple[ScriptedServer, list[float]]:
    """Make a server that refuses the concerned requests for so long, and the times of those after the first refusal."""
    began: list[float] = []

    def script(request: Request, answer: Answer) -> None:
        now = time.monotonic()
        if not concerned(request) or (began and now - began[0] >= seconds):
            return
        began.append(now)
        answer.become(429)
        answer.headers |= demand()

    return one_file(script), began


@each_row("demand", DEMANDS)
@each_row("concerned", [is_lookup, is_block])
@each_row("storage", FILES)
def test_a_pause_beyond_the_patience_is_an_error_at_once_that_names_it_regression(
    storage: str, concerned: Callable[[Request], bool], demand: str
) -> None:
    """Only ``Retry-After: SECONDS`` was known, and of lookups only to http:// and hf://."""
    server, refused = refusing(concerned, lambda: DEMANDS[demand](300), 60)
    began = time.monotonic()
    with server, pytest.raises(streamer.HttpStatusError, match=r"a pause of (300|299) s") as caught:
        loaded(storage, server)
    assert time.monotonic() - began < 10
    assert caught.value.status == 429
    assert len(refused) <= (1 if concerned is is_lookup else 8)  # blocks are under way side by side


@pytest.mark.parametrize("concerned", [is_lookup, is_block])
@pytest.mark.parametrize("storage", FILES)
def test_a_demanded_pause_is_kept_regression(storage: str, concerned: Callable[[Request], bool]) -> None:
    """Clients asked again at their own pace, botocore's three times within a second."""
    server, refused = refusing(concerned, lambda: DEMANDS["RateLimit"](2), 1.9)
    with server:
        assert is_whole(loaded(storage, server))
    late = [round(at - refused[0], 1) for at in refused if at - refused[0] > 0.3]  # what was under way is none of it
    assert late == []


def test_a_folder_is_listed_although_each_third_request_is_refused_regression() -> None:
    """Each refusal began the page and the requests for all shards anew, until the patience was over."""
    names = [f"{number}.safetensors" for number in range(3)]
    page = "".join(f'<a href="{name}">shard</a>' for name in names) + "</html>"
    lookups: list[str] = []

    def script(request: Request, answer: Answer) -> None:
        number = request.path.removeprefix("/m/").removesuffix(".safetensors").encode()
        if is_lookup(request):
            lookups.append(request.path)
        if is_lookup(request) and len(lookups) % 3 == 0:
            answer.become(503, Retry_After="2")
        elif request.path == "/m/":
            answer.become(200, page.encode(), Content_Type="text/html")
        elif number.isdigit():
            shard = DATA.replace(b"weight", b"heavy" + number).replace(b"bias", b"bia" + number)
            answer.body = shard[request.begin : request.end]
        else:
            answer.become(404)

    with one_file(script) as server:
        url = f"{server.url.removesuffix('/object')}/m"
        loaded = streamer.load(url, framework="np", options=Options(deadline_s=20))
    assert len(loaded) == 6
    assert np.array_equal(loaded["heavy2"], TENSORS["weight"])
    assert lookups.count("/m/") == 1


# --- one object that fails --------------------------------------------------------------------------------------------

OTHER = DATA.replace(b"weight", b"heavy1").replace(b"bias", b"base")  # of the same size


def failing_for_one(concerned: Callable[[Request], bool]) -> ScriptedServer:
    """Make a server that fails for b.safetensors, and sends a.safetensors."""

    def script(request: Request, answer: Answer) -> None:
        if "b.safetensors" not in request.path:
            return
        is_header = request.begin == 0 and is_block(request)
        if concerned(request) and not is_header:
            answer.become(500, b"<Error><Code>InternalError</Code></Error>", Content_Type="application/xml")
        elif answer.body and "Content-Range" in answer.headers:
            answer.body = OTHER[request.begin : request.end]

    return one_file(script)


def error_of_two(storage: str, concerned: Callable[[Request], bool]) -> tuple[streamer.StreamerError, float]:
    began = time.monotonic()
    with failing_for_one(concerned) as server:
        uri, storage_options = place_of(storage, server)
        both, options = [uri, uri.replace("a.safetensors", "b.safetensors")], Options(block_bytes=64 << 10)
        with pytest.raises(streamer.StreamerError) as caught:
            streamer.load(both, framework="np", storage_options=storage_options, options=options)
    return caught.value, time.monotonic() - began


@pytest.mark.parametrize("concerned", [is_lookup, is_block])
def test_one_object_that_fails_is_no_outage_where_others_are_sent_regression(
    concerned: Callable[[Request], bool],
) -> None:
    """Reads waited for two minutes, told the story of an outage of the server, and advised to wait longer."""
    with ThreadPoolExecutor(len(FILES)) as pool:  # they mostly wait
        reported = list(pool.map(lambda storage: error_of_two(storage, concerned), FILES))
    for error, seconds in reported:
        assert isinstance(error, streamer.HttpStatusError)
        assert (error.status, (error.uri or "").endswith("b.safetensors")) == (500, True), error
        assert seconds < 30  # ten, and a pause
        assert "has been failing" not in str(error)
        assert "alone: it answers" in str(error)
        assert "block_deadline_s" not in (error.hint or "")
        assert "Check this object" in (error.hint or "")


# --- encodings --------------------------------------------------------------------------------------------------------


@each_row("coding", ["aws-chunked", "AWS-Chunked", "identity,aws-chunked"])
@each_row("storage", FILES)
def test_the_name_of_an_upload_s_framing_does_not_matter_regression(storage: str, coding: str) -> None:
    with one_file(lambda request, answer: answer.headers.update({"Content-Encoding": coding})) as server:
        assert is_whole(loaded(storage, server))


@each_row("coding", ["gzip", "aws-chunked,gzip", "gzip, aws-chunked"])
@each_row("storage", FILES)
def test_an_encoding_is_refused_also_beside_that_name(storage: str, coding: str) -> None:
    def script(request: Request, answer: Answer) -> None:
        if is_block(request):
            answer.headers["Content-Encoding"] = coding

    with one_file(script) as server, pytest.raises(streamer.RangeResponseError, match="encoded the range"):
        loaded(storage, server)


@each_row("is_decoded", [False, True])
@each_row("storage", FILES)
def test_an_object_that_is_stored_compressed_is_named_as_such_regression(storage: str, is_decoded: bool) -> None:
    """It was "does not honour byte ranges". Google Cloud Storage may decode it, and then ignores the range."""
    stored = gzip.compress(DATA)

    def script(request: Request, answer: Answer) -> None:
        if is_decoded and is_block(request):
            answer.become(200, DATA, x_goog_generation="7", x_goog_stored_content_encoding="gzip", ETag='"v1"')
        elif "/storage/v1/b/" not in request.path or "/download/" in request.path:
            answer.headers["Content-Encoding"] = "identity" if is_decoded else "gzip"

    with one_file(script, stored) as server, pytest.raises(streamer.RangeResponseError) as caught:
        loaded(storage, server)
    assert "upload it without compression" in str(caught.value)
    assert ("stored compressed" if is_decoded else "gzip") in str(caught.value)


@each_row("is_cut", [True, False])
@each_row("storage", FILES)
def test_a_body_that_really_is_framed_is_refused(storage: str, is_cut: bool) -> None:
    """By its header, which begins with the length of a frame; by its size, if the lookup told that of the file."""

    def script(request: Request, answer: Answer) -> None:
        if is_block(request):
            size = request.end - request.begin
            answer.headers["Content-Encoding"] = "aws-chunked"
            answer.body = f"{size:x};chunk-signature={'0' * 64}\r\n".encode() + answer.body
            answer.body = answer.body[:size] if is_cut else answer.body
            answer.headers["Content-Length"] = str(len(answer.body))

    with one_file(script) as server, pytest.raises((streamer.HeaderError, streamer.RangeResponseError)):
        loaded(storage, server)


# --- totals -----------------------------------------------------------------------------------------------------------


@each_row("storage", FILES)
@each_row("concerned", [is_block, lambda request: True])
def test_a_total_that_is_left_open_does_not_matter_where_there_is_a_version_regression(
    storage: str, concerned: Callable[[Request], bool]
) -> None:
    def script(request: Request, answer: Answer) -> None:
        if "Content-Range" in answer.headers and concerned(request):
            answer.headers["Content-Range"] = f"bytes {request.begin}-{request.end - 1}/*"

    with one_file(script) as server:
        assert is_whole(loaded(storage, server))


@pytest.mark.parametrize("storage", FILES)
def test_another_range_with_an_open_total_is_refused(storage: str) -> None:
    def script(request: Request, answer: Answer) -> None:
        if is_block(request):
            answer.headers["Content-Range"] = f"bytes {request.begin + 8}-{request.end + 7}/*"

    with one_file(script) as server, pytest.raises(streamer.RangeResponseError, match="another range"):
        loaded(storage, server)


def test_without_a_size_anywhere_the_error_says_so_regression() -> None:
    def script(request: Request, answer: Answer) -> None:
        if "Content-Range" in answer.headers:
            answer.headers["Content-Range"] = f"bytes {request.begin}-{request.end - 1}/*"
        else:
            del answer.headers["Content-Length"]
            answer.headers["Transfer-Encoding"] = "chunked"
            answer.body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(DATA), DATA)

    with one_file(script) as server, pytest.raises(streamer.StorageError, match="does not report the size") as caught:
        loaded("http", server)
    assert "another range" not in str(caught.value)


def test_without_a_version_a_file_of_open_totals_is_read_in_one_stream_regression() -> None:
    def script(request: Request, answer: Answer) -> None:
        del answer.headers["ETag"], answer.headers["Last-Modified"]
        if "Content-Range" in answer.headers:
            answer.headers["Content-Range"] = f"bytes {request.begin}-{request.end - 1}/*"

    with one_file(script) as server:
        uri, options = place_of("http", server)
        with streamer.stream(uri, framework="np", storage_options=options, options=QUICK) as stream:
            assert is_whole(dict(stream))
        assert any("one stream" in remark for remark in stream.report.remarks)
    assert not any(is_block(request) for request in server.requests)
