"""A private nginx on two loopback ports, HTTP and TLS; what it serves is for subclasses to say.

Guarantees: when ``start`` returns both ports answer; it reads nothing of the system's nginx; ``stop``, and also the
death of this process by any signal, ends it and removes its folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import trustme

from servers.kept_ports import KeptPorts
from servers.server_process import RestartableServer, ServerProcess, is_open

__all__ = ["NginxProcess"]

START_TIMEOUT_S = 30.0
POLL_S = 0.01

# `sendfile off` with large output buffers is the faster choice on loopback.
CONFIG = """
daemon off;
{user}
worker_processes {workers};
pid {work}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi;
  scgi_temp_path {work}/scgi;
  default_type application/octet-stream;
  sendfile off;
  output_buffers 2 512k;
  keepalive_requests 1000000;
  {http}
  server {{
    listen 127.0.0.1:{http_port};
    listen 127.0.0.1:{https_port} ssl;
    ssl_certificate {work}/server.pem;
    ssl_certificate_key {work}/server.key;
    {server}
  }}
}}
"""


class NginxProcess(RestartableServer):
    """A context manager around one running server.

    Attributes:
        root: Folder of the files that it serves.
        work: Folder of its own files.
        http_port: Where it answers without TLS.
        https_port: Where it answers with TLS, under the authority in `ca_file`.
        ca_file: PEM file to trust.
    """

    workers = 1

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def https_url(self) -> str:
        return f"https://127.0.0.1:{self.https_port}"

    def http_settings(self) -> str:
        """Return further directives of the block ``http``."""
        return ""

    def server_settings(self) -> str:
        """Return the directives of the block ``server``: what it serves."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            FileNotFoundError: nginx is not installed.
            RuntimeError: it ended, or did not answer in time; the message shows its log.
        """
        _find_nginx()  # before anything is made
        self.work = Path(tempfile.mkdtemp(prefix="nginx-"))
        self.work.chmod(0o711)  # its workers may run as another user
        self._ports = KeptPorts(2)
        self.http_port, self.https_port = self._ports.numbers
        self.ca_file = str(self.work / "ca.pem")
        self._authority = trustme.CA()
        try:
            self._authority.cert_pem.write_to_path(self.ca_file)
            self.renew_certificate()
            (self.work / "nginx.conf").write_text(self._config())
            self._launch()
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """End it as a crash would; what it serves stays."""
        super().kill()
        while is_open(self.http_port) or is_open(self.https_port):  # the workers of a dead master die a moment later
            time.sleep(POLL_S)

    def renew_certificate(self) -> None:
        """Write another key and certificate of the same authority, which a restart takes."""
        server = self._authority.issue_cert("127.0.0.1", "localhost")
        server.private_key_pem.write_to_path(str(self.work / "server.key"))
        server.cert_chain_pems[0].write_to_path(str(self.work / "server.pem"))

    def stop(self) -> None:
        """End it and remove its folder. May be called twice."""
        if self._process is not None:
            self._process.end()
        self._process = None
        self._ports.close()
        shutil.rmtree(self.work, ignore_errors=True)

    def _launch(self) -> None:
        command = [_find_nginx(), "-p", str(self.work), "-c", "nginx.conf", "-e", "stderr"]
        self._process = ServerProcess("nginx", command, self.work)
        for port in (self.http_port, self.https_port):
            self._process.wait_for(partial(is_open, port), START_TIMEOUT_S)

    def _config(self) -> str:
        return CONFIG.format(
            # The workers of a root master drop to `nobody` unless told otherwise; for others `user` is a warning.
            user="user root;" if os.geteuid() == 0 else "",
            workers=self.workers,
            work=self.work,
            http_port=self.http_port,
            https_port=self.https_port,
            http=self.http_settings(),
            server=self.server_settings(),
        )


def _find_nginx() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise FileNotFoundError("nginx is not installed: apt-get install -y --no-install-recommends nginx-light")
    return found
