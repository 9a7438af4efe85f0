"""Puts a folder onto each storage, and gives what a user writes to read it from there: a URL and storage options."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.hub import HubServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer

__all__ = ["STORAGES", "UNLISTED", "uploaded", "uploaded_unlisted"]

STORAGES = ("file", "s3", "gs", "az", "http", "hf", "nfs", "memory")
UNLISTED = ("s3", "gs", "az", "http")


def uploaded(request: pytest.FixtureRequest, storage: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Upload a folder whose own name, and that of the folder it is in, no other test uses."""
    name = f"{folder.parent.name}/{folder.name}"
    if storage == "s3":
        s3: SeaweedServer = request.getfixturevalue("s3_server")
        return s3.upload_folder(folder, "private", name), s3.storage_options()
    if storage == "gs":
        gs: GcsServer = request.getfixturevalue("gcs_server")
        return gs.upload_folder(folder, "private", name), gs.storage_options()
    if storage == "az":
        az: AzuriteServer = request.getfixturevalue("azure_server")
        return az.upload_folder(folder, "private", name), az.storage_options()
    if storage == "hf":
        hub: HubServer = request.getfixturevalue("hub_server")
        hub.upload_folder(folder, name)
        return f"hf://{name}", {"endpoint": hub.url, "token": False}
    if storage == "nfs":
        return request.getfixturevalue("nfs_server").upload_folder(folder, name), {}
    if storage == "http":
        nginx: NginxServer = request.getfixturevalue("http_server")
        shutil.copytree(folder, nginx.root / name)
        return f"{nginx.http_url}/open/{name}", {}
    if storage == "memory":
        fsspec.filesystem("memory").put(f"{folder}/", f"/{name}/", recursive=True)
        return f"memory://{name}", {}
    return str(folder), {}


def uploaded_unlisted(request: pytest.FixtureRequest, storage: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Upload as `uploaded`; who uses the options may read every file, and list none."""
    name = f"{folder.parent.name}/{folder.name}"
    if storage == "s3":
        s3: SeaweedServer = request.getfixturevalue("s3_server")
        return s3.upload_folder(folder, "unlisted", name), s3.storage_options(s3.limited)
    if storage == "gs":
        gs: GcsServer = request.getfixturevalue("gcs_server")
        return gs.upload_folder(folder, "private", name), gs.storage_options("reader")
    if storage == "az":
        az: AzuriteServer = request.getfixturevalue("azure_server")
        return az.upload_folder(folder, "private", name), az.sas_options(az.container_sas("private", permission="r"))
    nginx: NginxServer = request.getfixturevalue("http_server")
    shutil.copytree(folder, nginx.root / name)
    return f"{nginx.http_url}/unlisted/{name}", {}
