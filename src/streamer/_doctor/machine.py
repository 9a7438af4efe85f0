"""What this machine allows: kernel, memory, processors, limits, devices, and the environment of clients."""

from __future__ import annotations

import ctypes
import errno
import importlib.metadata
import os
import platform
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from streamer._doctor.findings import Finding, State
from streamer.core.errors import OptionError
from streamer.core.options import machine
from streamer.core.options.options import GIB, KIB, MIB
from streamer.core.quoting import names_text, size_text
from streamer.core.secrets.environment import blank_variables, variable
from streamer.core.store.proxies import named_by, place_of

SYS, PROC = Path("/sys"), Path("/proc")
MOUNTS = Path("/proc/self/mountinfo")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (only looked at)
IO_URING_SETUP = 425  # the number of the system call, on every architecture
ENOUGH_SHARED_BYTES = GIB
ENOUGH_MEMORY_BYTES = 4 * GIB
ENOUGH_FILES = 1024
LIBRARIES = (
    *("torch", "safetensors", "transformers", "diffusers", "accelerate", "vllm", "sglang", "numpy", "click"),
    *("fsspec", "s3fs", "botocore", "gcsfs", "adlfs", "huggingface_hub", "aiohttp"),
)
CA_VARIABLES = ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_WHY_LOCKED = "GPUDirect and io_uring of older kernels lock memory"
_KNOWN = re.compile(r"(?:AWS|GOOGLE|AZURE|HF|SSL|STREAMER|CURL)_\w+|\w+_proxy", re.IGNORECASE)


def machine_findings() -> Iterator[Finding]:
    """Look at this machine; nothing waits for a device or a network."""
    yield Finding("kernel", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield _huge_pages()
    yield _io_uring()
    yield from _memory()
    yield _processors()
    yield from _limits()
    yield _shared_memory()
    yield _proxies()
    yield _certificates()
    yield from _blank_variables()
    yield Finding("libraries", "ok", ", ".join(f"{name} {number}" for name, number in libraries().items()))


def libraries() -> dict[str, str]:
    """Return the versions of host libraries and clients that are installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def gpu_findings() -> Iterator[Finding]:
    """Look for CUDA devices, and measure the copy to the first; starting a device may take seconds."""
    from streamer import _native  # noqa: PLC0415 (as needed)

    driver = _text(PROC / "driver/nvidia/version").partition("\n")[0]
    failure = _native.cuda_open(0)
    if failure is not None:
        has_device = bool(driver) or os.path.exists("/dev/nvidiactl")
        advice = "Compare the driver with the container's CUDA, and check that the device is passed in"
        what = failure.detail if has_device else "none; tensors go to memory"
        yield Finding("gpu", "broken" if has_device else "ok", what, advice=advice)
        return
    free = _native.cuda_free_bytes(0)
    yield Finding("gpu", "ok", f"{driver or 'driver of unknown version'}, {size_text(free or 0)} free on device 0")
    yield _pinned_copy()


def _pinned_copy() -> Finding:
    import torch  # noqa: PLC0415 (takes seconds, and only a machine with a device needs it)

    source = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda:0")
    target.copy_(source)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(4):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    speed = 4 * source.numel() / (time.perf_counter() - began) / 1e9
    why = "no load to this device is faster"
    return Finding("pinned copy", "ok", f"{speed:.1f} GB/s from pinned memory to device 0", why)


def _huge_pages() -> Finding:
    text = _text(SYS / "kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    word = chosen[1] if chosen else ""
    state: State = "ok" if word in ("always", "madvise") else "slow" if word else "unknown"
    advice = f"As root: echo madvise > {SYS}/kernel/mm/transparent_hugepage/enabled"
    return Finding("huge pages", state, word or "not known", "filling memory page by page takes processor time", advice)


def _io_uring() -> Finding:
    parameters = ctypes.create_string_buffer(120)
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.syscall(IO_URING_SETUP, 1, parameters)
    why, advice = "cold files are read with several reads in flight for each thread", "Allow io_uring in seccomp and in"
    if descriptor >= 0:
        os.close(descriptor)
        return Finding("io_uring", "ok", "allowed", why)
    name = errno.errorcode.get(ctypes.get_errno(), "refused")
    return Finding("io_uring", "slow", f"not allowed ({name})", why, f"{advice} /proc/sys/kernel/io_uring_disabled")


def _memory() -> Iterator[Finding]:
    limit, free = machine.memory_bytes(), machine.free_bytes()
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    of = "of the control group" if limit < physical else "of the machine"
    state: State = "ok" if free >= min(ENOUGH_MEMORY_BYTES, limit // 4) else "slow"
    found = f"{size_text(limit)} {of}, {size_text(free)} free"
    yield Finding("memory", state, found, "reads go ahead within a part of it", "Raise the limit, or free some")


def _processors() -> Finding:
    count = machine.processors()
    found = f"{count} of {os.cpu_count()} may be used"
    why = "a processor receives some GB/s, and decrypts about 1.2 GB/s of TLS"
    advice = "Raise the CPU quota of the container, or the affinity of the process"
    return Finding("processors", "ok" if count > 1 else "slow", found, why, advice)


def _limits() -> Iterator[Finding]:
    no_limit = resource.RLIM_INFINITY
    for name, which, least, text, why, advice in (
        ("open files", resource.RLIMIT_NOFILE, ENOUGH_FILES, str, "each connection and file takes one", "-n 65536"),
        ("memlock", resource.RLIMIT_MEMLOCK, 64 * KIB, size_text, _WHY_LOCKED, "-l unlimited"),
    ):
        limit = resource.getrlimit(which)[0]
        state: State = "ok" if limit == no_limit or limit >= least else "slow"
        found = "no limit" if limit == no_limit else f"{text(limit)} at most"
        yield Finding(name, state, found, why, f"ulimit {advice}")


def _shared_memory() -> Finding:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        advice = "Mount a tmpfs there"
        return Finding("shared memory", "slow", f"{error.strerror}", "processes of one machine meet there", advice)
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    state: State = "ok" if free >= ENOUGH_SHARED_BYTES else "slow"
    why = "NCCL, data loaders and serving engines share memory there"
    advice = "docker run --shm-size=16g; in Kubernetes an emptyDir with medium: Memory at /dev/shm"
    return Finding("shared memory", state, f"{SHARED_MEMORY}: {size_text(free)} of {size_text(size)} free", why, advice)


def _proxies() -> Finding:
    from streamer.backends.client.proxy import environment_proxy  # noqa: PLC0415 (as needed)

    why, used = "requests to storages pass through them", []
    for scheme in ("http", "https"):
        try:
            proxy = environment_proxy(f"{scheme}://storage.invalid")
        except OptionError as error:
            return Finding("proxies", "broken", f"for {scheme}://: {error.message}", why, error.hint or "")
        if proxy:
            used.append(f"{named_by(place_of(proxy))} names {place_of(proxy)} for {scheme}://")
    bypassed = variable("no_proxy") or variable("NO_PROXY")
    found = ", ".join(used) or "none"
    return Finding("proxies", "ok", f"{found}; not for {bypassed}" if bypassed and used else found, why)


def _certificates() -> Finding:
    from streamer.core.store.certificates import default_ca_file, trust_in  # noqa: PLC0415 (imports ssl)

    try:
        trust_in()
    except OptionError as error:
        return Finding("CA files", "broken", error.message, "", error.hint or "")
    if missing := [name for name in CA_VARIABLES if (path := variable(name)) and not os.path.exists(path)]:
        what, why = f"{names_text(missing)} names a file that is not there", "some clients read it, such as that of S3"
        return Finding("CA files", "unknown", what, why, "Mount the file, or unset the variable")
    path, why = default_ca_file(), "they decide whom TLS trusts"
    return Finding("CA files", "ok" if path else "unknown", path or "no bundle was found", why)


def _blank_variables() -> Iterator[Finding]:
    if blank := sorted(name for name in blank_variables(os.environ) if _KNOWN.fullmatch(name)):
        why = "other libraries may take an empty value for a setting"
        yield Finding("variables", "ok", f"set, but empty, which counts as unset: {names_text(blank)}", why)


_BY_URL = "Read the storage by its own URL (s3://, gs://, hf://) in place of the mount"
_MOUNTS = {  # the begin of a kind of file system: why it matters, and what to do
    "fuse": ("each read passes through a program", _BY_URL),
    "nfs": (
        "one connection of NFS is slower than the network",
        "Mount it with nconnect=8, or read nfs://server/export",
    ),
    "9p": ("each read leaves the virtual machine", _BY_URL),
    "virtiofs": ("each read leaves the virtual machine", _BY_URL),
    "overlay": ("files of an image are read from its layers", ""),
}


def mount_finding(path: str) -> Finding:
    """Look at the mount that holds a path."""
    kind, options, point = mount_of(os.path.realpath(path), MOUNTS.read_text())
    why, advice = next((texts for begin, texts in _MOUNTS.items() if kind.startswith(begin)), ("", ""))
    state: State = "slow" if advice and "nconnect=" not in options else "ok"
    return Finding("mount", state, f"{kind} at {point} ({options})", why, advice)


def mount_of(path: str, text: str) -> tuple[str, str, str]:
    r"""Return the file system, the options and the place of the mount that holds a path, from mountinfo.

    Example:
        >>> mount_of("/mnt/a/b", "25 1 0:3 / / rw - ext4 /dev/a rw\n26 25 0:4 / /mnt rw - fuse.x y rw,ro")
        ('fuse.x', 'rw,ro', '/mnt')
    """
    best = ("unknown", "", "")
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        kind, _, options = [*after.split(), "", "", ""][:3]
        is_below = point in ("/", path) or path.startswith(f"{point}/")
        if is_below and len(point) >= len(best[2]):
            best = (kind, options, point)
    return best


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
