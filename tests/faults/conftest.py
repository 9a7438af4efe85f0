"""What tests of outages share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from comparison import tensors_of
from make_checkpoint import make_checkpoint

from faults.started_storages import TOTAL_BYTES, Storages


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``bucket/model`` with a checkpoint in two shards."""
    bucket = tmp_path_factory.mktemp("outages") / "bucket"
    make_checkpoint(bucket / "model", total_bytes=TOTAL_BYTES, shards=2)
    return bucket / "model"


@pytest.fixture(scope="package")
def expected(model: Path) -> dict[str, torch.Tensor]:
    return tensors_of(model)


@pytest.fixture(scope="package")
def storages(model: Path) -> Iterator[Storages]:
    with ExitStack() as stack:
        yield Storages(model, stack)
