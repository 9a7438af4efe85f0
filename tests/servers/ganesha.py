"""A private nfs-ganesha: a real NFSv4 server in user space, on a free loopback port, with an export of its own.

Guarantees: when ``start`` returns, the export can be listed; ``stop``, and also the death of this process by a signal,
ends the server and removes its folder. Files are put into the export through the local file system, which is what the
server exports. Needs root, since the server takes the identity of each caller, as real ones do.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

from servers.kept_ports import KeptPorts
from servers.server_process import RestartableServer, ServerProcess, is_open
from streamer.backends.nfs.store import NfsStore
from streamer.core.errors import StorageError
from streamer.core.store.sources import ObjectInfo

__all__ = ["NfsServer", "missing_for_ganesha"]

START_TIMEOUT_S = 30.0  # measured: 1 s
STATE_FOLDERS = ("/var/lib/nfs/ganesha", "/run/ganesha")  # compiled into the server

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
NFSV4 {{ {grace} RecoveryBackend = fs; RecoveryRoot = {folder}/recovery; }}
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


class NfsServer(RestartableServer):
    """A context manager around one running server.

    Args:
        grace_s: For so long, or twice that, after a restart it opens no file, so that clients of before may claim what
            they had (RFC 7530 §9.6.2); clients are forgotten after twice that. 0: it trusts that nobody had anything.

    Attributes:
        port: Where it listens, on 127.0.0.1 only.
        export: The exported folder, in the local file system.
    """

    def __init__(self, *, grace_s: int = 0) -> None:
        self._grace_s = grace_s

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
        self._ports = KeptPorts(1)
        (self.port,) = self._ports.numbers
        for state in STATE_FOLDERS:
            Path(state).mkdir(parents=True, exist_ok=True)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the server and remove its folder. May be called twice."""
        if self._process is not None:
            self._process.end()
        self._process = None
        self._ports.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> None:
        configuration = self.folder / "ganesha.conf"
        grace = "Graceless = true;"
        if self._grace_s:  # it looks twice a lease, but every 10 s at least, whether its grace is over
            grace = f"Grace_Period = {self._grace_s}; Lease_Lifetime = {2 * self._grace_s};"
        text = CONFIGURATION.format(port=self.port, export=self.export, folder=self.folder, grace=grace)
        configuration.write_text(text)
        files = ["-f", str(configuration), "-L", str(self.folder / "log"), "-p", str(self.folder / "pid")]
        self._process = ServerProcess("nfs-ganesha", ["ganesha.nfsd", "-F", *files], self.folder)
        self._process.wait_for(self._listing, START_TIMEOUT_S)

    def _listing(self) -> list[ObjectInfo] | None:
        if not is_open(self.port):  # a quick look first: a client would wait longer
            return None
        store = NfsStore(self.url(), {})
        try:
            return list(store.find(store.root))
        except StorageError:
            return None
        finally:
            store.close()

    # --- use ----------------------------------------------------------------------------------------------------

    def url(self, name: str = "", **options: Any) -> str:
        """Return the URL of a file or folder of the export, with `options` in its query."""
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
