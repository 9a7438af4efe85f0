"""A static nginx on 127.0.0.1, plain and TLS: a server cheap enough not to hide its clients.

Guarantees: inside ``with NginxOrigin(folder) as origin`` both ports answer; afterwards, and also after the death of
this process by any signal, nginx and its folder are gone. It runs as the current user, from its own temporary folder,
and reads nothing of the system's nginx configuration. Signatures are ignored and there is no ListObjects: it measures
speed and never correctness. `sendfile off` with large output buffers is the faster choice on loopback, which is why it
is used.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import trustme

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]

from servers.server_process import LoopbackServer, ServerProcess, free_ports, is_open  # noqa: E402

START_TIMEOUT_S = 10.0

CONFIG = """
daemon off;
{user}
worker_processes 2;
pid {work}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi;
  scgi_temp_path {work}/scgi;
  default_type application/octet-stream;
  sendfile off;
  output_buffers 2 512k;
  keepalive_requests 1000000;
  keepalive_timeout 300s;
  server {{
    listen 127.0.0.1:{plain_port};
    listen 127.0.0.1:{tls_port} ssl;
    ssl_certificate {work}/server.pem;
    ssl_certificate_key {work}/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    root {root};
  }}
}}
"""


def _binary() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise FileNotFoundError("nginx is not installed: apt-get install -y --no-install-recommends nginx-light")
    return found


class NginxOrigin(LoopbackServer):
    """Serve `root` at ``/``; lay files out as ``root/BUCKET/KEY`` to look like an object store with path addressing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).resolve()
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start it and wait until both ports answer.

        Raises:
            FileNotFoundError: nginx is not installed.
            RuntimeError: it ended, or did not answer in time; the message shows its log.
        """
        binary = _binary()
        self._work = Path(tempfile.mkdtemp(prefix="nginx-origin-"))
        try:
            self.plain_port, self.tls_port = free_ports(2)
            self._write_certificates()
            self._write_config()
            command = [binary, "-p", str(self._work), "-c", "nginx.conf", "-e", "stderr"]
            self._process = ServerProcess("nginx", command, self._work)
            for port in (self.plain_port, self.tls_port):
                self._process.wait_for(partial(is_open, port), START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it and remove its folder. May be called twice."""
        if self._process is not None:
            self._process.end()
        self._process = None
        shutil.rmtree(self._work, ignore_errors=True)

    @property
    def http_url(self) -> str:
        """Endpoint without TLS."""
        return f"http://127.0.0.1:{self.plain_port}"

    @property
    def https_url(self) -> str:
        """Endpoint with TLS, trusted through `ca_file`."""
        return f"https://127.0.0.1:{self.tls_port}"

    @property
    def ca_file(self) -> str:
        """The authority that signed the server's certificate, PEM."""
        return str(self._work / "ca.pem")

    def _write_certificates(self) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        authority.cert_pem.write_to_path(self.ca_file)
        server.private_key_pem.write_to_path(str(self._work / "server.key"))
        for index, blob in enumerate(server.cert_chain_pems):
            blob.write_to_path(str(self._work / "server.pem"), append=index > 0)

    def _write_config(self) -> None:
        # The workers of a root master drop to `nobody` unless told otherwise; for others `user` is a warning.
        user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
        text = CONFIG.format(
            user=user, work=self._work, root=self._root, plain_port=self.plain_port, tls_port=self.tls_port
        )
        (self._work / "nginx.conf").write_text(text)
