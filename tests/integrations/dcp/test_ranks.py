"""Processes that share a model (FSDP2 over gloo) load what others have saved, and each reads its own part alone."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dcp_ranks
import pytest
import warm_python
from servers.tcp_proxy import TcpProxy, http_requests

pytestmark = [pytest.mark.server, pytest.mark.slow]

WEIGHT_BYTES = dcp_ranks.ROWS * dcp_ranks.COLUMNS * 4
WHOLE = 2 * WEIGHT_BYTES + dcp_ranks.ROWS * 4
AROUND = 20_000  # bytes of an item's archive, headers and metadata


def done(processes: int, steps: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ended = warm_python.run(dcp_ranks.__file__, str(processes), json.dumps(steps), env=environment, timeout=200)
    assert ended.returncode == 0, ended.stderr[-4000:]
    reported: list[list[dict[str, Any]]] = json.loads(ended.stdout.splitlines()[-1])
    return reported


@pytest.fixture(scope="module")
def by_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four")
    done(4, [{"do": "save", "folder": str(folder)}])
    return folder


@pytest.fixture(scope="module")
def of_two(by_four: Path, tmp_path_factory: pytest.TempPathFactory, s3_server: Any) -> dict[str, Any]:
    """What two processes tell that load what four have saved, and then save themselves."""
    url = s3_server.upload_folder(by_four, "private", "dcp/four")
    folder = tmp_path_factory.mktemp("two")
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(s3_server.port, http_requests)) for _ in range(2)]
        options = [{**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{each.port}"} for each in proxies]
        steps: list[dict[str, Any]] = [
            {"do": "load", "uri": f"{url}/dcp", "options": options},
            {"do": "load", "uri": str(by_four / "dcp"), "options": [None] * 2},
            {"do": "load", "uri": str(by_four / "hf"), "options": [None] * 2},
            {"do": "load", "uri": str(by_four / "dcp"), "options": [None] * 2, "placed": "columns"},
            {"do": "fail", "uri": str(by_four), "options": [None] * 2},
            {"do": "save", "folder": str(folder)},
        ]
        names = ["s3", "local", "hf", "columns", "fail", "save"]
        reported: dict[str, Any] = dict(zip(names, done(2, steps), strict=True))
        reported["passed"] = [each.passed_bytes for each in proxies]
    return {**reported, "folder": folder}


@pytest.fixture(scope="module")
def of_four(of_two: dict[str, Any], s3_server: Any) -> dict[str, Any]:
    """What four processes tell that load what two have saved."""
    url = s3_server.upload_folder(of_two["folder"], "private", "dcp/two")
    steps: list[dict[str, Any]] = [
        {"do": "load", "uri": f"{url}/dcp", "options": [s3_server.storage_options()] * 4},
        {"do": "load", "uri": f"{url}/hf", "options": [s3_server.storage_options()] * 4},
    ]
    return dict(zip(["dcp", "hf"], done(4, steps), strict=True))


@pytest.mark.parametrize("case", ["s3", "local", "hf", "columns"])
def test_two_processes_load_what_four_have_saved(of_two: Any, case: str) -> None:
    assert [each["wrong"] for each in of_two[case]] == [[]] * 2


@pytest.mark.parametrize("case", ["dcp", "hf"])
def test_four_processes_load_what_two_have_saved(of_four: Any, case: str) -> None:
    assert [each["wrong"] for each in of_four[case]] == [[]] * 4
    assert all(set(each["readers"]) == {"http"} for each in of_four[case])


def test_each_process_asks_the_server_for_its_part_alone(of_two: Any) -> None:
    for reported, passed_bytes in zip(of_two["s3"], of_two["passed"], strict=True):
        assert reported["bytes"] < passed_bytes < reported["bytes"] + 2 * AROUND
        assert reported["bytes"] < 0.51 * WHOLE


def test_only_the_rows_of_the_process_are_read_of_a_shared_item(of_four: Any) -> None:
    """Two have saved halves, and a quarter is half of one."""
    for reported in of_four["dcp"]:
        assert reported["bytes"] <= reported["bytes_read"] < reported["bytes"] + AROUND
        assert reported["bytes"] < 0.26 * WHOLE
    for reported in of_four["hf"]:
        assert reported["bytes_read"] == reported["bytes"]


def test_a_part_of_columns_reads_all_rows(of_two: Any) -> None:
    for reported in of_two["columns"]:
        assert 2 * WEIGHT_BYTES < reported["bytes_read"] < WHOLE + AROUND


def test_every_process_gets_the_error(of_two: Any) -> None:
    for reported in of_two["fail"]:
        assert reported["failed"] == [0, 1]
        assert "but dcp/, hf/. Name one of its folders" in reported["text"]
