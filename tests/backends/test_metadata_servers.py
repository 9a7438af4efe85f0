"""Credentials of a cloud's machine are asked of its metadata server itself, never through a proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from each_row import each_row
from servers.cloud_machine import missing_for_cloud_machine, run_on_cloud_machine

from streamer.backends.metadata_servers import is_metadata_url

S3 = """
from streamer.backends.s3.client import S3Client
url = S3Client({}).get_source("bucket", 60, Key="x").url
print(json.dumps({"found": "ASIAOFTHEMACHINE" in url, "answered": answered, "proxied": proxied}))
"""
GCS = """
from streamer.backends.gcs.client import GcsClient
bearer = GcsClient({"token": TOKEN}).bearer()
print(json.dumps({"found": bearer.token == "of-the-machine", "answered": answered, "proxied": proxied}))
"""
AZURE = """
from streamer.backends.azure.client import AzureClient
from streamer.backends.azure.urls import parse_url
client = AzureClient(parse_url("az://container/x"), {"account_name": "account"})
grant = client.grant("container/x", "az://container/x")
found = grant.headers["Authorization"] == "Bearer of-the-machine"
print(json.dumps({"found": found, "answered": answered, "proxied": proxied}))
"""


@pytest.mark.skipif(missing_for_cloud_machine() is not None, reason=str(missing_for_cloud_machine()))
@pytest.mark.parametrize(
    ("script", "environment"),
    [
        pytest.param(S3, {}, id="s3"),
        pytest.param(S3, {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "ipv6"}, id="s3-ipv6"),
        pytest.param(GCS.replace("TOKEN", "None"), {"GCE_METADATA_HOST": "169.254.169.254"}, id="gs"),
        pytest.param(GCS.replace("TOKEN", "'cloud'"), {"GCE_METADATA_HOST": "169.254.169.254"}, id="gs-cloud"),
        pytest.param(AZURE, {}, id="az"),
    ],
)
def test_requests_to_a_metadata_server_use_no_proxy(script: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = run_on_cloud_machine(tmp_path, script, {"AWS_DEFAULT_REGION": "eu-west-1", **environment})
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert reported["found"]
    assert reported["answered"]
    assert reported["proxied"] == []


@each_row(
    "url",
    [
        "http://169.254.169.254/latest/",
        "http://169.254.170.2/v2",
        "http://[fd00:ec2::254]/latest/",
        "http://[fd00:ec2::23]:80/",
        "http://[fe80::1]/",
        "http://metadata.google.internal/computeMetadata/v1/",
        "http://metadata.google.internal.:80/",
    ],
)
def test_addresses_of_metadata_servers_are_recognised(url: str) -> None:
    assert is_metadata_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://oauth2.googleapis.com/token",
        "http://10.0.0.1/",
        "http://[fd00:ec2::1]/",
        "http:///x",
        "http://169.254/",
    ],
)
def test_other_addresses_are_no_metadata_servers(url: str) -> None:
    assert not is_metadata_url(url)


def test_the_environment_may_name_another_metadata_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "localhost:8080")
    assert is_metadata_url("http://localhost:8080/computeMetadata/v1/")
