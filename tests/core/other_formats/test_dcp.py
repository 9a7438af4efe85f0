"""Folders of torch.distributed.checkpoint: tensors are whole whoever saved which part, and hostile ones are refused."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from each_row import each_row
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import streamer
from streamer.core.errors import FormatError, TruncatedError
from streamer.core.other_formats.dcp import OBJECTS_KEY, Dcp
from streamer.plugins.contract import FormatContract, Sample

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


def saved(tensor: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return buffer.getvalue()


def checkpoint(tensors: dict[str, torch.Tensor], boxes: dict[str, Sequence[Box]], **other: Any) -> dict[str, bytes]:
    """Write the files of a checkpoint whose tensors are cut into boxes, as ranks would; each box to another file."""
    entries: dict[str, Any] = dict(other)
    items: dict[MetadataIndex, Any] = {}
    files: dict[str, bytes] = {}
    for name, tensor in tensors.items():
        chunks = []
        for number, (offsets, sizes) in enumerate(boxes.get(name) or [((0,) * tensor.dim(), tuple(tensor.shape))]):
            part = tensor[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))].clone()
            chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
            file, data = f"__{number}_0.distcp", saved(part)
            begin = len(files.get(file, b""))
            files[file] = files.get(file, b"") + data
            items[MetadataIndex(name, torch.Size(offsets))] = _StorageInfo(file, begin, len(data))
        entries[name] = TensorStorageMetadata(TensorProperties(tensor.dtype), tensor.size(), chunks)
    return {".metadata": pickle.dumps(Metadata(entries, storage_data=items)), **files}


def grid(shape: tuple[int, int], rows: int, columns: int) -> list[Box]:
    high, wide = shape[0] // rows, shape[1] // columns
    return [((r * high, c * wide), (high, wide)) for r in range(rows) for c in range(columns)]


def sharded() -> tuple[dict[str, torch.Tensor], dict[str, Sequence[Box]]]:
    random = torch.Generator().manual_seed(2)
    tensors = {
        "rows": torch.randn(10, 6, generator=random),
        "columns": torch.randn(4, 9, generator=random).half(),
        "grid": torch.randn(12, 8, generator=random),
        "deep": torch.randn(2, 6, 4, 5, generator=random),
        "vector": torch.arange(10),
        "one": torch.randn(1, 1, 8, generator=random),
        "whole": torch.randn(7, 5, generator=random).bfloat16(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
    }
    boxes: dict[str, Sequence[Box]] = {
        "rows": [((0, 0), (4, 6)), ((4, 0), (4, 6)), ((8, 0), (2, 6))],
        "columns": [((0, 0), (4, 3)), ((0, 3), (4, 6))],
        "grid": grid((12, 8), 3, 2),
        "deep": [((0, 0, 0, 0), (2, 3, 4, 5)), ((0, 3, 0, 0), (1, 3, 4, 5)), ((1, 3, 0, 0), (1, 3, 4, 5))],
        "vector": [((0,), (5,)), ((5,), (5,))],
        "one": [((0, 0, 0), (1, 1, 4)), ((0, 0, 4), (1, 1, 4))],
    }
    return tensors, boxes


class TestDcp(FormatContract):
    format = Dcp()

    def samples(self) -> Sequence[Sample]:
        tensors, boxes = sharded()
        expected = {name: each.contiguous().reshape(-1).view(torch.uint8).numpy() for name, each in tensors.items()}
        return [Sample(checkpoint(tensors, boxes), expected)]


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_chunks_of_many_ranks_are_whole_tensors(tmp_path: Path) -> None:
    tensors, boxes = sharded()
    loaded = streamer.load(written(tmp_path, checkpoint(tensors, boxes)))
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], each) for name, each in tensors.items())


def test_tensors_equal_those_of_dcp(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.BatchNorm1d(200))
    value = {"model": model.state_dict(), "transposed": torch.randn(300, 400).t(), "step": 3}
    dcp.save(value, checkpoint_id=tmp_path)
    expected: dict[str, Any] = {"transposed": torch.zeros(400, 300)}
    dcp.load(expected, checkpoint_id=tmp_path)
    loaded = streamer.load(tmp_path)
    assert torch.equal(loaded["transposed"], expected["transposed"])
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[f"model.{name}"], tensor)
    assert '"step"' in streamer.open(tmp_path).metadata()[OBJECTS_KEY]


def test_rows_of_a_sharded_tensor_are_read(tmp_path: Path) -> None:
    tensors, boxes = sharded()
    with streamer.open(written(tmp_path, checkpoint(tensors, boxes))) as opened:
        assert torch.equal(opened["grid"][3:9], tensors["grid"][3:9])
        assert torch.equal(opened["deep"][1, 2], tensors["deep"][1, 2])


def test_a_large_tensor_in_a_grid_is_read_with_small_blocks(tmp_path: Path) -> None:
    tensor = torch.arange(600 * 400, dtype=torch.int64).reshape(600, 400)
    files = checkpoint({"w": tensor}, {"w": grid((600, 400), 3, 4)})
    options = streamer.Options(block_bytes=64 << 10, memory_limit_bytes=1 << 20)
    assert torch.equal(streamer.load(written(tmp_path, files), options=options)["w"], tensor)


def test_one_file_of_it_asks_for_the_folder(tmp_path: Path) -> None:
    written(tmp_path, checkpoint({"w": torch.ones(3)}, {}))
    with pytest.raises(FormatError, match=r"one file of a checkpoint of DCP.*Name its folder"):
        streamer.load(tmp_path / "__0_0.distcp")
    assert streamer.load(tmp_path / ".metadata")["w"].equal(torch.ones(3))  # it is the index of the folder


HALVES: list[Box] = [((0,), (4,)), ((4,), (4,))]


def with_boxes(boxes: Sequence[Box]) -> dict[str, bytes]:
    """Write metadata that names other chunks than there are."""
    files = checkpoint({"w": torch.arange(8.0)}, {"w": HALVES})
    metadata = pickle.loads(files[".metadata"])
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in boxes]
    metadata.state_dict_metadata["w"].chunks[:] = chunks
    places = list(metadata.storage_data.values())
    metadata.storage_data.update({MetadataIndex("w", torch.Size(o)): places[0] for o, _ in boxes})
    return {**files, ".metadata": pickle.dumps(metadata)}


def with_place(path: str, offset: int, length: int) -> dict[str, bytes]:
    files = checkpoint({"w": torch.arange(8.0)}, {"w": HALVES})
    metadata = pickle.loads(files[".metadata"])
    first = next(iter(metadata.storage_data))
    metadata.storage_data[first] = _StorageInfo(path, offset, length)
    return {**files, ".metadata": pickle.dumps(metadata)}


class RunsCode:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit",)


def with_pickle(value: Any) -> dict[str, bytes]:
    files = checkpoint({"w": torch.arange(8.0)}, {})
    return {**files, ".metadata": value if isinstance(value, bytes) else pickle.dumps(value)}


HOSTILE: dict[str, Callable[[], dict[str, bytes]]] = {
    "code in the metadata": lambda: with_pickle(RunsCode()),
    "code behind the metadata's own name": lambda: with_pickle(
        b"\x80\x02ctorch.distributed.checkpoint.metadata\neval\n."
    ),
    "another value": lambda: with_pickle({"w": 1}),
    "no pickle": lambda: with_pickle(b"torch.distributed.checkpoint.metadata"),
    "chunks that overlap": lambda: with_boxes([((0,), (4,)), ((2,), (4,))]),
    "chunks with a gap": lambda: with_boxes([((0,), (4,)), ((5,), (3,))]),
    "a chunk twice": lambda: with_boxes([((0,), (4,)), ((0,), (4,))]),
    "a chunk outside of the tensor": lambda: with_boxes([((0,), (4,)), ((8,), (4,))]),
    "a chunk of other dimensions": lambda: with_boxes([((0, 0), (4, 1)), ((4,), (4,))]),
    "no chunks": lambda: with_boxes([]),
    "an item behind the file": lambda: with_place("__0_0.distcp", 1 << 40, 10),
    "an item of exabytes": lambda: with_place("__0_0.distcp", 0, 1 << 62),
    "an item that is shorter than its tensor": lambda: with_place("__0_0.distcp", 0, 10),
    "an item in the middle of another": lambda: with_place("__0_0.distcp", 64, 1000),
    "an item outside of the folder": lambda: with_place("../secret", 0, 10),
    "an item in an absent file": lambda: with_place("__9_0.distcp", 0, 10),
    "an item of another tensor": lambda: {
        **checkpoint({"w": torch.arange(8.0)}, {}),
        "__0_0.distcp": saved(torch.arange(8)).ljust(len(saved(torch.arange(8.0))), b"\0"),
    },
    "only the metadata": lambda: {".metadata": checkpoint({"w": torch.ones(2)}, {})[".metadata"]},
}


@each_row("what", HOSTILE)
def test_a_hostile_folder_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises((FormatError, TruncatedError)) as caught:
        streamer.open(written(tmp_path, HOSTILE[what]()))
    assert caught.value.uri


def test_entries_that_are_no_tensors_are_named(tmp_path: Path) -> None:
    files = checkpoint({"w": torch.ones(2)}, {}, scheduler=BytesStorageMetadata())
    assert streamer.open(written(tmp_path, files)).metadata() == {OBJECTS_KEY: '["scheduler"]'}


def test_bytes_of_chunks_are_read_by_range(tmp_path: Path) -> None:
    tensor = torch.randn(1000, 1000)
    written(tmp_path, checkpoint({"w": tensor}, {}))
    with streamer.stream(tmp_path) as stream:
        assert np.array_equal(dict(stream)["w"].numpy(), tensor.numpy())
    assert "Python unpacks" not in str(stream.report)


class Holder:
    """An object of a program, with tensors inside."""

    def __init__(self) -> None:
        self.weight = torch.ones(3)


INSIDE: dict[str, Callable[[], Any]] = {
    "an object": Holder,
    "a tuple": lambda: (torch.ones(3), 1),
    "a set of parameters": lambda: {torch.nn.Parameter(torch.ones(2))},
}


@each_row("make", INSIDE.values())
@each_row("beside", [{}, {"step": 3, "name": "x" * 100_000}, {"w": torch.ones(2)}])
def test_tensors_inside_objects_are_an_error_or_a_remark_and_never_nothing_regression(
    make: Callable[[], Any], beside: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dcp.save({"hidden": make(), **beside}, checkpoint_id=tmp_path)
    if "w" in beside:
        assert [*streamer.load(tmp_path)] == ["w"]
        assert "objects with tensors inside, which are not read: hidden" in caplog.text  # load() has no report
        with streamer.stream(tmp_path) as stream:
            assert [*dict(stream)] == ["w"]
        assert "objects with tensors inside, which are not read: hidden" in str(stream.report)
        return
    with pytest.raises(FormatError, match=r"holds no tensors, but objects with tensors inside.*hidden.*StorageReader"):
        streamer.load(tmp_path)


def test_a_dict_that_was_not_flattened_is_an_error_regression(tmp_path: Path) -> None:
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save({"model": {"w": torch.ones(2)}}, checkpoint_id=tmp_path, planner=planner)
    with pytest.raises(FormatError, match=r"holds no tensors, but objects with tensors inside.*model"):
        streamer.load(tmp_path)


def test_objects_without_tensors_are_an_error_that_names_them_regression(tmp_path: Path) -> None:
    dcp.save({"step": 3, "rates": {"a": 0.1}}, checkpoint_id=tmp_path)
    with pytest.raises(FormatError, match=r"holds no tensors, but objects: .*step"):
        streamer.load(tmp_path)


class Changing(dcp.DefaultSavePlanner):
    """Saves other tensors than the plan says, as planners of programs may."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002 (its name in torch)
        return self.change(super().transform_object(write_item, object))


@pytest.mark.parametrize(
    ("tensor", "change", "said"),
    [
        (torch.ones(2, 3, dtype=torch.complex64), torch.conj, "conjugated"),
        (torch.ones(2, 3), torch.Tensor.half, "holds another tensor"),
        (torch.ones(2, 3), torch.Tensor.int, "holds another tensor"),
        (torch.ones(2, 3), torch.t, "holds another tensor"),
    ],
    ids=["conjugated", "cast", "of equal size", "transposed"],
)
def test_an_item_that_is_refused_is_named_by_its_tensor_regression(
    tmp_path: Path, tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor], said: str
) -> None:
    dcp.save({"odd": tensor}, checkpoint_id=tmp_path, planner=Changing(change))
    with pytest.raises(FormatError, match=rf"an item of tensor 'odd'.*{said}"):
        streamer.load(tmp_path, names="odd")
