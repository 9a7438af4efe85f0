"""Scales are read as what they are, whatever dtype the file gives to their bytes; else the read is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from each_row import each_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import streamer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

E8M0 = torch.float8_e8m0fnu
E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
POWERS = {"U8": torch.uint8, "F8_E8M0": E8M0}
NUMBERS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}
OTHERS = {"I8": torch.int8, "I32": torch.int32, "I64": torch.int64, "U16": torch.uint16, "BOOL": torch.bool}
DTYPES = POWERS | NUMBERS | OTHERS


def loaded(reader: Any, name: str, target: torch.Tensor) -> torch.Tensor:
    state = {name: target}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state[name]


def as_dtype(exponents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return scales in a dtype: the exponents for the two dtypes of one byte, else the powers or the exponents."""
    if dtype in (torch.uint8, E8M0):
        return exponents.view(dtype)
    powers = torch.ldexp(torch.ones(exponents.shape), exponents.int() - 127)
    return powers.to(dtype) if dtype.is_floating_point else exponents.to(dtype)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.sampled_from(sorted(DTYPES)), st.booleans(), st.integers(0, 1000), st.booleans())
def test_scales_of_every_dtype_give_the_weights_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, is_blocks: bool, seed: int, has_nan: bool
) -> None:
    folder, random = tmp_path_factory.mktemp("scales"), torch.Generator().manual_seed(seed)
    shape = (2, 3, 2) if is_blocks else (2, 2)
    exponents = torch.randint(120, 134, shape, dtype=torch.uint8, generator=random)
    if has_nan and name in POWERS:
        exponents.view(-1)[0] = 255
    factors = exponents.view(E8M0).float()
    scales = as_dtype(exponents, DTYPES[name])
    if is_blocks:
        stored = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=random)
        pairs = torch.stack([stored & 15, stored >> 4], -1).flatten(-2)
        names, want = ("e_blocks", "e_scales"), (E2M1[pairs.long()] * factors.unsqueeze(-1)).flatten(-2)
    else:
        stored = torch.randn(7, 6, generator=random).to(torch.float8_e4m3fn)
        spread = factors.repeat_interleave(4, 0)[:7].repeat_interleave(4, 1)[:, :6]
        names, want = ("l.weight", "l.weight_scale_inv"), stored.float() * spread
    save_file({names[0]: stored, names[1]: scales}, folder / "model.safetensors")
    reader = streamer.dcp.QuantizedHuggingFaceStorageReader(folder, target_dtype=torch.float32, block_size=4)
    if name in POWERS or (name in NUMBERS and not is_blocks):
        found = loaded(reader, names[0], torch.zeros(want.shape))
        assert torch.equal(found.nan_to_num(77), want.nan_to_num(77))
    else:
        with pytest.raises(dcp.api.CheckpointException, match=f"its scales {name}: no known form"):
            loaded(reader, names[0], torch.zeros(want.shape))


TARGETS = {
    (torch.uint8, E8M0): "bytes",
    (E8M0, torch.uint8): "bytes",
    (E8M0, torch.float32): "numbers",
    (torch.float8_e4m3fn, torch.bfloat16): "numbers",
    (torch.bfloat16, torch.float8_e4m3fn): "numbers",
    (torch.uint8, torch.int32): "numbers",
    (E8M0, torch.int32): "refused",
    (torch.float8_e4m3fn, torch.uint8): "refused",
    (torch.int8, torch.float8_e5m2): "refused",
}


@each_row(("stored", "target"), TARGETS)
def test_a_target_of_another_dtype_gets_the_same_values_the_same_bytes_or_nothing_regression(
    stored: torch.dtype, target: torch.dtype, tmp_path: Path
) -> None:
    tensor = torch.tensor([120, 1, 127, 64], dtype=torch.uint8).view(stored) if stored.itemsize == 1 else torch.ones(4)
    tensor = tensor.to(stored)
    save_file({"s": tensor}, tmp_path / "model.safetensors")
    reader, kind = streamer.dcp.HuggingFaceStorageReader(tmp_path), TARGETS[stored, target]
    before = torch.zeros(4, dtype=torch.uint8).view(target) if target.itemsize == 1 else torch.zeros(4, dtype=target)
    if kind == "refused":
        with pytest.raises(dcp.api.CheckpointException, match="a cast would give other values"):
            loaded(reader, "s", before)
        return
    found = loaded(reader, "s", before)
    want = tensor.view(target) if kind == "bytes" else tensor.to(target)
    assert torch.equal(found.contiguous().view(torch.uint8), want.view(torch.uint8))
