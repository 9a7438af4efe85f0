"""What a load through each fault ends with: bit-equal where the fault passes, the right class where it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from make_checkpoint import make_checkpoint

import streamer
from faults.catalogue import FAULTS, Fault
from faults.server import Asked, FaultServer, Script

BLOCK_BYTES = 256 << 10
SHORT = streamer.Options(
    block_bytes=BLOCK_BYTES, max_attempts=2, first_byte_timeout_s=0.5, stall_timeout_s=0.5, block_deadline_s=1.5
)
PASSING = streamer.Options(block_bytes=BLOCK_BYTES, first_byte_timeout_s=1, stall_timeout_s=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``bucket`` with a small sharded checkpoint in ``model``."""
    bucket = tmp_path_factory.mktemp("faults") / "bucket"
    make_checkpoint(bucket / "model", total_bytes=3 << 20, shards=2)
    return bucket / "model"


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, torch.Tensor]:
    return streamer.load(model)


def load(model: Path, script: Script, options: streamer.Options) -> dict[str, torch.Tensor]:
    with FaultServer(model.parent, script) as server:
        return streamer.load(
            server.url("model"), storage_options=server.storage_options(), options=options, progress=False
        )


AUDIBLE = [each for each in FAULTS.values() if not each.is_silent]  # the others have test_flipped_byte.py


@pytest.mark.parametrize("fault", [each for each in AUDIBLE if not each.is_lasting], ids=lambda each: each.name)
def test_a_fault_that_passes_costs_no_byte(fault: Fault, model: Path, expected: dict[str, torch.Tensor]) -> None:
    loaded = load(model, lambda asked: fault if asked.number in (0, 5) else None, PASSING)  # a header, a block
    assert list(loaded) == list(expected)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


@pytest.mark.parametrize("fault", [each for each in AUDIBLE if each.ends], ids=lambda each: each.name)
def test_a_fault_that_stays_ends_with_its_class(fault: Fault, model: Path) -> None:
    with pytest.raises(streamer.StorageError) as caught:
        load(model, lambda asked: fault if asked.number >= 3 else None, SHORT)
    assert type(caught.value).__name__ == fault.ends
    assert caught.value.uri is not None
    assert caught.value.uri.startswith("s3://bucket/model/")
    begin, end = caught.value.byte_range or (0, 0)
    assert re.search(rf"bytes {begin}-{end - 1} of \d+[,)]", str(caught.value))
    assert caught.value.hint
    assert str(caught.value).endswith(caught.value.hint)
    assert caught.value.attempts == 1 or f"{caught.value.attempts} attempts in " in str(caught.value)


@pytest.mark.parametrize("damage", [b"[[", b"{}", b"\xff\xff"], ids=["no object", "a rest", "no text"])
def test_no_weights_are_asked_for_where_the_header_of_one_shard_is_damaged(damage: bytes, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "bucket/model", total_bytes=3 << 20, shards=3)
    last = max((tmp_path / "bucket/model").glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:8] + damage + last.read_bytes()[8 + len(damage) :])
    begins: list[int] = []

    def noted(asked: Asked) -> None:
        begins.append(asked.begin)

    with pytest.raises(streamer.HeaderError, match=re.escape(last.name)):
        load(tmp_path / "bucket/model", noted, PASSING)
    assert begins == [0] * 4  # the index, and three headers


def test_every_fault_has_a_test() -> None:
    assert all(not fault.is_lasting or fault.ends for fault in AUDIBLE)
    assert [fault.name for fault in FAULTS.values() if fault.is_silent] == ["flipped_byte"]


@pytest.mark.parametrize("name", ["cut_before_last_chunk", "no_last_chunk"])
def test_a_range_is_complete_without_the_chunk_that_ends_it_regression(
    name: str, model: Path, expected: dict[str, torch.Tensor]
) -> None:
    """The rest was asked for: no byte, or what lies behind the end of the object (416)."""
    asked_for: list[tuple[str, int, int]] = []

    def script(asked: Asked) -> Fault | None:
        asked_for.append((asked.path, asked.begin, asked.end))
        return FAULTS[name] if asked.number >= 3 else None

    loaded = load(model, script, PASSING)
    assert all(torch.equal(loaded[key], expected[key]) for key in expected)
    assert len(asked_for) == len(set(asked_for))
    assert all(begin < end for _, begin, end in asked_for)
