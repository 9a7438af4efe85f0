"""Plain requests to S3 without botocore's client: the same answers, from a real server, and the same errors."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import pytest
import torch
from safetensors.torch import save_file
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends.s3.botocore_client import BotocoreClient
from streamer.backends.s3.client import PlainRequests, S3Client
from streamer.backends.s3.plain_login import plain_login
from streamer.backends.s3.store import S3Store
from streamer.core.options.limits import Limits

NAMES = ["a.bin", "with space+plus.bin", "ünïcode.bin", "per%20cent.bin", "a&b<c>.bin", "folder/inner.bin"]
PAGE = "<ListBucketResult><EncodingType>url</EncodingType><KeyCount>7</KeyCount>{}</ListBucketResult>"
CHILD = """
import json, sys
import torch
import streamer

uri, options, names = json.loads(sys.argv[1])
assert streamer.load(uri, storage_options=options)["a"].sum() == 10
print(*sorted({*names} & {*sys.modules}))
"""
CLIENTS = ["aiobotocore", "aiohttp", "botocore.client", "botocore.session", "fsspec", "s3fs"]


def options_of(server):
    return {"key": "A", "secret": "B", "endpoint_url": f"http://{urlsplit(server.url).netloc}"}


@pytest.fixture(scope="module")
def server(s3_server):
    s3_server.make_bucket("quick")
    for name in NAMES:
        s3_server.put("quick", f"listed/{name}", name.encode())
    return s3_server


@pytest.fixture
def without_botocore(monkeypatch):
    """Let botocore's client answer nothing."""

    def refuse(*_, **__):
        raise AssertionError("botocore's client was asked")

    monkeypatch.setattr(BotocoreClient, "__init__", refuse)


def imported_by_a_load(uri, options, names, environment=None):
    found = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([uri, options, names])],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    return found.stdout.split()


@pytest.fixture(scope="module")
def model(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_file({"a": torch.ones(10)}, folder / "model.safetensors")
    return server.upload_folder(folder, "quick", "model")


def test_a_load_imports_no_client_library(server, model):
    assert imported_by_a_load(model, server.storage_options(), CLIENTS) == []


def test_a_load_whose_keys_are_found_by_botocore_makes_none_of_its_clients(server, model, tmp_path, monkeypatch):
    """Its session finds them, as those of a role, of a single sign-on or of a machine."""
    options = server.storage_options()
    keys = {"Version": 1, "AccessKeyId": options.pop("key"), "SecretAccessKey": options.pop("secret")}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    (tmp_path / "config").write_text(f"[profile process]\ncredential_process = cat {tmp_path / 'keys.json'}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    found = imported_by_a_load(model, {**options, "profile": "process"}, CLIENTS)
    assert set(found) <= {"botocore.client", "botocore.session"}


def test_a_listing_is_the_one_that_botocore_gives(server, monkeypatch):
    parameters = {"Prefix": "listed/", "Delimiter": "/"}
    by_botocore = BotocoreClient(server.storage_options()).call("list_objects_v2", "quick", **parameters)
    monkeypatch.setattr(S3Client, "_botocore", lambda _: pytest.fail("botocore's client was asked"))
    page = S3Client(server.storage_options()).call("list_objects_v2", "quick", **parameters)
    for name in ("Contents", "CommonPrefixes"):
        fields = {*page[name][0]}
        assert page[name] == [{each: entry[each] for each in fields} for entry in by_botocore[name]]
    assert {entry["Key"] for entry in page["Contents"]} == {f"listed/{name}" for name in NAMES if "/" not in name}
    assert page["IsTruncated"] is by_botocore["IsTruncated"] is False


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [{}, {"ChecksumMode": "ENABLED"}])
def test_a_head_is_the_one_that_botocore_gives(server, monkeypatch, name, more):
    options = server.storage_options()
    by_botocore = BotocoreClient(options).call("head_object", "quick", Key=f"listed/{name}", **more)
    monkeypatch.setattr(S3Client, "_botocore", lambda _: pytest.fail("botocore's client was asked"))
    head = S3Client(options).call("head_object", "quick", Key=f"listed/{name}", **more)
    assert head == {each: by_botocore[each] for each in head}
    assert {"ContentLength", "ETag"} <= {*head}


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("quick/listed/absent.bin", {}),
        ("absent/listed/a.bin", {}),
        ("quick/listed/a.bin", {"secret": "wrong"}),
        ("quick/listed/a.bin", {"key": "wrong"}),
        ("quick/listed/a.bin", {"anon": True}),
        ("quick/listed/a.bin?versionId=none", {}),
    ],
)
@pytest.mark.parametrize("ask", [S3Store.info, S3Store.find])
def test_a_refusal_is_the_error_that_botocore_leads_to(server, monkeypatch, path, options, ask):
    options = {**server.storage_options(), **options}
    by_botocore = outcome_of(ask, S3Store(f"s3://{path}", {**options, "config_kwargs": {}}))
    monkeypatch.setattr(S3Client, "_botocore", lambda _: pytest.fail("botocore's client was asked"))
    assert outcome_of(ask, S3Store(f"s3://{path}", options)) == by_botocore


def outcome_of(ask, store):
    try:
        return ask(store, store.root)
    except streamer.StorageError as error:
        return type(error), str(error).replace(error.request_id or "-", "ID"), error.status, error.code, error.attempts


def test_pages_are_followed(without_botocore):
    entry = "<Contents><Key>f%2F{}.safetensors</Key><Size>1</Size><ETag>&quot;{}&quot;</ETag></Contents>"
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>a+b/c=</NextContinuationToken>"

    def script(request, answer):
        is_second = "continuation-token=a%2Bb%2Fc%3D" in request.path
        text = PAGE.format(entry.format(2, 2) if is_second else entry.format(1, 1) + more)
        answer.become(200, text.encode(), Content_Type="application/xml")

    with ScriptedServer(b"", script) as server:
        found = S3Store("s3://bucket/f", options_of(server)).find("bucket/f")
        assert [(info.path, info.version) for info in found] == [
            ("bucket/f/1.safetensors", '"1"'),
            ("bucket/f/2.safetensors", '"2"'),
        ]
        assert len(server.requests) == 2


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("options", [{}, {"config_kwargs": {}}])
def test_each_way_to_ask_repeats_a_request_by_the_same_rule(options):
    """botocore's own loop had other pauses, another count and another idea of what may pass."""

    def script(request, answer):
        answer.become(503, b"<Error><Code>SlowDown</Code></Error>")

    with ScriptedServer(b"", script) as server, pytest.raises(streamer.StorageError) as caught:
        S3Store("s3://bucket/f", {**options_of(server), **options}).find("bucket/f")
    assert (caught.value.code, caught.value.attempts, len(server.requests)) == ("SlowDown", 3, 3)


def test_a_listing_that_is_refused_is_asked_for_once(without_botocore):
    """Many may read objects and not list them."""
    refusal = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"

    def script(request, answer):
        if "list-type" in request.path:
            answer.become(403, refusal, Content_Type="application/xml")
        else:
            answer.become(200, b"content")

    with ScriptedServer(b"", script) as server:
        server.answers_head = True
        store = S3Store("s3://bucket/a", options_of(server))
        with pytest.raises(streamer.AccessDeniedError):
            store.find("bucket")
        assert store.info("bucket/a").size_bytes == 7
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {"Date": "Thu, 01 Jan 2015 00:00:00 GMT"}, PAGE.format("").encode()),
        (200, {}, b"<ListBucketResult><Contents><Size>many</Size></Contents></ListBucketResult>"),
        (204, {}, PAGE.format("").encode()),
        (302, {"Location": "/elsewhere"}, b""),
        (400, {}, b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"),
    ],
)
def test_an_answer_that_needs_more_is_left_to_botocore(status, headers, body):
    def script(request, answer):
        answer.become(status, body, **{name.replace("-", "_"): value for name, value in headers.items()})

    with ScriptedServer(b"", script) as server:
        requests = PlainRequests(plain_login(options_of(server), {}), Limits())
        assert requests.call("list_objects_v2", "bucket", {"Prefix": ""}) is None
        assert len(server.requests) == 1


def test_a_region_that_only_the_answer_to_a_get_names_is_taken_for_one_object_regression():
    """MinIO with another region refuses a HEAD without a word, and a GET with the region in its body."""
    refusal = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"

    def script(request, answer):
        if "/eu-west-1/" not in unquote(request.path + request.headers.get("authorization", "")):
            answer.become(400, refusal, Content_Type="application/xml")

    with ScriptedServer(b"content", script) as server:
        server.answers_head = True
        store = S3Store("s3://bucket/a", {**options_of(server), "client_kwargs": {"region_name": "us-east-1"}})
        info = store.info("bucket/a")
        assert (info.size_bytes, info.version) == (7, server.etag)
        assert "eu-west-1" in store.source(info).url
