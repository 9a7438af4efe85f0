"""Memory that the caller brings is advised to have huge pages before it is filled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamer

MIB = 1 << 20


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages")
def test_a_tensor_that_was_just_made_is_filled_in_huge_pages(tmp_path: Path) -> None:
    stored = torch.arange(32 * MIB, dtype=torch.int32)
    save_file({"large": stored}, tmp_path / "model.safetensors")
    target = torch.empty(32 * MIB, dtype=torch.int32)
    begin, end = target.data_ptr(), target.data_ptr() + target.nbytes
    assert advised_bytes(begin, end) == 0
    streamer.load_into(tmp_path, {"large": target}, progress=False)
    assert advised_bytes(begin, end) > target.nbytes - 4 * MIB  # the ends lie in huge pages that are others' too
    assert torch.equal(target, stored)


def advised_bytes(begin: int, end: int) -> int:
    """Count what the kernel holds to be advised ("hg"), as /proc/self/smaps tells."""
    advised = 0
    first = last = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, last = (int(text, 16) for text in found.groups())
        elif line.startswith("VmFlags:") and " hg" in line:
            advised += max(0, min(last, end) - max(first, begin))
    return advised
