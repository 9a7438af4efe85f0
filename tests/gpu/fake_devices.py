"""Fake CUDA devices for Python tests: no GPU is here, and what is shown of one holds for the fake alone.

The engine runs against the fake driver, whose device memory is this machine's. torch of the CPU cannot make tensors on
CUDA devices, so a stand-in for `streamer.core.tensors.torch_copies.TorchCuda` makes them on the CPU and remembers which
device each is said to be on. All between these two is the real code.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import streamer
from streamer import _native
from streamer.core.tensors import torch_copies

FOLDER = Path(__file__).parent / "fake_driver"
DEVICES = 2


def compile_fake(name: str, folder: Path, *, soname: str = "") -> Path:
    """Compile a fake library."""
    source, library = FOLDER / f"{name}.cc", folder / f"lib{name}.so"
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", *([f"-Wl,-soname,{soname}"] if soname else [])]
    subprocess.run([cxx_compiler(), *options, source, "-o", library], check=True)
    return library


def cxx_compiler() -> str:
    """Find one; raises when there is none, as a test that is left out proves nothing."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "the fakes of NVIDIA's libraries need a C++ compiler"
    return compiler


@contextmanager
def attached_fake_gpu(library: Path) -> Iterator[FakeGpu]:
    """Put the fake driver and the stand-in for torch in their places; afterwards nothing of them is left."""
    gpu = FakeGpu(library)
    gpu.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_copies, "TorchCuda", FakeTorchCuda)
        patch.setattr(torch_copies, "probe", lambda _torch, _device: None)
        patch.setattr(FakeTorchCuda, "placed", {})
        patch.setattr(FakeTorchCuda, "recorded", [])
        patch.setattr(FakeTorchCuda, "gpu", gpu, raising=False)
        _native.cuda_use_library_for_tests(gpu.path)
        try:
            yield gpu
            assert gpu.pinned_in_use() == 0
        finally:
            streamer.release_pinned_memory()
            _native.cuda_use_library_for_tests("")
    assert gpu.pinned_bytes() == 0
    assert gpu.violations() == 0


@contextmanager
def attached_cufile(library: Path) -> Iterator[None]:
    """Put a libcufile in its place, and any files in those of what a system shows of the kernel module."""
    file, device, modules = "/proc/self/status", "/dev/null", "/proc/self/status"
    _native.cuda_use_cufile_for_tests(str(library), file, device, modules)
    try:
        yield
    finally:
        _native.cuda_use_cufile_for_tests()


class FakeTorchCuda(torch_copies.TorchCuda):
    """Stands in for torch built for CUDA: its tensors are on the CPU."""

    room_bytes = 1 << 40  # what the "device" has room for; a tensor beyond it is out of memory
    live_bytes = 0
    peak_live_bytes = 0
    placed: dict[int, int] = {}  # noqa: RUF012  address -> device; one for all frameworks of a test
    current_stream = 0
    gpu: FakeGpu  # whose driver notes what a capture forbids
    recorded: list[tuple[int, int]] = []  # noqa: RUF012  (address, stream) of each record_stream

    def __init__(self, torch_module: Any) -> None:
        super().__init__(torch_module)
        self._is_nvidia = True

    def device_of(self, tensor: Any) -> Any:
        device = self.placed.get(tensor.data_ptr())
        return tensor.device if device is None else torch.device("cuda", device)

    def index_of(self, device: Any) -> int:
        return device.index or 0

    def empty(self, shape: tuple[int, ...], dtype: Any, index: int) -> Any:
        self.gpu.allocate_by_torch()
        made = torch.full(shape, 7, dtype=torch.float32).to(dtype) if shape else torch.empty(shape, dtype=dtype)
        if made.nbytes > self.room_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot")
        FakeTorchCuda.place(made, index)
        return made

    def stream(self, index: int) -> int:
        return self.current_stream

    def hand_over(self, tensor: Any, index: int, stream: int) -> None:
        if self.current_stream != stream:
            self.recorded.append((tensor.data_ptr(), self.current_stream))

    @classmethod
    def place(cls, tensor: Any, device: int) -> Any:
        """Say that this tensor is on that device."""
        cls.placed[tensor.data_ptr()] = device
        return tensor


class FakeGpu:
    """The steering functions of the fake driver; see tests/gpu/fake_driver/fake_cuda.h."""

    def __init__(self, library: Path) -> None:
        self.path = str(library)
        self._library = ctypes.CDLL(self.path)
        self._library.fake_cuda_pinned_bytes.restype = ctypes.c_size_t
        for name in ("set_devices", "set_copy_delay_us", "set_link_mb_per_s", "hold_copies"):
            getattr(self._library, f"fake_cuda_{name}").argtypes = [ctypes.c_int]
        self._library.fake_cuda_set_free_bytes.argtypes = [ctypes.c_size_t]

    def reset(self) -> None:
        self._library.fake_cuda_reset()

    def set_devices(self, count: int) -> None:
        self._library.fake_cuda_set_devices(count)

    def set_copy_delay_us(self, microseconds: int) -> None:
        self._library.fake_cuda_set_copy_delay_us(microseconds)

    def set_link_mb_per_s(self, speed: int) -> None:
        """Copy at this speed without a processor, which moves nothing."""
        self._library.fake_cuda_set_link_mb_per_s(speed)

    def hold_copies(self, is_held: bool) -> None:
        """Let no copy begin that has not begun, until this is undone."""
        self._library.fake_cuda_hold_copies(is_held)

    def copies_under_way(self) -> int:
        return int(self._library.fake_cuda_copies_under_way())

    def set_free_bytes(self, count: int) -> None:
        self._library.fake_cuda_set_free_bytes(count)

    def fail(self, function: str, code: int, after: int = 0) -> None:
        self._library.fake_cuda_fail(function.encode(), code, after)

    def lose_device(self, code: int, after: int) -> None:
        self._library.fake_cuda_lose_device(code, after)

    def place(self, tensor: Any, device: int) -> Any:
        """Say, to the driver and to torch's stand-in, that this tensor is on that device."""
        self._library.fake_cuda_place(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), device)
        return FakeTorchCuda.place(tensor, device)

    def place_everything(self, device: int) -> None:
        """Say to the driver that all memory is that device's."""
        self._library.fake_cuda_place(ctypes.c_void_p(1), ctypes.c_size_t((1 << 63) - 1), device)

    def calls(self, function: str) -> int:
        return int(self._library.fake_cuda_calls(function.encode()))

    def exchange_capture_mode(self, mode: int) -> int:
        """Return this thread a mode for captures (CUstreamCaptureMode), as its owner might; the one it had."""
        given = ctypes.c_int(mode)
        self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(given))
        return given.value

    def allocate_by_torch(self) -> None:
        """Do what `cudaMalloc` of torch does to a capture: it ends the capture unless this thread relaxed its mode."""
        self._library.fake_cuda_allocate_by_torch()

    def violations(self) -> int:
        return int(self._library.fake_cuda_violations())

    def pinned_bytes(self) -> int:
        return int(self._library.fake_cuda_pinned_bytes())

    def forget_pinned(self) -> None:
        """Of memory that was left to a device on purpose."""
        self._library.fake_cuda_forget_pinned()

    def pinned_in_use(self) -> int:
        """Bytes of slots that some load still holds."""
        stats = _native.cuda_pinned_stats()
        return stats["pinned_bytes"] - stats["free_bytes"]
