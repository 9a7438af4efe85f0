"""A real SFTP server (asyncssh) on loopback that serves one folder to one user."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType

import asyncssh

USER, PASSWORD = "loader", "sftp-password-of-the-tests"
START_TIMEOUT_S = 30


class SftpServer:
    """Context manager: ``with SftpServer(folder) as server: server.url("model")``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connections: list[asyncssh.SSHServerConnection] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sftp", daemon=True)

    def __enter__(self) -> SftpServer:
        self._thread.start()
        self._acceptor = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_TIMEOUT_S)
        self.port = self._acceptor.get_port()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()

    def url(self, path: str) -> str:
        """URL of a path in the folder, with user and password."""
        return f"sftp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{path}"

    async def _listen(self) -> asyncssh.SSHAcceptor:
        folder, connections = str(self._folder), self._connections

        class Server(asyncssh.SSHServer):
            def connection_made(self, connection: asyncssh.SSHServerConnection) -> None:
                connections.append(connection)

            def password_auth_supported(self) -> bool:
                return True

            def validate_password(self, username: str, password: str) -> bool:
                return (username, password) == (USER, PASSWORD)

        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Server,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=folder),
        )

    async def _close(self) -> None:
        self._acceptor.close()
        for connection in self._connections:  # fsspec's clients keep theirs open
            connection.abort()
            await connection.wait_closed()
        await self._acceptor.wait_closed()
