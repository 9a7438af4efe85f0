"""TLS between peers: without a certificate of the authority, a peer gives and gets nothing, not even the token."""

from __future__ import annotations

import contextlib
import http.client
import logging
import ssl

import numpy as np
import pytest
import trustme
from safetensors.numpy import save
from servers.one_file import one_file, place_of

import streamer
from streamer import _native
from streamer.core.peers import joining
from streamer.core.peers.server import PeerServer

TOKEN = "a-token-of-the-tests"
TENSORS = {f"layer{number}": np.arange(number, number + 500_000, dtype=np.float32) for number in range(8)}
DATA = save(TENSORS)


def certificates(folder, authority, name="peers.invalid"):
    """Write the files of a peer. No host has the name that its certificate gives."""
    folder.mkdir(exist_ok=True)
    own = authority.issue_cert(name)
    (folder / "tls.crt").write_bytes(b"".join(each.bytes() for each in own.cert_chain_pems))
    (folder / "tls.key").write_bytes(own.private_key_pem.bytes())
    authority.cert_pem.write_to_path(folder / "ca.crt")
    return str(folder)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN)
    yield
    joining.leave_peers()


@pytest.fixture
def storage():
    with one_file(data=DATA) as server:
        yield server


def load(storage, options):
    uri, storage_options = place_of("s3", storage)
    with streamer.stream(uri, framework="np", storage_options=storage_options, options=options) as stream:
        tensors = dict(stream)
    assert _native.finish_cache_writes(30)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    return stream.report


def addressed(server):
    return f"127.0.0.1:{server.port}"


def test_peers_with_certificates_of_one_authority_give_each_other_everything(storage, tmp_path, authority, monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TLS_DIR", certificates(tmp_path / "tls", authority))
    load(storage, streamer.Options(cache_dir=tmp_path / "0"))
    with contextlib.closing(PeerServer(str(tmp_path / "0"), "127.0.0.1", 0, TOKEN)) as peer:
        report = load(storage, streamer.Options(cache_dir=tmp_path / "1", peers=[addressed(peer)]))
        assert report.peer_bytes == {addressed(peer): report.bytes}
        # Renewed certificates of another authority: no restart, and no more of the old ones.
        certificates(tmp_path / "tls", trustme.CA())
        report = load(storage, streamer.Options(cache_dir=tmp_path / "2", peers=[addressed(peer)]))
        assert report.peer_bytes == {addressed(peer): report.bytes}


def test_a_peer_of_another_authority_is_not_used_and_one_line_says_why(
    storage, tmp_path, authority, monkeypatch, caplog
):
    load(storage, streamer.Options(cache_dir=tmp_path / "0"))
    monkeypatch.setenv("STREAMER_PEERS_TLS_DIR", certificates(tmp_path / "theirs", trustme.CA()))
    with contextlib.closing(PeerServer(str(tmp_path / "0"), "127.0.0.1", 0, TOKEN)) as peer:
        monkeypatch.setenv("STREAMER_PEERS_TLS_DIR", certificates(tmp_path / "mine", authority))
        with caplog.at_level(logging.WARNING, "streamer"):
            report = load(storage, streamer.Options(cache_dir=tmp_path / "1", peers=[addressed(peer)]))
    assert report.peer_bytes == {}
    lines = [each.getMessage() for each in caplog.records if "not used as a peer" in each.getMessage()]
    assert len(lines) == 1
    assert "127.0.0.1:" in lines[0]
    assert "is not used as a peer: its certificate is not of the authority" in lines[0]


def test_who_has_the_token_and_no_certificate_gets_nothing(storage, tmp_path, authority, monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TLS_DIR", certificates(tmp_path / "tls", authority))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def ask(connection):
        with contextlib.closing(connection):
            connection.request("POST", "/v1/held", '{"objects": {}}', {"Authorization": f"Bearer {TOKEN}"})
            connection.getresponse()

    with contextlib.closing(PeerServer(str(tmp_path / "0"), "127.0.0.1", 0, TOKEN)) as peer:
        for connection in (
            http.client.HTTPSConnection("127.0.0.1", peer.port, timeout=30, context=context),
            http.client.HTTPConnection("127.0.0.1", peer.port, timeout=30),
        ):
            with pytest.raises((OSError, http.client.HTTPException)):
                ask(connection)


def test_a_node_with_certificates_and_one_without_load_from_the_storage(storage, tmp_path, authority, monkeypatch):
    load(storage, streamer.Options(cache_dir=tmp_path / "0"))
    with contextlib.closing(PeerServer(str(tmp_path / "0"), "127.0.0.1", 0, TOKEN)) as plain:
        monkeypatch.setenv("STREAMER_PEERS_TLS_DIR", certificates(tmp_path / "tls", authority))
        assert load(storage, streamer.Options(cache_dir=tmp_path / "1", peers=[addressed(plain)])).peer_bytes == {}
        with contextlib.closing(PeerServer(str(tmp_path / "0"), "127.0.0.1", 0, TOKEN)) as secure:
            monkeypatch.delenv("STREAMER_PEERS_TLS_DIR")
            options = streamer.Options(cache_dir=tmp_path / "2", peers=[addressed(secure)])
            assert load(storage, options).peer_bytes == {}


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_is_missing_is_an_error_that_names_it(storage, tmp_path, authority, monkeypatch, missing):
    monkeypatch.setenv("STREAMER_PEERS_TLS_DIR", certificates(tmp_path / "tls", authority))
    (tmp_path / "tls" / missing).unlink()
    with pytest.raises(streamer.OptionError, match="STREAMER_PEERS_TLS_DIR") as caught:
        load(storage, streamer.Options(cache_dir=tmp_path / "1", peers=["127.0.0.1:1"]))
    assert str(tmp_path / "tls" / missing) in str(caught.value)
