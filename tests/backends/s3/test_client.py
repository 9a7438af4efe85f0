"""The client of S3: botocore's answers from a real server, errors, and what an answer may ask for."""

from __future__ import annotations

import json
from urllib.parse import unquote, urlsplit

import pytest
import torch
import warm_python
from safetensors.torch import save_file
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends.s3.client import S3Client
from streamer.backends.s3.store import S3Store

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
CLIENTS = ["aiobotocore", "aiohttp", "botocore", "fsspec", "s3fs"]


def options_of(server):
    return {"key": "A", "secret": "B", "endpoint_url": f"http://{urlsplit(server.url).netloc}"}


@pytest.fixture(scope="module")
def server(s3_server):
    s3_server.make_bucket("quick")
    for name in NAMES:
        s3_server.put("quick", f"listed/{name}", name.encode())
    return s3_server


def imported_by_a_load(uri, options, names):
    found = warm_python.run(CHILD, json.dumps([uri, options, names]))
    found.check_returncode()
    return found.stdout.split()


@pytest.fixture(scope="module")
def model(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_file({"a": torch.ones(10)}, folder / "model.safetensors")
    return server.upload_folder(folder, "quick", "model")


def test_a_load_with_keys_imports_no_client_library(server, model):
    assert imported_by_a_load(model, server.storage_options(), CLIENTS) == []


def test_a_load_whose_keys_are_found_by_botocore_makes_none_of_its_clients(server, model, tmp_path, monkeypatch):
    """Its session finds them, as those of a role, of a single sign-on or of a machine."""
    options = server.storage_options()
    keys = {"Version": 1, "AccessKeyId": options.pop("key"), "SecretAccessKey": options.pop("secret")}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    (tmp_path / "config").write_text(f"[profile process]\ncredential_process = cat {tmp_path / 'keys.json'}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    found = imported_by_a_load(model, {**options, "profile": "process"}, CLIENTS)
    assert found == ["botocore"]


def test_a_listing_is_the_one_that_botocore_gives(server):
    parameters = {"Prefix": "listed/", "Delimiter": "/"}
    by_botocore = server.client().list_objects_v2(Bucket="quick", **parameters)
    page = S3Client(server.storage_options()).call("list_objects_v2", "quick", **parameters)
    for name, fields in (("Contents", ("Key", "Size", "ETag")), ("CommonPrefixes", ("Prefix",))):
        assert [[entry[each] for each in fields] for entry in page[name]] == [
            [entry[each] for each in fields] for entry in by_botocore[name]
        ]
    assert {entry["Key"] for entry in page["Contents"]} == {f"listed/{name}" for name in NAMES if "/" not in name}
    assert page["IsTruncated"] is by_botocore["IsTruncated"] is False


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [{}, {"ChecksumMode": "ENABLED"}])
def test_a_head_is_the_one_that_botocore_gives(server, name, more):
    by_botocore = server.client().head_object(Bucket="quick", Key=f"listed/{name}", **more)
    head = S3Client(server.storage_options()).call("head_object", "quick", Key=f"listed/{name}", **more)
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
def test_a_refusal_is_the_same_error_with_each_login(server, path, options, ask):
    options = {**server.storage_options(), **options}
    by_botocore = outcome_of(ask, S3Store(f"s3://{path}", {**options, "config_kwargs": {}}))
    assert outcome_of(ask, S3Store(f"s3://{path}", options)) == by_botocore


def outcome_of(ask, store):
    try:
        return ask(store, store.root)
    except streamer.StorageError as error:
        return type(error), str(error).replace(error.request_id or "-", "ID"), error.status, error.code, error.attempts


def test_pages_are_followed():
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
def test_a_request_is_repeated_by_the_same_rule_with_each_login(options):

    def script(request, answer):
        answer.become(503, b"<Error><Code>SlowDown</Code></Error>")

    with ScriptedServer(b"", script) as server, pytest.raises(streamer.StorageError) as caught:
        S3Store("s3://bucket/f", {**options_of(server), **options}).find("bucket/f")
    assert (caught.value.code, caught.value.attempts, len(server.requests)) == ("SlowDown", 3, 3)


def test_a_listing_that_is_refused_is_asked_for_once():
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
    "body",
    [
        b"<ListBucketResult><Contents><Size>many</Size></Contents></ListBucketResult>",
        b"<!DOCTYPE a [<!ENTITY a 'b'>]><ListBucketResult>&a;</ListBucketResult>",
        b"<ListBucketResult><a></b></ListBucketResult>",
    ],
)
def test_a_listing_that_cannot_be_read_is_the_servers_fault(body):
    with ScriptedServer(b"", lambda _, answer: answer.become(200, body, Content_Type="application/xml")) as server:
        with pytest.raises(streamer.StorageError, match=r"malformed|does not speak S3"):
            S3Store("s3://bucket/f", options_of(server)).find("bucket/f")
        assert len(server.requests) == 1


def test_keys_that_were_replaced_are_looked_up_and_the_request_is_repeated(monkeypatch):
    """It is for keys that end before the time that their provider named."""
    refusal = b"<Error><Code>ExpiredToken</Code></Error>"

    def script(request, answer):
        if "AKIDNEW" in request.headers["authorization"]:
            answer.become(200, PAGE.format("").encode(), Content_Type="application/xml")
        else:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNEW")
            answer.become(400, refusal, Content_Type="application/xml")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with ScriptedServer(b"", script) as server:
        endpoint = {"endpoint_url": options_of(server)["endpoint_url"]}
        assert S3Store("s3://bucket/f", endpoint).find("bucket/f") == []
        with pytest.raises(streamer.CredentialsError):
            S3Store("s3://bucket/f", options_of(server)).find("bucket/f")
        assert len(server.requests) == 3


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
