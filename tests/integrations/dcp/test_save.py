"""``dcp.save`` and ``dcp.async_save`` with `streamer.dcp.StorageWriter`: read back by ours and by torch's."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from servers.forwarding import Fault, ForwardingProxy
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._push.push import Target

# One process saves and loads.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:.*barrier")


def state(value: float = 1.0) -> dict[str, Any]:
    return {
        "weight": torch.full((300, 40), value),
        "half": torch.full((7,), value, dtype=torch.bfloat16),
        "scalar": torch.tensor(value),
        "empty": torch.empty(0, 3),
        "step": 7,
        "nested": {"bias": torch.arange(10) * int(value)},
    }


def empty_like(saved: dict[str, Any]) -> dict[str, Any]:
    blank: dict[str, Any] = {}
    for name, value in saved.items():
        is_tensor = isinstance(value, torch.Tensor)
        blank[name] = torch.zeros_like(value) if is_tensor else empty_like(value) if isinstance(value, dict) else 0
    return blank


def check_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        elif isinstance(value, dict):
            check_equal(value, other[name])
        else:
            assert value == other[name]


@pytest.fixture(params=["s3", "gs", "az", "memory", "file"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    fixtures = {"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}
    name = f"dcp-{tmp_path.name}"
    if request.param in fixtures:
        options = request.getfixturevalue(fixtures[request.param]).storage_options()
        return Target(f"{request.param}://private/{name}", options)
    return Target(f"memory://{name}" if request.param == "memory" else str(tmp_path / name))


def writer(target: Target, **how: Any) -> streamer.dcp.StorageWriter:
    return streamer.dcp.StorageWriter(target.uri, storage_options=target.storage_options, **how)


def save(target: Target, saved: dict[str, Any], **how: Any) -> None:
    dcp.save(saved, storage_writer=writer(target, **how), no_dist=True)


def check_saved(target: Target, saved: dict[str, Any]) -> None:
    loaded = empty_like(saved)
    reader = streamer.dcp.StorageReader(target.uri, storage_options=target.storage_options)
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    check_equal(loaded, saved)


def test_what_is_saved_is_loaded(target: Target) -> None:
    save(target, state())
    check_saved(target, state())


def test_torch_loads_from_a_disk_what_is_saved(tmp_path: Path) -> None:
    save(Target(str(tmp_path / "saved")), state())
    loaded = empty_like(state())
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(tmp_path / "saved"), no_dist=True)
    check_equal(loaded, state())


def test_an_asynchronous_save_is_loaded(s3_server: SeaweedServer, tmp_path: Path) -> None:
    target = Target(f"s3://private/async-{tmp_path.name}", s3_server.storage_options())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            dcp.async_save(state(), storage_writer=writer(target)).result()
        finally:
            torch.distributed.destroy_process_group()
    check_saved(target, state())


def test_a_checkpoint_is_replaced_only_with_overwrite(s3_server: SeaweedServer, tmp_path: Path) -> None:
    target = Target(f"s3://private/again-{tmp_path.name}", s3_server.storage_options())
    save(target, state(1.0))
    with pytest.raises(dcp.CheckpointException, match=r"there is a checkpoint already.*overwrite=True"):
        save(target, state(2.0))
    check_saved(target, state(1.0))
    save(target, state(2.0), overwrite=True)
    check_saved(target, state(2.0))


@pytest.mark.usefixtures("short_pauses")
def test_a_save_that_fails_is_no_checkpoint(s3_server: SeaweedServer, tmp_path: Path) -> None:
    def refusing(method: str, path: str) -> Fault:
        return "refuse" if method == "PUT" and path.endswith("distcp") else None

    uri, options = f"s3://private/failed-{tmp_path.name}", s3_server.storage_options()
    with ForwardingProxy(s3_server.port, refusing) as proxy:
        through = {**options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        with pytest.raises(dcp.CheckpointException):
            save(Target(uri, through), state(), options=streamer.Options(block_deadline_s=0.5))
    with pytest.raises(dcp.CheckpointException):
        check_saved(Target(uri, options), state())


def test_secrets_of_the_url_are_not_in_the_metadata() -> None:
    made = streamer.dcp.StorageWriter("s3://bucket/model?X-Amz-Signature=secretsecret")
    assert not re.search("secretsecret", f"{made.checkpoint_id!r} {made.storage_meta()!r}")


def test_an_existing_checkpoint_is_torch_s_own_kind_of_error_too_regression(tmp_path: Path) -> None:
    save(Target(str(tmp_path / "saved")), state())
    again = streamer.dcp.StorageWriter(tmp_path / "saved")
    again.set_up_storage_writer(is_coordinator=True)
    for kind in (RuntimeError, streamer.UsageError):
        with pytest.raises(kind, match="there is a checkpoint already"):
            again.prepare_local_plan(dcp.SavePlan([]))


def test_bytes_in_memory_and_the_id_of_a_load_are_as_in_torch_regression(tmp_path: Path) -> None:
    content = io.BytesIO()
    torch.save({"step": torch.tensor(3), "losses": [1.0]}, content)
    save(Target(str(tmp_path / "saved")), {"weight": torch.ones(3), "train_state": content})
    loaded: dict[str, Any] = {"weight": torch.zeros(3), "train_state": io.BytesIO()}
    reader = streamer.dcp.StorageReader(tmp_path / "saved")
    before = reader.load_id
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    loaded["train_state"].seek(0)
    assert torch.load(loaded["train_state"])["step"] == 3
    assert loaded["weight"].equal(torch.ones(3))
    assert reader.load_id
    reader.reset()
    assert reader.load_id != before


def test_unlisted_files_of_a_web_server_are_requested_by_name_regression(
    http_server: NginxServer, tmp_path: Path
) -> None:
    """nginx lists no file whose name begins with a dot, so that the saved checkpoint had no metadata."""
    url = f"http://127.0.0.1:{http_server.http_port}/dav/saved/{tmp_path.name}"
    dcp.save(state(3.0), storage_writer=streamer.dcp.StorageWriter(url))
    loaded = empty_like(state())
    dcp.load(loaded, storage_reader=streamer.dcp.StorageReader(url))
    check_equal(loaded, state(3.0))
    assert torch.equal(streamer.load(url)["weight"], state(3.0)["weight"])
