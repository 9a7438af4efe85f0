"""A save that was killed in the middle of a file goes on with the parts that the storage has: S3 and Azure."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from group_ranks import ranks_tell, values
from servers.azurite import AzuriteServer
from servers.forwarding import Fault, ForwardingProxy
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._save import writing

PART_BYTES = 5 << 20
TENSOR = np.arange(6 * PART_BYTES // 4, dtype="i4")  # seven parts, with the header
CHILD = """
import json, sys, numpy, streamer
from streamer._save import writing
writing.part_bytes_for = lambda size_bytes: 5 << 20
tensor = numpy.arange(6 * (5 << 20) // 4, dtype="i4")
streamer.save({"a": tensor}, sys.argv[1], storage_options=json.loads(sys.argv[2]), resume=True)
"""


class Place:
    """A folder, and the way to it through a proxy."""

    def __init__(self, uri: str, options: dict[str, Any], port: int, part: str) -> None:
        self.uri, self.options, self.port, self.part = uri, options, port, part

    def through(self, port: int) -> dict[str, Any]:
        """Return the options that go through a proxy."""
        return json.loads(json.dumps(self.options).replace(f"127.0.0.1:{self.port}", f"127.0.0.1:{port}"))  # type: ignore[no-any-return]


@pytest.fixture(params=["s3", "az"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(writing, "part_bytes_for", lambda size_bytes: PART_BYTES)
    name = f"private/parts-{tmp_path.name}"
    if request.param == "s3":
        s3: SeaweedServer = request.getfixturevalue("s3_server")
        return Place(f"s3://{name}", s3.storage_options(), s3.port, "partNumber=")
    az: AzuriteServer = request.getfixturevalue("azure_server")
    return Place(f"az://{name}", az.storage_options(), int(az.host.partition("/")[0].rpartition(":")[2]), "comp=block&")


class KillAfter:
    """Kills a child when it has sent so many parts, and does no later one."""

    def __init__(self, part: str, count: int) -> None:
        self._part, self._left = part, count
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, method: str, path: str) -> Fault:
        if method != "PUT" or self._part not in path:
            return None
        self._left -= 1
        if self._left >= 0:
            return None
        while self.child is None:
            time.sleep(0.001)
        self.child.kill()
        return "refuse"


def killed_after(place: Place, count: int) -> None:
    killer = KillAfter(place.part, count)
    with ForwardingProxy(place.port, killer) as proxy:
        through = json.dumps(place.through(proxy.port))
        killer.child = subprocess.Popen([sys.executable, "-c", CHILD, place.uri, through], stderr=subprocess.PIPE)
        _, reported = killer.child.communicate()
        assert killer.child.returncode == -9, reported.decode()
        proxy.settle()  # the parts it had sent are there


def saved(place: Place, tensor: Any, **how: Any) -> int:
    """Save, and return how many parts were sent."""
    with ForwardingProxy(place.port, lambda method, path: None) as proxy:
        streamer.save({"a": tensor}, place.uri, storage_options=place.through(proxy.port), **how)
        sent = [path for method, path in proxy.requests if method == "PUT" and place.part in path]
    loaded = streamer.load(place.uri, storage_options=place.options, framework="np", verify="manifest")
    assert np.array_equal(loaded["a"], tensor)
    return len(sent)


def test_parts_that_are_there_are_not_sent_again(place: Place) -> None:
    killed_after(place, 4)
    assert 3 <= saved(place, TENSOR, resume=True) <= 5  # of seven, and one of the manifest on Azure


def test_parts_that_ranks_have_sent_are_not_sent_again_by_other_ranks(place: Place, tmp_path: Path) -> None:
    how: dict[str, Any] = {"uri": place.uri, "sizes": {"a": 6 * PART_BYTES // 8}, "part_mib": 5}
    first = {**how, "flag": str(tmp_path / "flag"), "parts_sent": [2, 2], "storage_options": place.options}
    (killed,) = ranks_tell(2, ("ended", first))
    assert killed == [None, None]
    with ForwardingProxy(place.port, lambda method, path: None) as proxy:
        second = {**how, "flag": "", "parts_sent": [], "storage_options": place.through(proxy.port)}
        (reported,) = ranks_tell(3, ("ended", second))
        assert len(values(reported)) == 3
        sent = [path for method, path in proxy.requests if method == "PUT" and place.part in path]
    assert 3 <= len(sent) <= 4  # of seven, and one of the manifest on Azure
    loaded = streamer.load(place.uri, storage_options=place.options, verify="manifest")
    assert torch.equal(loaded["a"], torch.arange(6 * PART_BYTES // 8))


def test_parts_of_other_content_are_sent_again(place: Place) -> None:
    killed_after(place, 4)
    assert saved(place, TENSOR + 1, resume=True) >= 6  # the last parts of the two may be equal


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_an_upload_of_other_settings_is_not_continued_regression(place: Place) -> None:
    place.options["s3_additional_kwargs"] = {"Metadata": {"team": "red"}}
    killed_after(place, 4)
    killed_settings, place.options["s3_additional_kwargs"] = (
        place.options["s3_additional_kwargs"],
        {"Metadata": {"team": "blue"}},
    )
    assert saved(place, TENSOR, resume=True) >= 7
    place.uri, place.options["s3_additional_kwargs"] = f"{place.uri}-same", killed_settings
    killed_after(place, 4)
    assert 3 <= saved(place, TENSOR, resume=True) <= 5


def test_without_resume_all_parts_are_sent(place: Place) -> None:
    killed_after(place, 4)
    assert saved(place, TENSOR) >= 7


@pytest.mark.usefixtures("short_pauses")
def test_a_lost_answer_to_the_end_of_a_resumed_upload_does_no_harm(place: Place) -> None:
    if place.uri.startswith("az"):
        pytest.skip("there the mark of the blob is that of the program that goes on")
    killed_after(place, 4)
    left = 1

    def losing(method: str, path: str) -> Fault:
        nonlocal left
        if method != "POST" or "uploadId=" not in path or not left:
            return None
        left -= 1
        return "lose"

    with ForwardingProxy(place.port, losing) as proxy:
        streamer.save({"a": TENSOR}, place.uri, storage_options=place.through(proxy.port), resume=True)
    assert left == 0
    loaded = streamer.load(place.uri, storage_options=place.options, framework="np", verify="manifest")
    assert np.array_equal(loaded["a"], TENSOR)
