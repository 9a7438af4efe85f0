"""Memory that the engine filled, as DLPack capsules: one owner at any time, and freed with it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
import warm_python
from torch.utils.dlpack import from_dlpack

from streamer import _native
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import FileSource

SIZE = 64 << 20  # it gets a mapping of its own, which is unmapped when it is freed
FLOAT32 = (2, 32)


def memory_in(folder: Path) -> _native.Memory:
    path = folder / "data"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    source = SourceObject(str(path), FileSource(str(path)), SIZE)
    session = ReadSession([source], plan_reads([Item(0, 0, SIZE)], 0), resolve(None))
    (item,) = session.next_items()
    taken = session.take(item)
    session.close()
    return taken


@pytest.fixture
def memory(tmp_path):
    return memory_in(tmp_path)


def is_mapped(address):
    areas = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in areas)


def capsule_of(memory, shape, kind=FLOAT32):
    (capsule,) = _native.to_dlpack([memory], [shape], [kind])
    return capsule


@pytest.mark.parametrize("case", ["frees_on_any_thread", "frees_what_nobody_takes"])
def test_memory_is_freed_with_its_owner(case, tmp_path):
    """In a process of its own: while a session of another test is open, freed memory is kept for it."""
    warm_python.run(__file__, case, str(tmp_path)).check_returncode()


def frees_on_any_thread(memory):
    address = memory.address
    tensors = [from_dlpack(capsule_of(memory, (2, SIZE // 8)))]
    assert len(memory) == 0  # it was taken over
    assert (tensors[0].shape, tensors[0].data_ptr()) == ((2, SIZE // 8), address)
    assert bytes(tensors[0].view(torch.uint8).numpy().ravel()[:512]) == bytes(range(256)) * 2
    assert is_mapped(address)
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert not is_mapped(address)


def frees_what_nobody_takes(memory):
    address = memory.address
    capsule = capsule_of(memory, (SIZE // 4,))
    assert is_mapped(address)
    del capsule
    assert not is_mapped(address)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((SIZE // 4 + 1,), FLOAT32),
        ((SIZE // 4 - 1,), FLOAT32),
        ((-1, -SIZE // 4), FLOAT32),
        ((0, SIZE), FLOAT32),
        ((2**62, 4, SIZE // 4), FLOAT32),
        ((), FLOAT32),
        ((SIZE,), (2, 0)),
        ((SIZE,), (2, 24)),
    ],
)
def test_a_shape_or_type_that_does_not_fit_is_refused_and_takes_nothing(memory, shape, kind):
    with pytest.raises(ValueError, match="does not hold"):
        capsule_of(memory, shape, kind)
    assert len(memory) == SIZE


def test_adopted_memory_is_not_delivered_twice(memory):
    tensor = from_dlpack(capsule_of(memory, (SIZE // 4,)))
    with pytest.raises(ValueError, match="does not hold"):
        capsule_of(memory, (SIZE // 4,))
    assert tensor.numel() == SIZE // 4


def test_without_a_memory_or_a_type_there_is_no_capsule(memory):
    assert _native.to_dlpack([None, memory], [(1,), (SIZE,)], [FLOAT32, None]) == [None, None]
    assert len(memory) == SIZE
    with pytest.raises(ValueError, match="needs one shape and one type"):
        _native.to_dlpack([memory], [], [FLOAT32])


if __name__ == "__main__":
    globals()[sys.argv[1]](memory_in(Path(sys.argv[2])))
