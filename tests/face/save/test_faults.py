"""Saves to S3 whose parts are damaged, and to servers of S3's kind that know no checksums: right, or told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from servers.forwarding import Fault, ForwardingProxy
from servers.seaweedfs import SeaweedServer

import streamer

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
        by_botocore = [path for _, path in proxy.requests if "partNumber" in path and "X-Amz-Signature" not in path]
        assert len(by_botocore) == 3
    check_saved(*place)


def test_a_server_that_knows_no_checksums_gets_signed_parts(
    place: tuple[str, dict[str, Any]], s3_server: SeaweedServer
) -> None:
    options = {**place[1], "config_kwargs": {"request_checksum_calculation": "when_required"}}
    for unknown, how in (("x-amz-checksum-algorithm", options), ("x-amz-sdk-checksum-algorithm", options)):
        uri = f"{place[0]}-{unknown}"
        with ForwardingProxy(s3_server.port, lambda method, path: None, unknown=unknown) as proxy:
            save(proxy.port, uri, how)
            assert not [path for _, path in proxy.requests if "X-Amz-Signature" in path and "partNumber" in path]
        check_saved(uri, place[1])
