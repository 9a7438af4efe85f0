"""Which URLs name a blob, what is in them, and that a SAS in them is never seen again."""

from __future__ import annotations

from typing import Any

import pytest
from each_row import each_row

from streamer.backends.azure.urls import parse_url
from streamer.backends.blob_urls import is_blob_url
from streamer.core.errors import UsageError

SAS = "sv=2024-11-04&sp=rl&sig=CANARY%3D"


@each_row(
    ("uri", "is_one"),
    [
        ("https://account.blob.core.windows.net/container/a", True),
        (f"https://account.blob.core.windows.net/container/a?{SAS}", True),
        ("https://ACCOUNT.Blob.Core.Windows.NET/container", True),
        ("https://account.dfs.core.windows.net/container/a", True),
        ("https://account.privatelink.blob.core.windows.net/container/a", True),
        ("https://account-secondary.blob.core.windows.net/container/a", True),
        ("https://account.blob.core.chinacloudapi.cn/container/a", True),
        ("https://account.blob.core.usgovcloudapi.net/container/a", True),
        ("https://account.dfs.core.usgovcloudapi.net/container/a", True),
        ("https://account.blob.core.cloudapi.de/container/a", True),
        ("http://account.blob.core.windows.net/container/a", False),
        ("https://blob.core.windows.net/container/a", False),
        ("https://account.file.core.windows.net/share/a", False),
        ("https://account.blob.core.windows.net.example.com/container/a", False),
        ("https://example.com/account.blob.core.windows.net/a", False),
        ("https://account.blob.core.windows.net@example.com/a", False),
        ("https://example.com?account.blob.core.windows.net", False),
        ("https://example.com#.blob.core.windows.net", False),
        ("https://[account.blob.core.windows.net", False),
        ("az://container/a", False),
        ("/account.blob.core.windows.net", False),
        ("", False),
    ],
)
def test_blob_urls_are_distinguished_from_others(uri: str, is_one: bool) -> None:
    assert is_blob_url(uri) is is_one


DFS = "account.dfs.core.windows.net"
BLOB = "account.blob.core.windows.net"


@each_row(
    ("uri", "expected"),
    [
        ("az://c/m/a", ("c", "m/a", None, None, None)),
        ("az://c", ("c", "", None, None, None)),
        ("az://c/m/", ("c", "m", None, None, None)),
        ("az://c/m/model-?-of-?.safetensors", ("c", "m/model-?-of-?.safetensors", None, None, None)),
        ("az://$web/a#b%20", ("$web", "a#b%20", None, None, None)),
        (f"az://c/m/a?{SAS}", ("c", "m/a", None, None, SAS)),
        (f"az://c/m/?.safetensors?{SAS}", ("c", "m/?.safetensors", None, None, SAS)),
        (f"abfs://c@{DFS}/m/a", ("c", "m/a", "account", BLOB, None)),
        (f"abfss://c@{BLOB}/m/a?{SAS}", ("c", "m/a", "account", BLOB, SAS)),
        (f"abfs://{DFS}/c/m/a", ("c", "m/a", "account", BLOB, None)),
        ("abfs://c@account/m/a", ("c", "m/a", "account", None, None)),
        (
            "abfs://c@account.z01.dfs.storage.azure.net/a",
            ("c", "a", "account", "account.z01.blob.storage.azure.net", None),
        ),
        (f"https://{BLOB}/c/m/a%20b", ("c", "m/a b", "account", BLOB, None)),
        (f"https://{BLOB}/c/m/*.safetensors?{SAS}", ("c", "m/*.safetensors", "account", BLOB, SAS)),
        (f"https://{BLOB}:443/c", ("c", "", "account", f"{BLOB}:443", None)),
        (
            "https://account.dfs.core.chinacloudapi.cn/c/a",
            ("c", "a", "account", "account.blob.core.chinacloudapi.cn", None),
        ),
    ],
)
def test_a_url_is_taken_apart(uri: str, expected: tuple[Any, ...]) -> None:
    url = parse_url(uri)
    assert (url.container, url.name, url.account, url.host, url.sas) == expected
    assert "CANARY" not in repr(url)


@each_row(
    "uri",
    [
        "az://",
        "az:///a",
        "az://no container/a",
        "az://*/a",
        "az://key:CANARY@container/a",
        f"abfs://c:CANARY@{DFS}/a",
        f"abfs://c@user:CANARY@{DFS}/a",
        "abfs://c@/a",
        "az://c/a?versionid=2024-01-01T00:00:00Z",
        f"https://{BLOB}",
        f"https://{BLOB}/",
        f"https://user:CANARY@{BLOB}/c/a",
        f"https://{BLOB}/c/a?snapshot=2024-01-01T00:00:00Z",
        f"https://{BLOB}/c/a?sv=2024-11-04&token=CANARY",
        f"https://{BLOB}/c/a#CANARY",
    ],
)
def test_a_url_without_a_container_or_with_more_than_a_sas_is_refused(uri: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(uri)
    assert "CANARY" not in str(caught.value)


@each_row("scheme", ["az", "abfs", "https"])
@each_row("sas", ["", "&sv=2024-11-04&sig=CANARY"])
@each_row("version", ["snapshot=2024-01-01T00:00:00Z", "versionid=2024", "versionId=2024"])
@each_row("is_last", [False, True])
def test_a_version_or_a_snapshot_of_a_blob_is_refused_by_name_regression(
    scheme: str, sas: str, version: str, is_last: bool
) -> None:
    blob = {"az": "az://container/a", "abfs": f"abfs://container@{DFS}/a", "https": f"https://{BLOB}/container/a"}[
        scheme
    ]
    query = f"{sas[1:]}&{version}" if is_last and sas else f"{version}{sas}"
    with pytest.raises(UsageError, match="names a version or a snapshot of a blob") as caught:
        parse_url(f"{blob}?{query}")
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"az://c/m?{SAS}", "az://c/m/a b"),
        (f"abfss://c@{DFS}/m?{SAS}", f"abfss://c@{DFS}/m/a b"),
        (f"abfss://{DFS}/c/m", f"abfss://{DFS}/c/m/a b"),
        (f"https://{BLOB}/c/m?{SAS}", f"https://{BLOB}/c/m/a%20b"),
    ],
)
def test_another_name_is_shown_in_the_users_spelling(uri: str, shown: str) -> None:
    assert parse_url(uri).uri_of("m/a b") == shown
