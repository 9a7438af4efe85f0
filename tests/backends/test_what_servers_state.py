"""Sizes, ends of signatures and reasons of refusals are the server's, however it states them; for every storage."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from email.utils import formatdate
from urllib.parse import urlsplit

import numpy as np
import pytest
from azure.storage.blob import ContainerSasPermissions, generate_container_sas
from each_row import each_row
from servers.one_file import DATA, FILES, TENSORS, is_block, one_file, place_of

import streamer

HOUR_S = 3600.0
DENIAL = "<?xml version='1.0'?><Error><Code>{}</Code><Message>Operation is not permitted.</Message></Error>"


def loaded(uri, options):
    got = streamer.load(uri, storage_options=options, framework="np")
    assert got.keys() == TENSORS.keys()
    assert all(np.array_equal(got[name], TENSORS[name]) for name in TENSORS)


@each_row("storage", FILES)
@each_row("more", [{}, {"Content-Encoding": "gzip"}, {"Transfer-Encoding": "chunked"}])
def test_a_head_without_a_length_is_followed_by_a_request_for_a_byte_regression(storage, more):
    def change(request, answer):
        if answer.handler.command == "HEAD":
            del answer.headers["Content-Length"]
            answer.headers |= more

    with one_file(change) as server:
        loaded(*place_of(storage, server))


@each_row("storage", FILES)
@each_row("proof", [{}, {"Content-Range": "bytes 0-9/*"}, {"Content-Range": None}])
def test_a_range_under_status_200_is_read_if_its_length_and_the_total_prove_it(storage, proof):
    """Gateways of ModelScope and of mirrors of the Hub answer so."""

    def change(request, answer):
        if answer.status == 206:
            answer.status = 200
            if is_block(request):
                answer.headers = {name: value for name, value in (answer.headers | proof).items() if value}

    with one_file(change) as server:
        uri, options = place_of(storage, server)
        if proof:
            with pytest.raises(streamer.RangeResponseError, match="ignored the range"):
                loaded(uri, options)
            return
        with streamer.stream(uri, storage_options=options, framework="np") as stream:
            got = dict(stream)
        assert all(np.array_equal(got[name], TENSORS[name]) for name in TENSORS)
        assert stream.report.readers == {"http": 1}


SPELLINGS = ['"v1"', "v1", 'W/"v1"']


@each_row("storage", ["s3", "az", "http"])
@each_row("in_head", SPELLINGS)
@each_row("in_blocks", SPELLINGS)
def test_one_etag_may_be_spelled_in_several_ways(storage, in_head, in_blocks):
    """Dell ECS quotes it in some answers, and not in others; proxies make it weak."""

    def change(request, answer):
        answer.headers["ETag"] = in_blocks if is_block(request) else in_head

    with one_file(change) as server:
        loaded(*place_of(storage, server))
        if storage != "http" or not in_head.startswith("W/"):  # with a time, that decides in place of a weak ETag
            in_blocks = in_blocks.replace("v1", "v2")
            with pytest.raises(streamer.ChangedError):
                loaded(*place_of(storage, server))


@pytest.mark.parametrize("storage", ["s3", "az"])
@pytest.mark.parametrize(
    ("stated", "cls"), [("bytes 0-0/*", streamer.StorageError), ("bytes 5-5/9", streamer.RangeResponseError)]
)
def test_a_size_that_is_stated_nowhere_is_an_error(storage, stated, cls):
    def change(request, answer):
        del answer.headers["Content-Length"]
        if not is_block(request) and answer.handler.command == "GET":
            answer.headers |= {"Content-Range": stated, "Content-Length": "1"}

    with one_file(change) as server, pytest.raises(cls):
        loaded(*place_of(storage, server))


@each_row("storage", FILES)
@each_row("code", ["InvalidObjectState", "BlobBeingRehydrated"])
def test_an_archived_object_is_to_be_restored_and_needs_no_rights_regression(storage, code):
    def change(request, answer):
        if "range" in request.headers and answer.handler.command == "GET":
            status = 403 if code == "InvalidObjectState" else 409
            answer.become(status, DENIAL.format(code).encode(), Content_Type="application/xml")

    with one_file(change) as server, pytest.raises(streamer.AccessDeniedError, match="archived") as caught:
        loaded(*place_of(storage, server))
    assert caught.value.code == code
    assert "estore" in str(caught.value)
    assert "permission" not in str(caught.value)
    assert len([each for each in server.requests if "range" in each.headers]) <= 2  # waiting does not help


def test_an_archived_object_is_named_through_a_cache_of_fsspec_too_regression(tmp_path):
    def change(request, answer):
        if answer.handler.command == "GET":
            answer.become(403, DENIAL.format("InvalidObjectState").encode(), Content_Type="application/xml")

    with one_file(change) as server:
        uri, options = place_of("s3", server)
        chained = {"s3": options, "simplecache": {"cache_storage": str(tmp_path)}}
        with pytest.raises(streamer.AccessDeniedError, match="archived"):
            loaded(f"simplecache::{uri}", chained)


def signed_query(kind, now_s):
    ends_at_s = int(now_s) + 900
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    return {
        "CloudFront": f"Expires={ends_at_s}&Signature=x",
        "AWS": f"X-Amz-Date={date}&X-Amz-Expires=900&X-Amz-Signature=x",
        "GCS": f"X-Goog-Date={date}&X-Goog-Expires=900&X-Goog-Signature=x",
        "SAS": f"se={datetime.fromtimestamp(ends_at_s, timezone.utc):%Y-%m-%dT%H%%3A%M%%3A%SZ}&sig=x",
        "lifetime": "expires=900&token=x",
        "milliseconds": f"expires={ends_at_s}000&token=x",
    }[kind]


@each_row("storage", ["http", "hf"])
@each_row("kind", ["CloudFront", "AWS", "GCS", "SAS", "lifetime", "milliseconds"])
@each_row("ahead_s", [-HOUR_S, 0, 1000, HOUR_S])
def test_the_server_alone_decides_whether_its_signed_url_has_ended_regression(storage, kind, ahead_s):
    """`ahead_s`: how far this machine's clock is ahead of the server's."""
    server_s = time.time() - ahead_s

    def change(request, answer):
        if not request.path.startswith("/cdn/") and request.path.endswith("a.safetensors"):
            answer.become(302, Location=f"/cdn/a?{signed_query(kind, server_s)}", X_Repo_Commit="a" * 40)
            answer.headers |= {"X-Linked-Size": str(len(DATA)), "X-Linked-ETag": '"v1"'}
        if kind != "AWS":  # whose answers have no date here
            answer.headers["Date"] = formatdate(server_s, usegmt=True)

    with one_file(change) as server:
        loaded(*place_of(storage, server))


@pytest.mark.parametrize("ahead_s", [-HOUR_S, HOUR_S])
def test_azure_alone_decides_whether_a_sas_has_ended_regression(ahead_s):
    ends_at = datetime.fromtimestamp(time.time() - ahead_s + 900, timezone.utc)
    permission = ContainerSasPermissions(read=True, list=True)
    sas = generate_container_sas("account", "container", account_key="Q0FO", permission=permission, expiry=ends_at)
    with one_file() as server:
        uri, options = place_of("az", server)
        connection = options["connection_string"].partition(";")[0] + f";SharedAccessSignature={sas}"
        loaded(uri, {"connection_string": connection})
        loaded(f"{server.url.removesuffix('/object')}/a.safetensors?{sas}", {})


@each_row("host", ["localhost", "LOCALHOST", "LocalHost", "127.1", "0x7f.0.0.1", "127.0.0.1"])
def test_the_host_of_an_endpoint_is_signed_as_it_is_sent_regression(host):
    """botocore signs a name in small letters; libcurl sends it as it is written, and addresses in dotted numbers."""
    with one_file() as server:
        uri, options = place_of("s3", server)
        endpoint = f"http://{host}:{urlsplit(server.url).port}"
        loaded(uri, {**options, "endpoint_url": endpoint})
        loaded(uri, {**options, "endpoint_url": endpoint, "config_kwargs": {"read_timeout": 60}})  # by botocore
        assert {each.headers["host"] for each in server.requests} == {f"{host.lower()}:{urlsplit(server.url).port}"}
