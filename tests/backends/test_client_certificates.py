"""Servers that demand a client certificate: both planes show the one that is named; without one the error says so."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import s3fs
from fsspec.asyn import get_loop, sync
from servers.one_file import DATA, FILES, TENSORS, is_block, one_file, place_of
from servers.scripted_http import ScriptedServer

import streamer
from streamer import Options
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.session import SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

QUICK = Options(deadline_s=30, block_deadline_s=5)


class Files:
    """PEM files of the server's authority, and of a client's certificate and key, in one file and in two."""

    def __init__(self, server: ScriptedServer, folder: Path) -> None:
        assert server.authority is not None
        self.ca, self.both, self.certificate, self.key = (
            str(folder / name) for name in ("ca.pem", "both.pem", "client.crt", "client.key")
        )
        client = server.authority.issue_cert("client.test")
        server.authority.cert_pem.write_to_path(self.ca)
        client.private_key_and_cert_chain_pem.write_to_path(self.both)
        client.private_key_pem.write_to_path(self.key)
        Path(self.certificate).write_bytes(b"".join(each.bytes() for each in client.cert_chain_pems))


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ScriptedServer, Files]]:
    with one_file(demands_certificate=True) as server:
        files = Files(server, tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", files.ca)
        yield server, files


def is_whole(tensors: dict[str, Any]) -> bool:
    return tensors.keys() == TENSORS.keys() and all(np.array_equal(tensors[name], TENSORS[name]) for name in TENSORS)


def loaded(server: ScriptedServer, client_cert: Any) -> dict[str, Any]:
    uri, options = place_of("s3", server)
    options["config_kwargs"] = {"client_cert": client_cert}
    return streamer.load(uri, framework="np", storage_options=options, options=QUICK)


def test_s3_shows_it_to_lookups_and_reads_regression(guarded: Any) -> None:
    """Reads did not show it: the server answered 400, or broke off, and the error blamed the proxy."""
    server, files = guarded
    for named in ((files.certificate, files.key), files.both, Path(files.both), [files.certificate, files.key]):
        assert is_whole(loaded(server, named))
    assert sum(is_block(request) for request in server.requests) >= 4


def test_s3_shows_the_one_of_fsspecs_configuration_and_of_a_file_system_regression(
    guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec.config

    server, files = guarded
    uri, options = place_of("s3", server)
    configured = json.loads(json.dumps({"config_kwargs": {"client_cert": (files.certificate, files.key)}}))
    with monkeypatch.context() as patched:
        patched.setitem(fsspec.config.conf, "s3", configured)
        assert is_whole(streamer.load(uri, framework="np", storage_options=options, options=QUICK))
    named = {"config_kwargs": {"client_cert": files.both}, "client_kwargs": {"verify": files.ca}}
    fs = s3fs.S3FileSystem(**options, **named, skip_instance_cache=True)
    assert is_whole(streamer.load("bucket/a.safetensors", framework="np", fs=fs, options=QUICK))


@contextmanager
def gcs_connector(files: Files) -> Iterator[aiohttp.TCPConnector]:
    """Make a connector on gcsfs's loop, and close it."""
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)

    async def make() -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(ssl=context)

    made = sync(get_loop(), make)
    yield made
    sync(get_loop(), made.close)


def loaded_from_gcs(server: ScriptedServer, **more: Any) -> tuple[dict[str, Any], list[str]]:
    uri, options = place_of("gs", server)
    with streamer.stream(uri, framework="np", storage_options={**options, **more}, options=QUICK) as stream:
        tensors = dict(stream)
    return tensors, list(stream.report.remarks)


def test_gcs_reads_with_the_users_connector_and_says_so_regression(
    guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups had its TLS context, and the engine's reads did not."""
    server, files = guarded
    monkeypatch.delenv("SSL_CERT_FILE")
    with gcs_connector(files) as connector:
        tensors, remarks = loaded_from_gcs(server, session_kwargs={"connector": connector})
    assert is_whole(tensors)
    assert any("session_kwargs['connector']" in remark and "read in Python" in remark for remark in remarks)
    blocks = [request for request in server.requests if is_block(request)]
    assert blocks
    assert all("ifGenerationMatch=7" in request.path for request in blocks)


@pytest.mark.skipif(
    tuple(map(int, version("gcsfs").split(".")[:2])) < (2026, 10), reason="older releases of gcsfs show no certificate"
)
def test_gcs_reads_with_the_certificate_of_google_auth_regression(
    guarded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, files = guarded
    configured = {"cert_configs": {"workload": {"cert_path": files.certificate, "key_path": files.key}}}
    (tmp_path / "certificates.json").write_text(json.dumps(configured))
    monkeypatch.setenv("GOOGLE_API_CERTIFICATE_CONFIG", str(tmp_path / "certificates.json"))
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true")
    tensors, remarks = loaded_from_gcs(server)
    assert is_whole(tensors)
    assert any("google-auth" in remark for remark in remarks)


@pytest.mark.parametrize("name", ["ssl", "ssl_context", "cert"])
def test_gcs_refuses_a_context_that_its_session_could_not_have(guarded: Any, name: str) -> None:
    server, _ = guarded
    with pytest.raises(streamer.OptionError, match=f"no '{name}'") as caught:
        loaded_from_gcs(server, session_kwargs={name: ssl.create_default_context()})
    assert "TCPConnector" in (caught.value.hint or "")
    assert server.requests == []


def test_a_plug_ins_source_names_one(guarded: Any) -> None:
    server, files = guarded
    source = HttpSource(server.url, ca_file=files.ca, client_cert=files.certificate, client_key=files.key)
    objects = [SourceObject("test://object", source, len(DATA))]
    (read,), _ = read_ranges(objects, [(0, 0, len(DATA))], resolve(QUICK), what="all")
    assert bytes(read) == DATA


@pytest.mark.parametrize("storage", FILES)
def test_a_missing_client_certificate_is_named_at_once_regression(guarded: Any, storage: str) -> None:
    server, _ = guarded
    uri, options = place_of(storage, server)
    began = time.monotonic()
    with pytest.raises(streamer.TlsError, match=r"demands? a client certificate") as caught:
        streamer.load(uri, framework="np", storage_options=options, options=Options(deadline_s=30))
    assert time.monotonic() - began < 10
    assert not any(word in str(caught.value) for word in ("CA_BUNDLE", "CERT_FILE", "private CA"))
    assert server.requests == []


def test_reads_without_one_say_so_at_once_regression(guarded: Any) -> None:
    server, files = guarded
    objects = [SourceObject("test://object", HttpSource(server.url, ca_file=files.ca), len(DATA))]
    with pytest.raises(streamer.TlsError) as caught:
        read_ranges(objects, [(0, 0, len(DATA))], resolve(QUICK), what="all")
    assert "Name yours" in (caught.value.hint or "")


@pytest.mark.parametrize("what", ["absent", "no certificate", "key alone", "number", "three"])
def test_what_is_no_certificate_is_refused_before_the_first_request(guarded: Any, tmp_path: Path, what: str) -> None:
    server, files = guarded
    (tmp_path / "text.pem").write_text("no certificate")
    named: dict[str, Any] = {
        "absent": str(tmp_path / "absent.pem"),
        "no certificate": str(tmp_path / "text.pem"),
        "key alone": files.key,
        "number": 5,
        "three": (files.certificate, files.key, files.ca),
    }
    with pytest.raises(streamer.OptionError, match="client"):
        loaded(server, named[what])
    assert server.requests == []


@pytest.mark.parametrize("name", ["proxy_client_cert", "proxy_ca_bundle"])
def test_one_for_a_proxy_cannot_be_passed_on_and_is_refused(name: str) -> None:
    options = {"anon": True, "config_kwargs": {"proxies_config": {name: "/client.pem"}}}
    with pytest.raises(streamer.OptionError, match=name):
        streamer.load("s3://bucket/a.safetensors", storage_options=options)
