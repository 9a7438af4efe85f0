"""A private nginx on free loopback ports, HTTP and TLS, with the ways a file server may make life hard.

Guarantees: when ``start`` returns both ports answer; it reads nothing of the system's nginx; ``stop``, and also the
death of this process, ends it and removes its folder. Every request is in its log, see `requests`.

What its locations do with the files below ``root``::

    /open/      serves and lists them                        /private/   wants the user and password
    /bearer/    wants ``Authorization: Bearer TOKEN``        /whole/     gives no parts of a file, only all of it
    /moved/     redirects to the other host's /open/         /login/     answers with a web page, whatever is asked
    /unlisted/  serves, but lists nothing                    /chunked/   does not tell a size
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trustme

from servers.kept_ports import KeptPorts
from servers.server_process import LoopbackServer, ServerProcess, is_open

__all__ = ["NginxServer", "Seen"]

START_TIMEOUT_S = 30.0
POLL_S = 0.01

CONFIG = """
daemon off;
{user}
worker_processes 1;
pid {work}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  log_format seen escape=json '{{"method":"$request_method","uri":"$request_uri","status":"$status",'
    '"host":"$http_host","range":"$http_range","authorization":"$http_authorization","cookie":"$http_cookie","custom":"$http_x_custom"}}';
  access_log {work}/access.log seen;
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi;
  scgi_temp_path {work}/scgi;
  default_type application/octet-stream;
  types {{ application/json json; text/html html; }}
  sendfile off;
  output_buffers 2 512k;
  keepalive_requests 1000000;
  lingering_timeout 1s;
  server {{
    listen 127.0.0.1:{http_port};
    listen 127.0.0.1:{https_port} ssl;
    ssl_certificate {work}/server.pem;
    ssl_certificate_key {work}/server.key;
    root {work}/empty;
    location /open/ {{ alias {root}/; autoindex on; }}
    location /unlisted/ {{ alias {root}/; }}
    location /whole/ {{ alias {root}/; autoindex on; max_ranges 0; }}
    location /private/ {{ alias {root}/; autoindex on; auth_basic "x"; auth_basic_user_file {work}/users; }}
    location /bearer/ {{
      if ($http_authorization != "Bearer {token}") {{ return 401; }}
      alias {root}/; autoindex on;
    }}
    location /moved/ {{ rewrite ^/moved/(.*)$ http://localhost:{http_port}/open/$1 redirect; }}
    location /down/ {{ rewrite ^/down/(.*)$ http://127.0.0.1:{http_port}/open/$1 redirect; }}
    location /round/ {{ return 302 /round/again; }}
    location /ftp/ {{ return 302 ftp://127.0.0.1/x; }}
    location /forbidden/ {{ return 403; }}
    location /broken/ {{ return 503; }}
    location /login/ {{ types {{ }} default_type text/html; return 200 "<html>please log in</html>"; }}
    location /chunked/ {{ proxy_pass http://127.0.0.1:{http_port}/whole/; proxy_http_version 1.0; {chunked} }}
  }}
}}
"""
# A filter that may change the length makes nginx drop it, and with it the ranges.
CHUNKED = "sub_filter_types *; sub_filter 'never in weights 8f1c' ''; sub_filter_once off;"


@dataclass(frozen=True)
class Seen:
    """One request as nginx logged it; absent headers are empty."""

    method: str
    uri: str
    status: str
    host: str
    range: str
    authorization: str
    cookie: str
    custom: str


class NginxServer(LoopbackServer):
    """A context manager around one running server of the files below `root`.

    Attributes:
        http_url: Where it answers without TLS.
        https_url: Where it answers with TLS, under the authority in `ca_file`.
        ca_file: PEM file to trust.
        user: For ``/private/``.
        password: For ``/private/``.
        token: For ``/bearer/``.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        self.user, self.password, self.token = "ada", secrets.token_urlsafe(12), secrets.token_urlsafe(20)
        self._process: ServerProcess | None = None

    @property
    def basic(self) -> str:
        """The header's value that opens ``/private/``."""
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            FileNotFoundError: nginx is not installed.
            RuntimeError: it ended, or did not answer in time; the message shows its log.
        """
        binary = _find_nginx()
        self._work = Path(tempfile.mkdtemp(prefix="nginx-"))
        self._work.chmod(0o711)  # its workers may run as another user
        self._ports = KeptPorts(2)
        self.http_port, self.https_port = self._ports.numbers
        self.http_url, self.https_url = f"http://127.0.0.1:{self.http_port}", f"https://127.0.0.1:{self.https_port}"
        self.other_url = f"http://localhost:{self.http_port}"
        self.ca_file = str(self._work / "ca.pem")
        self._authority = trustme.CA()
        try:
            self._write_files()
            self._launch(binary)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """End it as a crash would; its folder stays."""
        assert self._process is not None
        self._process.crash()
        self._process = None
        while is_open(self.http_port) or is_open(self.https_port):  # the workers of a dead master die a moment later
            time.sleep(POLL_S)

    def restart(self) -> None:
        """Start it again on the same ports, after `kill`."""
        self._launch(_find_nginx())

    def renew_certificate(self) -> None:
        """Write another key and certificate of the same authority, which a restart takes."""
        server = self._authority.issue_cert("127.0.0.1", "localhost")
        server.private_key_pem.write_to_path(str(self._work / "server.key"))
        server.cert_chain_pems[0].write_to_path(str(self._work / "server.pem"))

    def stop(self) -> None:
        """End it and remove its folder. May be called twice."""
        if self._process is not None:
            self._process.end()
        self._process = None
        self._ports.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def requests(self, fragment: str = "") -> list[Seen]:
        """Give the requests so far whose URI holds `fragment`; nginx logs a request when it ends."""
        lines = (self._work / "access.log").read_text().splitlines()
        return [seen for seen in (Seen(**json.loads(line)) for line in lines) if fragment in seen.uri]

    def _launch(self, binary: str) -> None:
        command = [binary, "-p", str(self._work), "-c", "nginx.conf", "-e", "stderr"]
        self._process = ServerProcess("nginx", command, self._work)
        for port in (self.http_port, self.https_port):
            self._process.wait_for(partial(is_open, port), START_TIMEOUT_S)

    def _write_files(self) -> None:
        self._authority.cert_pem.write_to_path(self.ca_file)
        self.renew_certificate()
        (self._work / "empty").mkdir()
        (self._work / "users").write_text(f"{self.user}:{{PLAIN}}{self.password}\n")
        # The workers of a root master drop to `nobody` unless told otherwise; for others `user` is a warning.
        user = "user root;" if os.geteuid() == 0 else ""
        text = CONFIG.format(
            user=user,
            work=self._work,
            root=self.root,
            http_port=self.http_port,
            https_port=self.https_port,
            token=self.token,
            chunked=CHUNKED,
        )
        (self._work / "nginx.conf").write_text(text)


def _find_nginx() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise FileNotFoundError("nginx is not installed: apt-get install -y --no-install-recommends nginx-light")
    return found
