"""A static nginx on 127.0.0.1, plain and TLS: a server cheap enough not to hide its clients.

Guarantees: inside ``with NginxOrigin(folder) as origin`` both ports answer; afterwards the process is gone and its
files are removed; if this process is killed, nginx still ends and only its folder stays. It runs as the current user,
from its own temporary folder, and reads nothing of the system's nginx configuration. Signatures are ignored and there
is no ListObjects: it measures speed and never correctness. `sendfile off` with large output buffers is the faster
choice on loopback, which is why it is used.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import trustme

START_TIMEOUT_S = 10.0
LIBC = ctypes.CDLL(None)  # loaded here, because little may be done between fork and exec

CONFIG = """
daemon off;
{user}
worker_processes 2;
pid {work}/nginx.pid;
error_log {work}/error.log warn;
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


def _end_with_parent() -> None:
    """Ask the kernel to end nginx if this process is killed before it can."""
    pr_set_pdeathsig = 1
    LIBC.prctl(pr_set_pdeathsig, signal.SIGTERM)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class NginxOrigin:
    """Serve `root` at ``/``; lay files out as ``root/BUCKET/KEY`` to look like an object store with path addressing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).resolve()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NginxOrigin:
        binary = _binary()
        self._work = Path(tempfile.mkdtemp(prefix="nginx-origin-"))
        try:
            self.plain_port, self.tls_port = _free_ports(2)
            self._write_certificates()
            self._write_config()
            command = [binary, "-p", str(self._work), "-c", str(self._work / "nginx.conf")]
            command += ["-e", str(self._work / "error.log")]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - only calls prctl, which takes no lock
            )
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

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

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        for port in (self.plain_port, self.tls_port):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    self._raise_if_it_cannot_start(deadline)
                    time.sleep(0.02)

    def _raise_if_it_cannot_start(self, deadline: float) -> None:
        if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
            log = self._work / "error.log"
            raise RuntimeError(f"nginx did not start: {log.read_text() if log.exists() else 'no log'}")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._work, ignore_errors=True)
