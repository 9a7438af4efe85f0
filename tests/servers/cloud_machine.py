"""A Python script on what looks like a cloud's machine: a network of its own, with a metadata server and a proxy in it.

Needs Linux and the right to make a network namespace; `missing_for_cloud_machine` says what is absent. Nothing in it
reaches another network, so a real machine's metadata server is never asked.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path

CLONE_NEWNET = 0x40000000
PROXY = "http://127.0.0.1:3128"

# Runs before the script, which finds `proxied` and `answered`: "METHOD URL" of what each of the two was asked.
MACHINE = f"""
import ctypes, errno, fcntl, json, os, socket, struct, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare({CLONE_NEWNET}) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
SIOCSIFADDR, SIOCSIFFLAGS, UP = 0x8916, 0x8914, 0x1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
    for name, address in ((b"lo", "127.0.0.1"), (b"lo:1", "169.254.169.254")):
        place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
        fcntl.ioctl(asker, SIOCSIFADDR, struct.pack("16s16s", name, place))
        fcntl.ioctl(asker, SIOCSIFFLAGS, struct.pack("16sh", name, UP))
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as asker:
    for address in ("::1", "fd00:ec2::254"):
        try:
            place = struct.pack("=16sIi", socket.inet_pton(socket.AF_INET6, address), 128, 1)
            fcntl.ioctl(asker, SIOCSIFADDR, place)
        except FileExistsError:
            pass

proxied, answered = [], []
SOON = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
ANSWERS = {{
    "/latest/api/token": b"a-session",
    "/latest/meta-data/iam/security-credentials/": b"a-role",
    "/latest/meta-data/iam/security-credentials/a-role": json.dumps(
        {{
            "Code": "Success",
            "AccessKeyId": "ASIAOFTHEMACHINE",
            "SecretAccessKey": "s",
            "Token": "t",
            "Expiration": SOON,
        }}
    ).encode(),
    "/": b"computeMetadata/",
    "/computeMetadata/v1/project/project-id": b"a-project",
    "/computeMetadata/v1/universe/universe-domain": b"googleapis.com",
    "/computeMetadata/v1/instance/service-accounts/default/": json.dumps(
        {{"aliases": ["default"], "email": "machine@a-project.iam.gserviceaccount.com", "scopes": ["scope"]}}
    ).encode(),
    "/metadata/identity/oauth2/token": json.dumps(
        {{
            "access_token": "of-the-machine",
            "expires_in": "3600",
            "expires_on": str(int(time.time()) + 3600),
            "resource": "https://storage.azure.com",
            "token_type": "Bearer",
        }}
    ).encode(),
}}
GOOGLE_TOKEN = json.dumps({{"access_token": "of-the-machine", "expires_in": 3600, "token_type": "Bearer"}}).encode()


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.partition("?")[0]
        answered.append(f"{{self.command}} {{path}}")
        body = GOOGLE_TOKEN if path.endswith("/token") and "computeMetadata" in path else ANSWERS.get(path)
        self.send_response(404 if body is None else 200)
        body = body or b""
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json" if body.startswith(b"{{") else "text/plain")
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET

    def log_message(self, *_):
        pass


class Proxy(Metadata):
    def do_GET(self):
        proxied.append(f"{{self.command}} {{self.path}}")
        self.send_error(502)

    do_PUT = do_POST = do_CONNECT = do_GET


class ThreadingHTTPServer6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def bound(kind, address, handler):
    # The kernel looks for twins of a new IPv6 address in a thread of its own, and refuses to bind to it meanwhile.
    latest = time.monotonic() + 10
    while True:
        try:
            return kind(address, handler)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or time.monotonic() > latest:
                raise
        time.sleep(0.01)


for kind, address, handler in (
    (ThreadingHTTPServer, ("169.254.169.254", 80), Metadata),
    (ThreadingHTTPServer6, ("fd00:ec2::254", 80), Metadata),
    (ThreadingHTTPServer, ("127.0.0.1", 3128), Proxy),
):
    threading.Thread(target=bound(kind, address, handler).serve_forever, daemon=True).start()
"""


def missing_for_cloud_machine() -> str | None:
    """Say why such a script cannot run here, or None."""
    child = os.fork()
    if child == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0 else 1)
    if os.waitpid(child, 0)[1] != 0:
        return "no right to make a network namespace, and so no metadata server of the test's own"
    return None


def run_on_cloud_machine(
    home: Path, script: str, environment: dict[str, str], timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a script on that machine, with a proxy in its environment and nobody's credentials in its home."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"), PROXY)
    return subprocess.run(
        [sys.executable, "-c", MACHINE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**kept, **proxies, "HOME": str(home), **environment},
    )
