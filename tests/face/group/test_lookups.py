"""One rank of a group looks a checkpoint up and reads its headers; the others are reported what it found."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from group_ranks import ranks_tell, values
from safetensors.torch import save, save_file
from servers.one_file import one_file
from servers.scripted_http import Answer, Request
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from streamer.core.findings import Findings

pytestmark = pytest.mark.slow
SOON_S = 15.0  # a second on an idle machine; the tests share theirs
SHARDS = 6


class Requests:
    """Counts requests by method and kind, with `http_requests` of the proxy."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def __call__(self, sent: bytes) -> tuple[int, bytes]:
        *heads, _ = sent.split(b"\r\n\r\n")
        for head in heads:
            line = head.split(b"\r\n", 1)[0].decode()
            kind = "listing" if "list-type" in line else "data" if "X-Amz-Signature" in line else "other"
            self.counted[f"{line.partition(' ')[0]} {kind}"] += 1
        return http_requests(sent)


def sharded(folder: Path) -> None:
    """Write shards of one small tensor each, an index, and a manifest."""
    weight_map = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        save_file({f"layers.{number}": torch.full((700, 1000), float(number))}, folder / file)
        weight_map[f"layers.{number}"] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    streamer.write_manifest(folder)


@pytest.mark.server
def test_four_ranks_look_a_checkpoint_up_as_one_rank_does(s3_server: SeaweedServer, tmp_path: Path) -> None:
    sharded(tmp_path)
    url = s3_server.upload_folder(tmp_path, "private", "groups/lookups")
    for verify in ("off", "manifest"):
        counted = []
        for ranks in (1, 4):
            requests = Requests()
            with TcpProxy(s3_server.port, requests) as proxy:
                options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
                # Each rank names one tensor, so that the data of each is one request.
                names = {"of": {str(rank): {"names": [f"layers.{rank}"]} for rank in range(ranks)}}
                how = {"uri": url, "storage_options": options, "verify": verify, **names}
                (reported,) = ranks_tell(ranks, ("load", how))
                assert values(reported) == [[f"layers.{rank}"] for rank in range(ranks)]
            counted.append(requests.counted)
        alone, together = counted
        assert alone["GET listing"] == together["GET listing"] == 1
        extra = together - alone
        assert extra.keys() <= {"GET data"}, (alone, together)
        assert extra["GET data"] <= 4 * 3  # of the tensors themselves, of 2.8 MB each
        assert sum(alone.values()) >= SHARDS + 2


def test_headers_are_reported_without_the_bytes_behind_them(tmp_path: Path) -> None:
    beginning = (10).to_bytes(8, "little") + b"0123456789" + bytes(range(256))
    findings = Findings()
    findings.note_ranges([("headers", "s", "u", 0, 274)], [memoryview(beginning)[:18]], ["v1"])
    findings.note(("info", "s", "p"), [["p", "u", 274, "v1"]])
    reported = Findings(findings.packed())
    assert reported.recall(("info", "s", "p")) == [["p", "u", 274, "v1"]]
    assert reported.recall(("info", "another", "p")) is None
    assert reported.recall_ranges([("headers", "s", "u", 0, 274)]) is None  # a part of what is asked for
    cut = reported.recall_ranges([("headers", "s", "u", 0, 274)], are_cut=True)
    assert cut is not None
    assert (bytes(cut[0][0]), cut[1]) == (beginning[:18], ["v1"])
    assert reported.recall_ranges([("parts", "s", "u", 0, 4)]) is None
    reported.end()
    assert reported.recall(("info", "s", "p")) is None


def test_an_error_of_the_rank_that_looks_up_reaches_all(tmp_path: Path) -> None:
    def change(request: Request, answer: Answer) -> None:
        if "range" in request.headers:
            answer.become(403)

    with one_file(change, save({"a": torch.zeros(1000)})) as server:
        uri = server.url.replace("/object", "/a.safetensors")
        (reported,) = ranks_tell(4, ("load", {"uri": uri}))
        requests = len(server.requests)
    assert reported[0]["error"] == "AccessDeniedError", reported[0]
    for each in reported[1:]:
        assert (each["error"], each["rank"]) == ("GroupError", 0), each
        assert "rank 0 of the group (4 ranks) failed: AccessDeniedError: http://127.0.0.1" in each["text"]
        assert each["seconds"] - reported[0]["seconds"] < SOON_S
    assert requests <= 2


def test_ranks_read_with_signatures_of_their_own(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def change(request: Request, answer: Answer) -> None:
        seen.append((request.path.rpartition("=")[2], request.headers.get("range", "")))

    data = save({f"layers.{number}": torch.full((300_000,), float(number)) for number in range(4)})
    with one_file(change, data) as server:
        uri = server.url.replace("/object", "/a.safetensors")
        own = {
            str(rank): {"uri": f"{uri}?X-Amz-Date=1&X-Amz-Signature={rank}", "names": [f"layers.{rank}"]}
            for rank in range(4)
        }
        (reported,) = ranks_tell(4, ("load", {"uri": uri, "of": own}))
        assert values(reported) == [[f"layers.{rank}"] for rank in range(4)]
    of_rank: dict[str, list[str]] = {}
    for rank, asked in seen:
        of_rank.setdefault(rank, []).append(asked)
    assert of_rank.keys() == {"0", "1", "2", "3"}
    read_headers = {rank for rank, asked in of_rank.items() for each in asked if each[:8] == "bytes=0-" != each[:-1]}
    assert read_headers == {"0"}  # the other requests for the first byte look up the place of the object


def test_ranks_that_name_other_objects_are_refused_though_sizes_and_versions_are_equal_regression() -> None:
    names = {"a": "a", "b": "a", "c": "c"}  # of the tensor in each file
    files = {file: save({name: torch.full((1000,), float(ord(file)))}) for file, name in names.items()}

    def change(request: Request, answer: Answer) -> None:
        name = "b" if "x-file" in request.headers else request.path.partition("file=")[2] or "a"
        first, last = request.headers.get("range", "bytes=0-").removeprefix("bytes=").split("-")
        answer.body = files[name][int(first) : int(last) + 1 if last else None]

    with one_file(change, files["a"]) as server:
        uri = server.url.replace("/object", "/a.safetensors")
        cases = [
            {"uri": f"{uri}?file=a", "of": {"1": {"uri": f"{uri}?file=b"}}},
            {"uri": uri, "of": {"1": {"storage_options": {"headers": {"X-File": "b"}}}}},
            {"uri": uri, "of": {"1": {"uri": uri.replace("://", "://user:password@")}}},
            {"uri": [f"{uri}?file=a", f"{uri}?file=c"]},
        ]
        *refused, reported = ranks_tell(2, *[("load", case) for case in cases])
    for ranks in refused:
        assert [each["error"] for each in ranks] == ["UsageError"] * 2, ranks
    assert values(reported) == [["a", "c"]] * 2
