"""A private nfs-ganesha: a real NFSv4 server in user space, on a free loopback port, with an export of its own.

Guarantees: when ``start`` returns, the export can be listed; ``stop``, and also the death of this process by a signal,
ends the server and removes its folder. Files are put into the export through the local file system, which is what the
server exports. Needs root, since the server takes the identity of each caller, as real ones do.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from streamer.backends.nfs import NfsStore
from streamer.core.errors import StorageError

__all__ = ["NfsServer", "missing_for_ganesha"]

START_TIMEOUT_S = 30.0  # measured: 1 s
LOG_TAIL_BYTES = 4000
STATE_FOLDERS = ("/var/lib/nfs/ganesha", "/run/ganesha")  # compiled into the server
# Below Linux's ephemeral ports, so that no outgoing connection takes it between our look and the server's start.
LOWEST_PORT, HIGHEST_PORT = 22_000, 30_000

WATCHDOG = 'read -r line; kill -KILL "-$1"; rm -rf -- "$2" || { sleep 1; rm -rf -- "$2"; }'

CONFIGURATION = """
NFS_CORE_PARAM {{
    Protocols = 4;
    NFS_Port = {port};
    Bind_addr = 127.0.0.1;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    Enable_UDP = false;
    NLM_Port = 0;
}}
NFS_KRB5 {{ Active_krb5 = false; }}
NFSV4 {{ Graceless = true; RecoveryBackend = fs; }}
EXPORT {{
    Export_Id = 1;
    Path = {export};
    Pseudo = /export;
    Protocols = 4;
    Transports = TCP;
    SecType = sys;
    Attr_Expiration_Time = 0;
    Access_Type = RW;
    Squash = No_Root_Squash;
    FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = EVENT; }}
"""


def missing_for_ganesha() -> str | None:
    """Say why the server cannot run here, or None."""
    if shutil.which("ganesha.nfsd") is None:
        return "nfs-ganesha is not installed: apt install nfs-ganesha nfs-ganesha-vfs"
    if os.geteuid() != 0:
        return "nfs-ganesha needs root"
    return None


class NfsServer:
    """A context manager around one running server.

    Attributes:
        port: Where it listens, on 127.0.0.1 only.
        export: The exported folder, in the local file system.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NfsServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server and wait until its export can be listed.

        Raises:
            RuntimeError: it ended, or did not answer in time; the message shows the end of its log.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="ganesha-"))
        self.folder.chmod(0o755)  # the server reads as the caller's user, who must get through
        self.export = self.folder / "export"
        self.export.mkdir()
        self.port = _free_port()
        for state in STATE_FOLDERS:
            Path(state).mkdir(parents=True, exist_ok=True)
        try:
            self._launch()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """End the server as a crash would; the export stays."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Start it again on the same port, after `kill`."""
        self._end_watchdog()
        self._launch()
        self._wait_until_ready()

    def stop(self) -> None:
        """Kill the server and remove its folder. May be called twice."""
        if self._process is not None:
            self.kill()
        self._end_watchdog()
        self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> None:
        configuration = self.folder / "ganesha.conf"
        configuration.write_text(CONFIGURATION.format(port=self.port, export=self.export))
        files = ["-f", str(configuration), "-L", str(self.folder / "log"), "-p", str(self.folder / "pid")]
        self._process = subprocess.Popen(
            ["ganesha.nfsd", "-F", *files],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(self._process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _end_watchdog(self) -> None:
        """Let go of the watchdog without its bite: the server it watches is dead, its folder is still ours."""
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
        self._watchdog = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"nfs-ganesha ended with status {self._process.returncode}:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"nfs-ganesha gave no answer in {START_TIMEOUT_S:.0f} s:\n{self._log_tail()}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket() as probe:  # a quick look first: a client would wait longer
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        store = NfsStore(self.url(), {})
        try:
            store.find(store.root)
        except StorageError:
            return False
        finally:
            store.close()
        return True

    def _log_tail(self) -> str:
        log = self.folder / "log"
        return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else "(no log)"

    # --- use ----------------------------------------------------------------------------------------------------

    def url(self, name: str = "", **options: Any) -> str:
        """Give the URL of a file or folder of the export, with `options` in its query."""
        path = f"/export/{name}" if name else "/export"
        given = {"version": 4, "nfsport": self.port, **options}
        return f"nfs://127.0.0.1{path}?" + "&".join(f"{key}={value}" for key, value in given.items())

    def put(self, name: str, data: bytes, *, mode: int = 0o644) -> Path:
        """Write a file, replacing what is there as a careful writer does: by renaming over it."""
        path = self.export / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{secrets.token_hex(4)}")
        draft.write_bytes(data)
        draft.chmod(mode)
        return draft.rename(path)

    def upload_folder(self, folder: str | os.PathLike[str], name: str) -> str:
        """Copy a folder into the export and give its URL."""
        shutil.copytree(folder, self.export / name)
        return self.url(name)


def _free_port() -> int:
    for _ in range(200):
        port = secrets.choice(range(LOWEST_PORT, HIGHEST_PORT))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"no free port between {LOWEST_PORT} and {HIGHEST_PORT}")
