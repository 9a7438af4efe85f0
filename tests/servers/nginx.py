"""A private nginx with the ways a file server may make life hard. Every request is in its log, see `requests`.

What its locations do with the files below ``root``::

    /open/      serves and lists them                        /private/   wants the user and password
    /bearer/    wants ``Authorization: Bearer TOKEN``        /whole/     gives no parts of a file, only all of it
    /moved/     redirects to the other host's /open/         /login/     answers with a web page, whatever is asked
    /unlisted/  serves, but lists nothing                    /chunked/   does not tell a size
    /dav/       takes PUT and DELETE; without conditions     /small/     the same, of 100 kB at most
"""

from __future__ import annotations

import json
import os
import secrets
from base64 import b64encode
from dataclasses import dataclass

from servers.nginx_process import NginxProcess

__all__ = ["NginxServer", "Seen"]

HTTP = """
  log_format seen escape=json '{{"method":"$request_method","uri":"$request_uri","status":"$status",'
    '"host":"$http_host","range":"$http_range","authorization":"$http_authorization","cookie":"$http_cookie","custom":"$http_x_custom"}}';
  access_log {work}/access.log seen;
  types {{ application/json json; text/html html; }}
  lingering_timeout 1s;
"""
SERVER = """
    root {work}/empty;
    client_max_body_size 300m;
    location /open/ {{ alias {root}/; autoindex on; }}
    location /unlisted/ {{ alias {root}/; }}
    location /whole/ {{ alias {root}/; autoindex on; max_ranges 0; }}
    location /dav/ {{
      alias {root}/; autoindex on; dav_methods PUT DELETE; create_full_put_path on;
    }}
    location /small/ {{ alias {root}/; autoindex on; dav_methods PUT DELETE; client_max_body_size 100k; }}
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


class NginxServer(NginxProcess):
    """A context manager around one running server of the files below `root`.

    Attributes:
        user: For ``/private/``.
        password: For ``/private/``.
        token: For ``/bearer/``.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.user, self.password, self.token = "ada", secrets.token_urlsafe(12), secrets.token_urlsafe(20)

    @property
    def other_url(self) -> str:
        """The same server under another name."""
        return f"http://localhost:{self.http_port}"

    @property
    def basic(self) -> str:
        """The header's value that opens ``/private/``."""
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()

    def http_settings(self) -> str:
        return HTTP.format(work=self.work)

    def server_settings(self) -> str:
        (self.work / "empty").mkdir()
        (self.work / "users").write_text(f"{self.user}:{{PLAIN}}{self.password}\n")
        return SERVER.format(
            work=self.work, root=self.root, http_port=self.http_port, token=self.token, chunked=CHUNKED
        )

    def requests(self, fragment: str = "") -> list[Seen]:
        """Return the requests so far whose URI holds `fragment`; nginx logs a request when it ends."""
        lines = (self.work / "access.log").read_text().splitlines()
        return [seen for seen in (Seen(**json.loads(line)) for line in lines) if fragment in seen.uri]
