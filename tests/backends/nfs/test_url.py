"""What an nfs:// URL names, what is refused, and what a build without an NFS client says."""

from __future__ import annotations

from typing import Any

import pytest
from each_row import each_row

from streamer import _native
from streamer.backends.nfs.store import NfsStore, NfsUrl, streamer_open_store, streamer_source_kind
from streamer.core.errors import OptionError, UnknownSchemeError, UsageError
from streamer.core.options.limits import Limits
from streamer.core.store.sources import NfsSource, ObjectInfo

needs_client = pytest.mark.skipif(not _native.has_nfs, reason="this build has no NFS client")
SECRET = "hunter2-secret"


@each_row(
    "path",
    ["/export/model", "/a b", "/plus+percent%20.bin", "/größe", "/a#b", "/what?.bin", "/model-?.safetensors", "/a@b:c"],
)
@each_row("query", ["", "?version=3&uid=0"])
def test_a_path_is_taken_letter_by_letter(path: str, query: str) -> None:
    url = NfsUrl.parse(f"nfs://host{path}{query}", {})
    assert url.path == path
    assert url.options == ({"version": 3, "uid": 0} if query else {})
    assert NfsUrl.parse(str(url), {}).path == path


def test_a_port_behind_the_server_and_options_of_the_caller_count() -> None:
    url = NfsUrl.parse("NFS://host:2050/a?uid=1&gid=2", {"uid": "7", "mountport": 9, "gid": None})
    assert url.options == {"nfsport": 2050, "uid": 7, "gid": 2, "mountport": 9}
    assert url.shown("/a?b") == "nfs://host:2050/a?b"
    assert str(NfsUrl.parse("nfs://[::1]:2050", {})) == "nfs://[::1]/?version=4&nfsport=2050"


@each_row(
    ("uri", "options"),
    [
        ("nfs://host/a?readahead=1", {}),
        ("nfs://host/a?version=5", {}),
        ("nfs://host/a?nfsport=", {}),
        ("nfs://host:99999/a", {}),
        ("nfs://host/a", {"autoreconnect": -1}),
        ("nfs://host/a", {"uid": True}),
        ("nfs://host/a", {"gid": 1.5}),
    ],
)
def test_an_unknown_option_or_a_wild_value_is_refused(uri: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        NfsUrl.parse(uri, options)


@pytest.mark.parametrize(
    "uri", ["nfs:///a", "nfs://", f"nfs://user:{SECRET}@host/a", "nfs://[::1/a", "nfs://host/a\0b"]
)
def test_what_names_no_server_is_refused_without_showing_a_password(uri: str) -> None:
    with pytest.raises(UsageError) as caught:
        NfsUrl.parse(uri, {})
    assert SECRET not in str(caught.value)


@needs_client
def test_the_source_of_a_file_names_it_for_the_engine() -> None:
    store = NfsStore("nfs://host/models/", {"nfsport": 2050})
    assert store.root == "/models"
    info = ObjectInfo("/models/what?.bin", "nfs://host/models/what?.bin", size_bytes=1)
    assert store.source(info) == NfsSource("nfs://host/models/what?.bin?version=4&nfsport=2050")


def test_a_build_without_a_client_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "has_nfs", False)
    with pytest.raises(UnknownSchemeError, match="libnfs-dev"):
        streamer_open_store(scheme="nfs", uri="nfs://host/a", storage_options={}, limits=Limits())
    with pytest.raises(UnknownSchemeError, match="Mount the export"):
        streamer_source_kind()


@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("nfs://host/a", "nfs://host"),
        ("nfs://host:9/a?version=4&uid=1", "nfs://host:9"),
        ("nfs://host:9/a?version=3", "nfs://host:9?version=3"),
    ],
)
def test_another_version_is_another_service(uri: str, server: str) -> None:
    assert NfsUrl.parse(uri, {}).server == server
