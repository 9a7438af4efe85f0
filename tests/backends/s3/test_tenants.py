"""A bucket of another tenant, ``tenant:bucket``: loaded if the server is not Amazon's, and explained if it is."""

from __future__ import annotations

import fsspec
import pytest
import torch
from safetensors.torch import save_file
from servers.scripted_http import ScriptedServer

import streamer

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(5, dtype=torch.uint8)}
PLACE = "/acme%3Amodels"
LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>acme:models</Name><Prefix>m/</Prefix>
<Delimiter>/</Delimiter><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents>
<Key>m/m.safetensors</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>"v1"</ETag><Size>%d</Size>
</Contents></ListBucketResult>"""


@pytest.fixture
def server(tmp_path):
    """A server with ``m/m.safetensors`` in the bucket ``acme:models``, and nothing else."""
    save_file(TENSORS, tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()

    def answer(request, reply):
        if request.path.startswith((f"{PLACE}?", f"{PLACE}/?")):
            reply.become(200, (LISTING % len(data)).encode(), **{"Content-Type": "application/xml"})
        elif not request.path.startswith(f"{PLACE}/m/m.safetensors"):
            reply.become(404, b"<Error><Code>NoSuchKey</Code></Error>", **{"Content-Type": "application/xml"})
        elif "range" not in request.headers:
            reply.status = 200
            reply.headers.pop("Content-Range")

    with ScriptedServer(data, answer) as server:
        server.answers_head = True
        yield server


def options_for(server, **more):
    return {"key": "AKID", "secret": "S3CR3T", "endpoint_url": f"http://127.0.0.1:{server.port}", **more}


def same(got):
    assert got.keys() == TENSORS.keys()
    assert all(torch.equal(got[name], TENSORS[name]) for name in TENSORS)


URIS = (
    "s3://acme:models/m/m.safetensors",
    "s3a://acme:models/m",
    "s3://acme:models/m/*.safetensors",
    "s3://acme%3Amodels/m",
)
MORE = ({}, {"config_kwargs": {"s3": {"addressing_style": "path"}}}, {"anon": True})


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("more", MORE, ids=["keys", "an option of s3fs", "anonymous"])
def test_a_bucket_with_a_tenant_is_loaded_regression(server, uri, more):
    same(streamer.load(uri, storage_options=options_for(server, **more)))
    is_signed = [
        b"X-Amz-Signature" in each.path.encode() or "authorization" in each.headers for each in server.requests
    ]
    assert all(is_signed) is not more.get("anon", False)


def test_the_endpoint_of_the_environment_counts_regression(server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    same(streamer.load(URIS[0], storage_options={"key": "AKID", "secret": "S3CR3T"}))


def test_an_instance_is_read_regression(server):
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **options_for(server))
    same(streamer.load("acme:models/m", fs=fs))


@pytest.mark.parametrize("uri", URIS)
def test_amazon_forbids_the_colon_regression(uri):
    with pytest.raises(streamer.UsageError, match=r"Amazon S3 forbids a colon.*endpoint_url") as caught:
        streamer.load(uri, storage_options={"key": "AKID", "secret": "S3CR3T"})
    assert "credential" not in str(caught.value)


@pytest.mark.parametrize("user", ["AKID:S3CR3T@", "AKID@"])
def test_an_at_sign_means_credentials(server, user):
    with pytest.raises(streamer.UsageError, match="holds no credentials") as caught:
        streamer.load(f"s3://{user}models/m", storage_options=options_for(server))
    assert "S3CR3T" not in str(caught.value)
    assert server.requests == []
