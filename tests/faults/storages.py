"""One checkpoint on servers of several kinds, each to be reached through a proxy at whatever port that has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers.azurite import AzuriteServer
from servers.ganesha import NfsServer
from servers.gcs_emulator import GcsServer
from servers.hub import HubServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests, rpc_calls, uncounted

from faults.server import FaultServer


@dataclass(frozen=True)
class Storage:
    """A running server with the checkpoint.

    Attributes:
        server: What an outage may kill, and the like.
        port: Where it listens.
        url: The checkpoint's URL, given a port.
        options: The storage options, given a port.
        counts: What a request to it is.
    """

    server: Any
    port: int
    url: Callable[[int], str]
    options: Callable[[int], Mapping[str, Any] | None] = field(default=lambda port: None)
    counts: Callable[[bytes], tuple[int, bytes]] = http_requests

    def proxy(self, bytes_per_s: float | None = None) -> TcpProxy:
        """Make a proxy before it."""
        return TcpProxy(self.port, self.counts, bytes_per_s=bytes_per_s)


Open = Callable[[Path], Any]  # a context manager that gives a Storage of the folder ``bucket/model``
STORAGES: dict[str, Open] = {}


def storage(start: Callable[[Path], Iterator[Storage]]) -> Open:
    """Enter a kind of storage under the name of its function."""
    STORAGES[start.__name__] = contextmanager(start)
    return STORAGES[start.__name__]


@storage
def faults(model: Path) -> Iterator[Storage]:
    """The fault server, an S3 that checks nothing."""
    with FaultServer(model.parent) as server:
        yield Storage(server, server.port, lambda port: server.url(model.name), server.storage_options)


@storage
def s3(model: Path) -> Iterator[Storage]:
    """A real S3, SeaweedFS."""
    with SeaweedServer() as server:
        server.make_bucket("bucket")
        url = server.upload_folder(model, "bucket", "model")
        given = server.storage_options()
        yield Storage(
            server, server.port, lambda port: url, lambda port: {**given, "endpoint_url": f"http://127.0.0.1:{port}"}
        )


@storage
def http(model: Path) -> Iterator[Storage]:
    """A web server, nginx."""
    with NginxServer(model.parent) as server:
        yield Storage(server, server.http_port, lambda port: f"http://127.0.0.1:{port}/open/{model.name}")


@storage
def https(model: Path) -> Iterator[Storage]:
    """The same under TLS."""
    with NginxServer(model.parent) as server:
        yield Storage(
            server,
            server.https_port,
            lambda port: f"https://127.0.0.1:{port}/open/{model.name}",
            lambda port: {"verify": server.ca_file},
            uncounted,
        )


@storage
def gs(model: Path) -> Iterator[Storage]:
    """Google Cloud Storage's emulator, anonymously: nothing but its answers about objects is to be mutated."""
    server = GcsServer()
    server.start()
    try:
        server.make_bucket("public")
        url = server.upload_folder(model, "public", "model")
        port_of_gate = int(server.endpoint_url.rpartition(":")[2])
        given = server.anonymous_options()
        yield Storage(
            server, port_of_gate, lambda port: url, lambda port: {**given, "endpoint_url": f"http://127.0.0.1:{port}"}
        )
    finally:
        server.stop()


@storage
def az(model: Path) -> Iterator[Storage]:
    """Azure's own emulator, Azurite."""
    server = AzuriteServer()
    server.start()
    try:
        server.make_container("bucket")
        url = server.upload_folder(model, "bucket", "model")
        port_of_server = server.host.partition("/")[0].partition(":")[2]
        yield Storage(
            server,
            int(port_of_server),
            lambda port: url,
            lambda port: {"connection_string": server.connection_string.replace(port_of_server, str(port), 1)},
        )
    finally:
        server.stop()


@storage
def hub(model: Path) -> Iterator[Storage]:
    """A stand-in for the Hugging Face Hub."""
    with HubServer() as server:
        server.upload_folder(model, "owner/model")
        port_of_hub = int(server.url.rpartition(":")[2])
        yield Storage(
            server,
            port_of_hub,
            lambda port: "hf://owner/model",
            lambda port: {"endpoint": f"http://127.0.0.1:{port}", "token": False},
        )


@storage
def nfs(model: Path) -> Iterator[Storage]:
    """An NFS server, nfs-ganesha, that is itself again at once after a restart."""
    yield from _nfs(model, grace_s=0)


@storage
def nfs_with_grace(model: Path) -> Iterator[Storage]:
    """The same that opens no file for two seconds after a restart."""
    yield from _nfs(model, grace_s=2)


def _nfs(model: Path, grace_s: int) -> Iterator[Storage]:
    with NfsServer(grace_s=grace_s) as server:
        server.upload_folder(model, "model")
        yield Storage(server, server.port, lambda port: server.url("model", nfsport=port), counts=rpc_calls)
