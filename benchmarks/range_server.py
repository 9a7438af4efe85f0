"""A web server for benchmarks on machines without one: several processes send ranges of files with `sendfile`.

    python range_server.py FOLDER

Prints its port on the first line and serves until its standard input ends. Supports HTTP/1.1, keep-alive, GET, HEAD and
single ranges; the response to anything else is 404 or 416. Use it on loopback only.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

WORKERS = 8  # processes; one process sends about 3 GB/s over loopback


def _serve(connection: socket.socket, root: Path) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = connection.makefile("rb")
    # A client that has finished resets the connection if it has not read everything.
    with suppress(ConnectionError), connection, reader:
        while line := reader.readline():
            method, target, _ = line.decode("latin-1").split(" ", 2)
            wanted = None
            while (header := reader.readline().strip()) != b"":
                name, _, value = header.partition(b":")
                if name.lower() == b"range":
                    wanted = re.fullmatch(rb"bytes=(\d+)-(\d*)", value.strip())
            _answer(connection, method, (root / unquote(target).lstrip("/")).resolve(), root, wanted)


def _answer(connection: socket.socket, method: str, path: Path, root: Path, wanted: re.Match[bytes] | None) -> None:
    if not path.is_relative_to(root) or not path.is_file():
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        begin = int(wanted[1]) if wanted else 0
        end = min(status.st_size, int(wanted[2]) + 1 if wanted and wanted[2] else status.st_size)
        lines = [
            "HTTP/1.1 206 Partial Content" if wanted else "HTTP/1.1 200 OK",
            f"Content-Length: {end - begin}",
            f'ETag: "{status.st_mtime_ns:x}-{status.st_size:x}"',
            "Accept-Ranges: bytes",
            *([f"Content-Range: bytes {begin}-{end - 1}/{status.st_size}"] if wanted else []),
        ]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        while method == "GET" and begin < end:
            begin += os.sendfile(connection.fileno(), file.fileno(), begin, end - begin)


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    children = []
    for _ in range(WORKERS):
        child = os.fork()
        if child == 0:
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=_serve, args=(connection, root), daemon=True).start()
        children.append(child)
    sys.stdin.read()  # ends when the parent closes the pipe, or ends
    for child in children:
        os.kill(child, 15)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
