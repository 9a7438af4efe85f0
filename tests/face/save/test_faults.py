"""Saves in which something goes wrong: parts are damaged or lost, keys expire, answers stay away, or `kill -9`.

Right, or one error; what a reader finds is the older checkpoint, the new one, or none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.oauth2.credentials import Credentials
from servers.azurite import AzuriteServer
from servers.forwarding import Fault, ForwardingProxy
from servers.gcs_emulator import GcsServer
from servers.seaweedfs import SeaweedServer

import streamer
from streamer.backends.client import answer_times
from streamer.plugins import open_store

TENSORS = {"a": torch.arange(9 << 20, dtype=torch.int32)}  # three parts


def save(port: int, uri: str, options: dict[str, Any]) -> None:
    through = {**options, "endpoint_url": f"http://127.0.0.1:{port}"}
    streamer.save(TENSORS, uri, storage_options=through)


def check_saved(uri: str, options: dict[str, Any]) -> None:
    loaded = streamer.load(uri, storage_options=options, verify="manifest")
    assert torch.equal(loaded["a"], TENSORS["a"])


@pytest.fixture
def place(s3_server: SeaweedServer, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    return f"s3://private/faults-{tmp_path.name}", s3_server.storage_options()


class Damage:
    """Damages part 2 so many times."""

    def __init__(self, times: int) -> None:
        self._left = times

    def __call__(self, method: str, path: str) -> Fault:
        if method != "PUT" or "partNumber=2" not in path or not self._left:
            return None
        self._left -= 1
        return "damage"


def test_a_part_that_was_damaged_on_the_way_is_refused_and_sent_again(
    place: tuple[str, dict[str, Any]], s3_server: SeaweedServer
) -> None:
    with ForwardingProxy(s3_server.port, Damage(1)) as proxy:
        save(proxy.port, *place)
        assert len([path for _, path in proxy.requests if "partNumber=2" in path]) == 2
    check_saved(*place)


@pytest.mark.usefixtures("short_pauses")
def test_parts_that_are_always_damaged_are_an_error_and_leave_nothing(
    place: tuple[str, dict[str, Any]], s3_server: SeaweedServer
) -> None:
    with (
        ForwardingProxy(s3_server.port, Damage(10**6)) as proxy,
        pytest.raises(streamer.StorageError, match="not saved"),
    ):
        save(proxy.port, *place)
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(place[0], storage_options=place[1])


def test_a_server_that_confirms_no_checksum_gets_signed_parts(
    place: tuple[str, dict[str, Any]], s3_server: SeaweedServer
) -> None:
    with ForwardingProxy(s3_server.port, lambda method, path: None, dropped="x-amz-checksum-crc32c") as proxy:
        save(proxy.port, *place)
        assert len([path for path in proxy.signed if "partNumber" in path]) == 3
    check_saved(*place)


def test_a_server_that_knows_no_checksums_gets_signed_parts(
    place: tuple[str, dict[str, Any]], s3_server: SeaweedServer
) -> None:
    options = {**place[1], "config_kwargs": {"request_checksum_calculation": "when_required"}}
    with ForwardingProxy(s3_server.port, lambda method, path: None, unknown="x-amz-checksum-algorithm") as proxy:
        save(proxy.port, place[0], options)
        sent = [path for _, path in proxy.requests if "partNumber" in path]
        assert sent == [path for path in proxy.signed if "partNumber" in path]
    check_saved(*place)


# --- what the store answers to the requests of an upload ------------------------------------------------------------


class Once:
    """One fault at the first request of a method whose path contains something."""

    def __init__(self, method: str, part: str, fault: Fault) -> None:
        self._method, self._part, self._fault = method, part, fault
        self.is_over = False

    def __call__(self, method: str, path: str) -> Fault:
        if self.is_over or method != self._method or self._part not in path:
            return None
        self.is_over = True
        return self._fault


INTERNAL = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
PASSING: dict[str, tuple[str, str, Fault]] = {
    "500 on complete": ("POST", "uploadId=", (500, INTERNAL)),
    "complete has status 200 and an error in its body": ("POST", "uploadId=", (200, INTERNAL)),
    "complete is done, and its answer never comes": ("POST", "uploadId=", "stall"),
    "a part is there, and its answer never comes": ("PUT", "partNumber=2", "stall"),
}


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.usefixtures("short_pauses")
def test_a_store_that_fails_once_gets_the_request_again(
    fault: str, place: tuple[str, dict[str, Any]], s3_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_times, "SLOWEST_UPLOAD_BYTES_PER_S", 8 << 20)  # else a part may take a minute
    decide = Once(*PASSING[fault])
    with ForwardingProxy(s3_server.port, decide) as proxy:
        through = {**place[1], "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        options = streamer.Options(first_byte_timeout_s=2.0)
        streamer.save(TENSORS, place[0], storage_options=through, options=options)
    assert decide.is_over
    check_saved(*place)


QUOTA = b"<Error><Code>QuotaExceeded</Code><Message>Bucket quota exceeded</Message></Error>"
FULL = "The storage is full, or its quota is used up"
STAYING: dict[str, tuple[str, str, Fault, str]] = {
    "a part is lost": ("PUT", "partNumber=2", "swallow", "S3 has lost a part of the upload"),
    "the store is full": ("PUT", "partNumber=2", (507, QUOTA), FULL),
    "a quota is exceeded": ("POST", "uploadId=", (403, QUOTA), FULL),
}


@pytest.mark.parametrize("fault", STAYING)
def test_a_lasting_failure_is_one_error_and_leaves_nothing(
    fault: str, place: tuple[str, dict[str, Any]], s3_server: SeaweedServer
) -> None:
    *decision, message = STAYING[fault]
    with ForwardingProxy(s3_server.port, Once(*decision)) as proxy:  # type: ignore[arg-type]
        with pytest.raises(streamer.StorageError, match=f": not saved: {message}"):
            save(proxy.port, *place)
        assert [method for method, path in proxy.requests if "uploadId=" in path][-1] == "DELETE"
    assert names_at(*place) == []


def names_at(uri: str, options: dict[str, Any]) -> list[str]:
    with closing(open_store(uri, options)) as store:
        return [info.path.rpartition("/")[2] for info in store.find(store.root)]


# --- credentials that expire in the middle --------------------------------------------------------------------------


def expiring(act: Callable[[], None]) -> Callable[[int, int], None]:
    """Make a progress callable that acts once, behind the first part."""
    is_done = False

    def progress(done: int, total: int) -> None:
        nonlocal is_done
        if done and not is_done:
            is_done = True
            act()

    return progress


def test_keys_of_s3_that_end_early_are_looked_up_again(
    place: tuple[str, dict[str, Any]], s3_server: SeaweedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.json"

    def write(identity: Any) -> None:
        pair = {"AccessKeyId": identity.access_key, "SecretAccessKey": identity.secret_key}
        keys.write_text(json.dumps({"Version": 1, "Expiration": "2099-01-01T00:00:00Z", "SessionToken": "", **pair}))

    write(s3_server.identity)
    (tmp_path / "config").write_text(f"[profile rotated]\ncredential_process = cat {keys}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with ForwardingProxy(s3_server.port, lambda method, path: None) as proxy:

        def rotate() -> None:
            write(s3_server.successor)
            proxy.expired_key = s3_server.access_key

        through = {"profile": "rotated", "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        streamer.save(TENSORS, place[0], storage_options=through, progress=expiring(rotate))
        assert proxy.expired_key
    check_saved(*place)


def test_keys_of_s3_that_nothing_renews_are_one_error(
    place: tuple[str, dict[str, Any]], s3_server: SeaweedServer
) -> None:
    with ForwardingProxy(s3_server.port, lambda method, path: None) as proxy:

        def expire() -> None:
            proxy.expired_key = s3_server.access_key

        through = {**place[1], "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        with pytest.raises(streamer.CredentialsError, match=": not saved: The session token has expired") as raised:
            streamer.save(TENSORS, place[0], storage_options=through, progress=expiring(expire))
    assert "Could not be removed: 'model.safetensors'" in str(raised.value)
    assert names_at(*place) == []


def test_tokens_of_google_that_end_early_are_renewed(
    gcs_server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"gs://private/{tmp_path.name}"
    before = len(gcs_server.gate.requests)
    with monkeypatch.context() as patch:
        patch.setattr(gcs_server.gate, "issued_uses", 3)
        streamer.save(TENSORS, uri, storage_options=gcs_server.storage_options())
    assert len([seen for seen in gcs_server.gate.requests[before:] if seen.path == "/token"]) > 2
    check_saved(uri, gcs_server.storage_options())


def test_a_token_of_google_that_nothing_renews_is_one_error(gcs_server: GcsServer, tmp_path: Path) -> None:
    uri, options = f"gs://private/{tmp_path.name}", gcs_server.storage_options()
    used_up = {**options, "token": Credentials(gcs_server.gate.issue("owner", uses=6))}  # type: ignore[no-untyped-call]
    with pytest.raises(streamer.CredentialsError, match=": not saved: "):
        streamer.save(TENSORS, uri, storage_options=used_up)
    assert names_at(uri, options) == []


def test_credentials_of_azure_that_nothing_renews_are_one_error(azure_server: AzuriteServer, tmp_path: Path) -> None:
    uri, authority = f"az://private/{tmp_path.name}", azure_server.host.partition("/")[0]
    has_expired = False

    def expire() -> None:
        nonlocal has_expired
        has_expired = True

    decide = lambda method, path: (401, b"") if has_expired else None  # noqa: E731
    with ForwardingProxy(int(authority.rpartition(":")[2]), decide) as proxy:
        options = azure_server.sas_options(azure_server.container_sas("private", permission="rcwdl"))
        options["connection_string"] = options["connection_string"].replace(authority, f"127.0.0.1:{proxy.port}")
        with pytest.raises(streamer.CredentialsError, match=": not saved: "):
            streamer.save(TENSORS, uri, storage_options=options, progress=expiring(expire))
    assert names_at(uri, azure_server.storage_options()) == []


# --- kill -9 --------------------------------------------------------------------------------------------------------

CHILD = """
import json, sys, numpy, streamer
from streamer._save import writing
writing.part_bytes_for = lambda size_bytes: 5 << 20
url, options = sys.argv[1], json.loads(sys.argv[2])
tensors = {name: numpy.full(1_600_000 if name == "b" else 300_000, 2.0, "f4") for name in "bcdef"}
streamer.save(tensors, url, storage_options=options, max_shard_bytes=1_300_000, overwrite=True)
"""
# Requests that change something: five uploads begin, have a part each, one has two, and end; a manifest that fits both;
# the index; the manifest; three older shards are removed.
# The uploads in the middle are like the first one.
KILLS = [
    pytest.param(number, number % 2 == 0, marks=[pytest.mark.nightly] if 4 <= number <= 11 else [])
    for number in range(1, 21)
]


class Killer:
    """Kills the child at its request of this number that changes something; the store may still do what is asked."""

    def __init__(self, number: int, *, is_done: bool) -> None:
        self._left, self._is_done = number, is_done
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, method: str, path: str) -> Fault:
        if method in ("GET", "HEAD"):
            return None
        self._left -= 1
        if self._left:
            return None
        while self.child is None:
            time.sleep(0.001)
        self.child.kill()
        return None if self._is_done else "refuse"


@pytest.mark.parametrize(("number", "is_done"), KILLS)
def test_a_process_that_is_killed_leaves_the_old_or_the_new_checkpoint(
    number: int, is_done: bool, place: tuple[str, dict[str, Any]], s3_server: SeaweedServer
) -> None:
    uri, options = place
    streamer.save(
        {name: np.full(1000, 1.0, "f4") for name in "abc"}, uri, max_shard_bytes=4000, storage_options=options
    )
    killer = Killer(number, is_done=is_done)
    with ForwardingProxy(s3_server.port, killer) as proxy:
        through = json.dumps({**options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"})
        killer.child = subprocess.Popen([sys.executable, "-c", CHILD, uri, through], stderr=subprocess.PIPE)
        _, reported = killer.child.communicate()
        assert killer.child.returncode == -9, reported.decode()
    loaded = streamer.load(uri, storage_options=options, framework="np")
    assert "".join(loaded) in ("abc", "bcdef")
    assert {float(array[0]) for array in loaded.values()} == {1.0 if "a" in loaded else 2.0}
    assert {array.size for array in loaded.values()} == ({1000} if "a" in loaded else {1_600_000, 300_000})
    report = streamer.save(TENSORS, uri, storage_options=options, overwrite=True)
    check_saved(uri, options)
    assert names_at(uri, options) == sorted(report.files)
