"""What several files of tests need of an Azure account."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from servers.azurite import AzuriteServer


@pytest.fixture
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide logins, options and certificates of the machine."""
    for name in os.environ:
        if name.startswith(("AZURE_", "FSSPEC_")) or name == "SSL_CERT_FILE":
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def tls_checkpoint(azure_tls_server: AzuriteServer, checkpoint: Path) -> str:
    """The URL of the checkpoint on the server with TLS."""
    return azure_tls_server.upload_folder(checkpoint, "private", "models/small")
