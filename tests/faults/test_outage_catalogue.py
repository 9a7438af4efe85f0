"""Each outage does what it says, to a plain client: otherwise the loads that live through them would prove nothing."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import s3fs
from servers.ganesha import NfsServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests, uncounted

import streamer
from faults.outages import OTHER_ADDRESS, OUTAGES, Planned, Scene
from faults.server import FaultServer
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import NfsSource

DATA = bytes(range(256)) * 16_384  # 4 MiB
AT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bucket = tmp_path_factory.mktemp("outages") / "bucket"
    bucket.mkdir()
    bucket.chmod(0o755)
    (bucket / "object").write_bytes(DATA)
    return bucket


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    with FaultServer(folder) as server, TcpProxy(server.port, http_requests) as proxy:
        yield Scene(proxy, server)


def get(port: int, path: str = "/bucket/object", address: str = "127.0.0.1") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(address, port, timeout=10)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_an_outage_begins_in_the_middle_of_an_answer(folder: Path) -> None:
    with scene(folder) as at, Planned("gone", at, AT_BYTES, None) as outage:
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            get(at.proxy.port)
        assert outage.began.wait(10)
        assert AT_BYTES <= at.proxy.passed_bytes < AT_BYTES + (256 << 10)
        with pytest.raises(ConnectionRefusedError):
            get(at.proxy.port)
        outage.end()
        assert outage.over.is_set()
        assert get(at.proxy.port) == (200, DATA)


def test_idle_connections_are_reset_too(folder: Path) -> None:
    with scene(folder) as at, closing(http.client.HTTPConnection("127.0.0.1", at.proxy.port)) as idle:
        idle.request("HEAD", "/bucket/object")
        idle.getresponse().read()
        at.proxy.leave()
        with pytest.raises(ConnectionResetError):
            idle.sock.recv(1)


def test_an_outage_lasts_as_long_as_it_is_reported(folder: Path) -> None:
    with scene(folder) as at, Planned("gone", at, AT_BYTES, 0.3) as outage:
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            get(at.proxy.port)
        assert outage.began.wait(10)
        started = time.monotonic()
        assert outage.over.wait(10)
        assert time.monotonic() - started > 0.2


def test_a_reset_wave_takes_connections_and_resets_them(folder: Path) -> None:
    with scene(folder) as at, Planned("reset_wave", at, AT_BYTES, None) as outage:
        for _ in range(3):
            with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
                get(at.proxy.port)
        assert (at.proxy.connections, at.proxy.requests) == (3, 3)
        outage.end()
        assert get(at.proxy.port) == (200, DATA)


@pytest.mark.parametrize(("name", "status", "wait"), [("throttle_wave", 503, None), ("busy_wave", 429, "1")])
def test_a_wave_of_refusals_lets_the_answer_under_way_through(
    folder: Path, name: str, status: int, wait: str | None
) -> None:
    with scene(folder) as at, Planned(name, at, AT_BYTES, None) as outage:
        with closing(http.client.HTTPConnection("127.0.0.1", at.proxy.port, timeout=10)) as kept:
            for method, expected in (("GET", 200), ("HEAD", status), ("GET", status)):  # on one connection
                kept.request(method, "/bucket/object")
                answer = kept.getresponse()
                body = answer.read()
                assert answer.status == expected
            assert (answer.headers["Retry-After"], b"<Error>" in body) == (wait, True)
        assert at.proxy.turned_away == 2
        outage.end()
        assert get(at.proxy.port) == (200, DATA)


def test_a_server_may_come_back_at_another_address(folder: Path, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 storage.test\n")
    with scene(folder) as at, Planned("dns_change", Scene(at.proxy, hosts=hosts), AT_BYTES, 0) as outage:
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            get(at.proxy.port)
        assert outage.over.wait(10)
        with pytest.raises(ConnectionRefusedError):
            get(at.proxy.port)
        assert get(at.proxy.port, address=OTHER_ADDRESS) == (200, DATA)
        assert hosts.read_text() == f"{OTHER_ADDRESS} storage.test\n"


def test_signatures_made_before_an_outage_are_refused_after_it(folder: Path) -> None:
    with scene(folder) as at, Planned("expiry_in_outage", at, AT_BYTES, 1.1) as outage:
        files = s3fs.S3FileSystem(**at.server.storage_options(at.proxy.port), skip_instance_cache=True)
        signed = files.sign("bucket/object", expiration=600).partition(str(at.proxy.port))[2]
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            get(at.proxy.port, signed)
        assert outage.over.wait(10)
        status, body = get(at.proxy.port, signed)
        assert (status, b"expired" in body) == (403, True)
        assert files.cat_file("bucket/object", start=10, end=20) == DATA[10:20]  # signed anew
        assert at.server.expired == 1


def test_a_killed_s3_knows_its_objects_again() -> None:
    with SeaweedServer() as server, TcpProxy(server.port, http_requests) as proxy:
        server.make_bucket("bucket")
        server.put("bucket", "object", DATA)
        options = {**server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        files = s3fs.S3FileSystem(**options, skip_instance_cache=True, config_kwargs={"retries": {"max_attempts": 0}})
        with Planned("killed", Scene(proxy, server), AT_BYTES, 0.1) as outage:
            with pytest.raises(Exception):  # noqa: B017, PT011 (which one is s3fs's affair)
                files.cat_file("bucket/object")
            assert outage.over.wait(60)
        patient = s3fs.S3FileSystem(**options, skip_instance_cache=True)
        assert read_patiently(patient, "bucket/object") == DATA


def read_patiently(files: s3fs.S3FileSystem, path: str) -> bytes:
    """Read an object of a server that is there before its volumes are, on a busy machine long before."""
    give_up_at = time.monotonic() + 60
    while True:
        try:
            return bytes(files.cat_file(path))
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)


def test_a_renewed_certificate_is_another_one_of_the_same_authority(folder: Path) -> None:
    def certificate(port: int) -> Any:
        trust = ssl.create_default_context(cafile=server.ca_file)
        plain = socket.create_connection(("127.0.0.1", port))
        with plain, trust.wrap_socket(plain, server_hostname="127.0.0.1") as shown:
            return shown.getpeercert(binary_form=True)

    with NginxServer(folder) as server, TcpProxy(server.https_port, uncounted) as proxy:
        before = certificate(proxy.port)
        assert certificate(proxy.port) == before
        with Planned("certificate_renewed", Scene(proxy, server), proxy.passed_bytes + 1, 0) as outage:
            with pytest.raises((ConnectionResetError, ssl.SSLError)):
                certificate(proxy.port)
            assert outage.over.wait(30)
        assert certificate(proxy.port) != before


def test_an_nfs_server_opens_no_file_in_its_grace_period(nfs_server: NfsServer) -> None:
    """The one client at hand is the engine, which had the file open before."""
    del nfs_server  # only for its reason to skip
    with NfsServer(grace_s=2) as server:
        server.put("file", DATA)
        items = [Item(0, begin, begin + (1 << 20)) for begin in range(0, len(DATA), 1 << 20)]
        source = SourceObject("nfs://test", NfsSource(server.url("file")), len(DATA))
        little = streamer.Options(block_bytes=1 << 20, memory_limit_bytes=1 << 20, max_attempts=50)
        session = ReadSession([source], plan_reads(items, 0), resolve(little))
        found = {item: bytes(memoryview(session.take(item))) for item in session.next_items()}
        server.kill()
        server.restart()
        started = time.monotonic()
        while waiting := session.next_items():
            found.update({item: bytes(memoryview(session.take(item))) for item in waiting})
        assert time.monotonic() - started > 1
        assert b"".join(found[item] for item in range(len(items))) == DATA


def test_every_outage_says_what_it_is() -> None:
    assert len(OUTAGES) == 8
    assert all(each.summary.endswith(".") for each in OUTAGES.values())
