"""Where the bytes of a tensor lie in what `torch.save` wrote: told from the rest, and never wrongly."""

from __future__ import annotations

import io
import os
import pickle
import zipfile

import pytest
import torch
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from streamer.core.format import torch_archive
from streamer.core.format.dtypes import TORCH_DTYPES
from streamer.core.format.torch_archive import Archives, SavedArchive, StoredTensor, begin_of_data, stored_tensor


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def reported(data, begin, size_bytes):
    return stored_tensor(SavedArchive(data[:begin], data[begin + size_bytes :], len(data)))


DTYPES = [name for name in TORCH_DTYPES if hasattr(torch, TORCH_DTYPES[name]) and not name.startswith(("F4", "F6"))]


@each_row("name", DTYPES)
def test_the_place_of_a_tensor_follows_from_the_bytes_around_it(name):
    for shape in ((), (1,), (0, 3), (5, 7), (70_000,), (2, 1, 3, 1, 2, 300, 2)):
        tensor = torch.randint(0, 2, shape, dtype=torch.uint8).to(getattr(torch, TORCH_DTYPES[name]))
        data = saved(tensor)
        begin = begin_of_data(data[:4096])
        found = reported(data, begin, tensor.nbytes)
        assert found == StoredTensor(name, shape, begin)
        assert begin % 64 == 0
        if tensor.numel():
            read = torch.frombuffer(bytearray(data[begin : begin + tensor.nbytes]), dtype=tensor.dtype).view(shape)
            assert torch.equal(read.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


OTHERS = {
    "transposed": torch.zeros(3, 4).t(),
    "a part": torch.zeros(8, 4)[2:4],
    "expanded": torch.zeros(1, 4).expand(3, 4),
    "a parameter": torch.nn.Parameter(torch.zeros(3, 4)),
    "a negative view": torch.complex(torch.zeros(3), torch.zeros(3)).conj(),
    "of a dtype that headers lack": torch.zeros(3, dtype=torch.complex128),
    "sparse": torch.zeros(3, 4).to_sparse(),
    "a list": [torch.zeros(3)],
    "a number": 3,
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", OTHERS)
def test_any_other_file_gives_no_tensor(name):
    data = saved(OTHERS[name])
    assert stored_tensor(SavedArchive(data, b"", len(data))) is None


def rewritten(data, change):
    """Write the archive again, its members changed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for info in old.infolist():
            name, content, kind = change(info.filename, old.read(info), zipfile.ZIP_STORED)
            if name is not None:
                new.writestr(name, content, kind)
    return file.getvalue()


class Runs:
    def __reduce__(self):
        return os.mkdir, ("/nowhere/at/all",)


CHANGES = {
    "of another machine": lambda name, data, kind: (name, b"big" if name.endswith("byteorder") else data, kind),
    "compressed": lambda name, data, kind: (name, data, zipfile.ZIP_DEFLATED),
    "without its bytes": lambda name, data, kind: (None if name.endswith("data/0") else name, data, kind),
    "with fewer bytes": lambda name, data, kind: (name, data[:-4] if name.endswith("data/0") else data, kind),
    "without a pickle": lambda name, data, kind: (None if name.endswith("data.pkl") else name, data, kind),
    "with a huge pickle": lambda name, data, kind: (
        name,
        data + bytes(1 << 17) if name.endswith("data.pkl") else data,
        kind,
    ),
    "with code": lambda name, data, kind: (name, pickle.dumps(Runs()) if name.endswith("data.pkl") else data, kind),
}


def test_a_rewritten_archive_is_understood():
    data = rewritten(saved(torch.zeros(3, 4)), lambda *member: member)
    assert stored_tensor(SavedArchive(data, b"", len(data))).shape == (3, 4)


@each_row("change", CHANGES)
def test_a_changed_archive_is_not(change):
    data = rewritten(saved(torch.zeros(3, 4)), CHANGES[change])
    assert stored_tensor(SavedArchive(data, b"", len(data))) is None


def test_a_wrong_place_is_noticed():
    tensor = torch.zeros(1000)
    data = saved(tensor)
    begin = begin_of_data(data)
    assert reported(data, begin - 64, tensor.nbytes) is None or reported(data, begin - 64, tensor.nbytes).begin == begin
    assert begin_of_data(data[: begin - 200]) is None
    assert begin_of_data(bytes(4096)) is None


SMALL = saved(torch.arange(4.0))
BEGIN = begin_of_data(SMALL)


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_changed_bytes_give_only_what_torch_loads(changes):
    data = bytearray(SMALL)
    for position, value in changes:
        data[position] = value
    found = reported(bytes(data), BEGIN, 16)
    if found is not None:
        try:
            loaded = torch.load(io.BytesIO(bytes(data)), weights_only=True)
        except (RuntimeError, ValueError):  # some member that says nothing of the tensor is damaged
            return
        assert found.shape == tuple(loaded.shape)
        there = data[found.begin : found.begin + loaded.nbytes]
        assert loaded.reshape(-1).view(torch.uint8).numpy().tobytes() == bytes(there)


def test_archives_that_differ_in_their_tensor_alone_are_parsed_once(monkeypatch):
    parsed = []
    monkeypatch.setattr(
        torch_archive, "stored_tensor", lambda archive: parsed.append(archive) or stored_tensor(archive)
    )
    monkeypatch.setattr(torch_archive, "_MOST_CACHED", 2)
    archives = Archives()

    def told_of(value):
        data = saved(value)
        begin = begin_of_data(data)
        return archives.stored_tensor(SavedArchive(data[:begin], data[begin + value.nbytes :], len(data)))

    for value in (1.0, 2.0, 3.0):
        assert told_of(torch.full((5, 7), value)).shape == (5, 7)
    assert len(parsed) == 1
    assert told_of(torch.ones(7, 5)).shape == (7, 5)  # as large as the other
    assert told_of(torch.ones(35)).shape == (35,)  # the others are forgotten
    assert told_of(torch.ones(5, 7)).shape == (5, 7)
    assert len(parsed) == 4
