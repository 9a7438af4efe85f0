"""``framework="jax"``: JAX itself, on two devices of the CPU that it is told to have."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import streamer

DTYPES = [
    *(torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int8, torch.int16, torch.int32, torch.uint8),
    *(torch.uint16, torch.uint32, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
]
LARGE = 1 << 20


@pytest.fixture
def jax():
    """Imported here, and not by every process that collects this file."""
    import jax

    return jax


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)

    def made(dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.rand(3, 5, generator=generator) < 0.5
        return torch.randint(0, 100, (3, 5), generator=generator).to(dtype)

    by_dtype = {str(dtype).removeprefix("torch."): made(dtype) for dtype in DTYPES}
    return by_dtype | {"large": torch.rand(LARGE, generator=generator), "empty": torch.zeros(0, 4)}


@pytest.fixture(scope="module")
def file(tensors: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jax") / "model.safetensors"
    save_file(tensors, path)
    return path


def bits(array: object) -> bytes:
    return np.ascontiguousarray(np.asarray(array)).tobytes()


def test_arrays_have_dtype_shape_and_every_bit(jax, file, tensors):
    arrays = streamer.load(file, framework="jax")
    assert arrays.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert isinstance(arrays[name], jax.Array)
        assert arrays[name].shape == tuple(tensor.shape)
        assert bits(arrays[name]) == tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        assert name in (str(arrays[name].dtype), "large", "empty")


def test_a_large_array_is_not_copied(jax, file, monkeypatch):
    """Its memory is that which the engine filled, and stays after everything else is gone."""
    from streamer.core.tensors.numpy_framework import NumpyFramework

    addresses = {}
    make = NumpyFramework.tensors

    def noted(self, memories, entries):
        made = make(self, memories, entries)
        for entry, array in zip(entries, made, strict=True):
            addresses[entry.name] = array.__array_interface__["data"][0]
        return made

    monkeypatch.setattr(NumpyFramework, "tensors", noted)
    large = streamer.load(file, framework="jax", names=["large"])["large"]
    assert large.unsafe_buffer_pointer() == addresses["large"]
    assert float(large.sum()) > 0


def test_every_call_gives_arrays_of_jax(jax, file, tensors):
    with streamer.stream(file, framework="flax", names=["float32"]) as pairs:
        assert all(isinstance(array, jax.Array) for _, array in pairs)
    with streamer.open(file, framework="jax") as checkpoint:
        assert np.array_equal(np.asarray(checkpoint["large"][5:9]), tensors["large"][5:9].numpy())
        assert isinstance(checkpoint.get_tensor("float32"), jax.Array)


@pytest.mark.parametrize(("dtype", "smaller"), [("int64", "int32"), ("float64", "float32"), ("uint64", "uint32")])
def test_a_dtype_that_jax_would_narrow_is_refused(jax, dtype, smaller, tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.zeros(3, dtype=getattr(torch, dtype))}, path)
    with pytest.raises(streamer.UnsupportedDtypeError, match=rf"jax would make it {smaller}\. Call .*jax_enable_x64"):
        streamer.load(path, framework="jax")
    jax.config.update("jax_enable_x64", True)
    try:
        assert str(streamer.load(path, framework="jax")["x"].dtype) == dtype
    finally:
        jax.config.update("jax_enable_x64", False)


def test_values_of_four_bits(jax, tmp_path):
    header = json.dumps({"four": {"dtype": "F4", "shape": [2, 2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes([0xF2, 0x10]))
    four = streamer.load(tmp_path / "x.safetensors", framework="jax")["four"]
    assert str(four.dtype) == "float4_e2m1fn"
    assert np.asarray(four.astype("float32")).tolist() == [[1.0, -6.0], [0.0, 0.5]]


ON_TWO_DEVICES = """
import sys, jax, numpy as np, streamer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
first, second = jax.devices()
plain = streamer.load(sys.argv[1], framework="np", names=["large", "float32"])
half = NamedSharding(Mesh(np.array([first, second]), ("x",)), PartitionSpec("x"))
for device in ("cpu:1", second, half, {"large": half, "": "cpu:1"}):
    arrays = streamer.load(sys.argv[1], framework="jax", names=["large"], device=device)
    assert np.array_equal(np.asarray(arrays["large"]), plain["large"])
    where = {shard.device: shard.data.shape for shard in arrays["large"].addressable_shards}
    size = plain["large"].size
    is_half = device is half or isinstance(device, dict)
    assert where == ({first: (size // 2,), second: (size // 2,)} if is_half else {second: (size,)}), where
print("equal")
"""


def test_devices_and_shardings(file):
    command = [sys.executable, "-c", ON_TWO_DEVICES, str(file)]
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.stdout == "equal\n", ended.stderr


@pytest.mark.parametrize("device", ["cpu:7", "tpu", "cpu:x", 3, None])
def test_an_absent_device_is_refused(jax, file, device):
    with pytest.raises(streamer.UnknownDeviceError, match="Known here: cpu"):
        streamer.load(file, framework="jax", device=device)


def test_arrays_of_the_callers_own_and_casts_are_refused(jax, file):
    with pytest.raises(streamer.OptionError, match="cannot be filled"):
        streamer.load_into(file, {"large": jax.numpy.zeros(LARGE)}, framework="jax")
    with pytest.raises(streamer.OptionError, match="astype"):
        streamer.load(file, framework="jax", dtype="float16")


def test_without_jax_it_says_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(streamer.OptionError, match="pip install jax"):
        streamer.load(file, framework="jax")
