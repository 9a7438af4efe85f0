"""safetensors' names on any URL: the same calls, the same answers, and errors that are caught as safetensors'."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from each_row import each_row

import streamer
from streamer.compat import safetensors as ours
from streamer.compat.safetensors import numpy as our_numpy
from streamer.compat.safetensors import torch as our_torch
from streamer.compat.safetensors._errors import raised_as_safetensors

TENSORS = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "c": torch.tensor(2.5)}
URL = "memory://compat/model.safetensors"


@pytest.fixture(autouse=True)
def _stored() -> None:
    fsspec.filesystem("memory").pipe_file("/compat/model.safetensors", safetensors.torch.save(TENSORS, {"k": "v"}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    safetensors.torch.save_file(TENSORS, tmp_path / "model.safetensors", {"k": "v"})
    return tmp_path / "model.safetensors"


@each_row(
    ("theirs", "mine", "name"),
    [
        (safetensors, ours, "safe_open"),
        *((safetensors.torch, our_torch, name) for name in ("load_file", "load_model", "load", "save", "save_file")),
        *((safetensors.numpy, our_numpy, name) for name in ("load_file", "load", "save", "save_file")),
    ],
)
def test_every_argument_of_theirs_is_one_of_ours(theirs: Any, mine: Any, name: str) -> None:
    expected = inspect.signature(getattr(theirs, name)).parameters
    got = {key: each for key, each in inspect.signature(getattr(mine, name)).parameters.items() if key != "cls"}
    assert list(got)[: len(expected)] == list(expected)
    for each in expected:
        assert got[each].kind == expected[each].kind
        assert (got[each].default is inspect.Parameter.empty) == (expected[each].default is inspect.Parameter.empty)


def test_a_url_is_read_as_a_file_is(file: Path) -> None:
    with safetensors.safe_open(file, "pt") as theirs, ours.safe_open(URL, framework="pt", device="cpu") as mine:
        assert mine.keys() == list(theirs.keys())
        assert mine.offset_keys() == list(theirs.offset_keys())
        assert mine.metadata() == theirs.metadata()
        assert {name: tensor.tolist() for name, tensor in mine.get_tensors().items()} == {
            name: tensor.tolist() for name, tensor in theirs.get_tensors().items()
        }
        assert mine.get_slice("a")[1:, ::2].tolist() == theirs.get_slice("a")[1:, ::2].tolist()
        kept = mine.get_slice("a")
    assert kept[0].tolist() == [0, 1, 2, 3]  # slices outlive their handle
    assert our_torch.load_file(URL)["c"].item() == 2.5
    fsspec.filesystem("memory").pipe_file("/compat/n.safetensors", safetensors.numpy.save({"n": np.arange(3)}))
    assert our_numpy.load_file("memory://compat/n.safetensors")["n"].tolist() == [0, 1, 2]


def test_a_local_file_for_the_cpu_is_left_to_safetensors(file: Path) -> None:
    assert isinstance(ours.safe_open(file, "pt"), safetensors.safe_open)
    assert isinstance(ours.safe_open(str(file), "np", "cpu", backend="pread"), safetensors.safe_open)
    for handle in (
        ours.safe_open(file, "pt", options=streamer.Options()),
        ours.safe_open(file.parent, "pt"),
        ours.safe_open(file.as_uri(), "pt"),
    ):
        assert handle.get_tensor("c").item() == 2.5
        assert type(handle).__name__ == "EngineHandle"


def test_an_open_file_is_read_by_its_name_or_its_file_system(file: Path) -> None:
    with file.open("rb") as local:
        assert isinstance(ours._safe_open_handle(local, "pt"), safetensors.safe_open)
    with fsspec.open(file.as_uri()) as local:
        assert isinstance(ours._safe_open_handle(local, "pt"), safetensors.safe_open)
    with fsspec.open(URL) as remote:
        assert ours._safe_open_handle(remote, framework="pt", device="cpu").get_tensor("c").item() == 2.5


def test_errors_are_caught_as_safetensors_and_as_ours(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/compat/bad.safetensors", b"\xff" * 40)
    for call, kind in (
        (lambda: ours.safe_open("memory://compat/bad.safetensors", "pt"), streamer.HeaderError),
        (lambda: ours.safe_open(URL, "pt", device="nonsense"), streamer.UnknownDeviceError),
        (lambda: ours.safe_open(URL, "mlx"), streamer.OptionError),
        (lambda: ours.safe_open(URL, "pt", options={}), streamer.OptionError),
        (lambda: ours.safe_open(URL, "pt", storage_options="x"), streamer.OptionError),
        (lambda: ours.safe_open(URL, "pt").get_slice("a")["x"], streamer.TensorIndexError),
        (lambda: our_torch.load_file("memory://compat/absent.safetensors"), streamer.ObjectNotFoundError),
    ):
        with pytest.raises(safetensors.SafetensorError) as caught:
            call()
        assert isinstance(caught.value, kind)
        assert type(caught.value).__name__ == kind.__name__
    with pytest.raises(FileNotFoundError):
        our_torch.load_file("memory://compat/absent.safetensors")
    with pytest.raises(FileNotFoundError, match=r"^No such file or directory: .*absent.safetensors$") as caught:
        ours.safe_open(tmp_path / "absent.safetensors", "pt", options=streamer.Options())
    assert isinstance(caught.value, (streamer.ObjectNotFoundError, ours.SafetensorError))
    with pytest.raises(ours.SafetensorError, match="backend 'x' is invalid"):
        ours.safe_open(URL, "pt", backend="x")


def test_an_absent_shard_of_an_index_is_named(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(ours.SafetensorError, match=r"model-1\.safetensors") as caught:
        ours.safe_open(index, "pt", options=streamer.Options())
    assert isinstance(caught.value, streamer.ObjectNotFoundError)


def test_absent_and_closed_files_have_the_messages_of_safetensors() -> None:
    with ours.safe_open(URL, "pt") as handle:
        for read in (handle.get_tensor, handle.get_slice, handle.get_tensor_meta):
            with pytest.raises(ours.SafetensorError, match=r"^File does not contain tensor nix$") as caught:
                read("nix")
            assert isinstance(caught.value, streamer.UnknownTensorError)
    for call in (handle.keys, handle.metadata, handle.offset_keys, handle.get_tensors, handle.prefetch):
        with pytest.raises(ours.SafetensorError, match=r"^File is closed$") as caught:
            call()
        assert isinstance(caught.value, streamer.UsageError)


@each_row("name", [each for each in streamer.__all__ if each.endswith("Error")])
def test_an_error_passes_from_process_to_process_regression(name: str) -> None:
    kind = getattr(streamer, name)
    with pytest.raises(ours.SafetensorError) as caught, raised_as_safetensors():
        raise kind("changed", hint="Open it again")
    assert isinstance(caught.value, kind)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
    assert pickle.loads(pickle.dumps(type(again))) is type(again)  # as the workers of torch's DataLoader send it


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.handle.get_slice("a")[99]


def test_an_error_in_a_worker_of_a_loader_reaches_its_parent_regression(file: Path) -> None:
    rows = Rows(ours.safe_open(file, "pt", options=streamer.Options()))
    loader = torch.utils.data.DataLoader(rows, None, num_workers=1, multiprocessing_context="fork", timeout=20)
    with pytest.raises(streamer.TensorIndexError, match="cannot be indexed"):
        list(loader)


@pytest.mark.parametrize("index", [np.array([0, 2]), (slice(None), np.array([1])), (np.array([0]), ...)])
def test_an_array_as_an_index_is_read_as_by_numpy_regression(index: Any) -> None:
    part = ours.safe_open(URL, "np").get_slice("a")[index]
    assert part.tolist() == TENSORS["a"].numpy()[index].tolist()


def test_a_handle_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(ours.safe_open(URL, "pt")))
    assert again.get_tensor("c").item() == 2.5


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 3, bias=False)
        self.b = torch.nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight
        self.c = torch.nn.Parameter(torch.zeros(2))


@each_row("left_out", [["a.weight"], ["b.weight"], [], ["a.weight", "b.weight"], ["c"], ["a.weight", "c"]])
@each_row("more", [{}, {"d": torch.ones(1)}])
@each_row("strict", [True, False])
def test_a_model_is_loaded_as_safetensors_loads_it(
    tmp_path: Path, left_out: list[str], more: dict[str, torch.Tensor], strict: bool
) -> None:
    stored = {"a.weight": torch.ones(3, 3), "b.weight": torch.ones(3, 3), "c": torch.full((2,), 7.0)}
    data = safetensors.torch.save({**{name: each for name, each in stored.items() if name not in left_out}, **more})
    (tmp_path / "m.safetensors").write_bytes(data)
    fsspec.filesystem("memory").pipe_file("/compat/m.safetensors", data)

    def outcome(load_model: Any, name: Any) -> Any:
        model = Tied()
        torch.nn.init.zeros_(model.a.weight)
        try:
            missing, unexpected = load_model(model, name, strict=strict)
        except RuntimeError as error:
            return str(error), model.c.tolist()
        return set(missing), sorted(unexpected), model.a.weight.tolist(), model.c.tolist()

    expected = outcome(safetensors.torch.load_model, tmp_path / "m.safetensors")
    assert outcome(our_torch.load_model, "memory://compat/m.safetensors") == expected


def test_tensors_are_prefetched_in_any_order_each_once() -> None:
    handle = ours.safe_open(URL, "pt")
    with handle.prefetch({"a": slice(1, None), "c": None}) as loader:
        assert isinstance(loader, ours.PrefetchLoader)
        assert sorted(loader.names()) == ["a", "c"]
        assert len(loader) == 2
        assert loader.take("a").tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
        with pytest.raises(ours.SafetensorError, match="was already taken"):
            loader.take("a")
        with pytest.raises(ours.SafetensorError, match="not in the prefetch plan"):
            loader.take("b")
        assert [(name, tensor.item()) for name, tensor in loader] == [("c", 2.5)]
        assert list(loader) == []
    whole = handle.prefetch()
    assert {name for name, _ in whole} == set(TENSORS)
    assert handle.get_tensor("c").item() == 2.5
    left = handle.prefetch(threads=3)
    left.close()
    with pytest.raises(ours.SafetensorError, match="already taken"):
        left.take("a")


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        ({}, "selects no tensors"),
        ({"nope": None}, "does not contain"),
        ({"a": slice(0, 3, 2)}, "step 1"),
        ({"c": slice(0, 1)}, "dimension"),
        ({"a": 3}, "None or a slice, got int"),
    ],
)
def test_a_plan_that_cannot_be_read_is_refused(plan: dict[str, Any], match: str) -> None:
    with pytest.raises(ours.SafetensorError, match=match):
        ours.safe_open(URL, "pt").prefetch(plan)


def test_a_header_entry_is_quoted_as_it_is_written() -> None:
    meta = ours.safe_open(URL, "pt").get_tensor_meta("b")
    stored = dict(safetensors.deserialize(safetensors.torch.save({"b": TENSORS["b"]})))
    assert (meta.dtype, meta.shape) == ("BF16", [5]) == (stored["b"]["dtype"], stored["b"]["shape"])
    assert meta.data_offsets[1] - meta.data_offsets[0] == 10
    assert min(ours.safe_open(URL, "pt").get_tensor_meta(name).data_offsets[0] for name in TENSORS) == 0


@pytest.mark.parametrize("url", ["memory://numpy-face/a.safetensors", "file://{folder}/a.safetensors", "{folder}/a"])
def test_arrays_are_saved_to_any_url_regression(url: str, tmp_path: Path) -> None:
    place = url.format(folder=tmp_path)
    for value in (1, 2):  # an existing file is replaced, as by safetensors
        our_numpy.save_file({"a": np.full(3, value)}, place, {"step": str(value)})
    assert our_numpy.load_file(place)["a"].tolist() == [2, 2, 2]
    with streamer.open(place) as checkpoint:
        assert checkpoint.metadata()["step"] == "2"
    if "://" in url:
        with pytest.raises(streamer.UsageError, match=r"must end in \.safetensors"):
            our_numpy.save_file({"a": np.ones(1)}, place.removesuffix(".safetensors"))


@pytest.mark.parametrize("place", ["memory://numpy-face/views.safetensors", "{folder}/views.safetensors", None])
def test_views_of_arrays_are_saved_as_they_show_regression(place: str | None, tmp_path: Path) -> None:
    rows = np.arange(24, dtype=">i4").reshape(4, 6)
    views = {"columns": np.asfortranarray(rows), "turned": rows.T, "steps": rows.copy()[:, ::2]}
    views |= {"backwards": rows.copy()[::-1], "repeated": np.broadcast_to(rows[0].copy(), (3, 6))}
    views |= {"cube": rows.copy().reshape(2, 3, 4).transpose(2, 0, 1), "one": np.array(3.5), "empty": rows[:0].T}
    if place is None:
        got = our_numpy.load(our_numpy.save(views))
    else:
        our_numpy.save_file(views, url := place.format(folder=tmp_path))
        got = our_numpy.load_file(url)
    assert {name: array.tolist() for name, array in got.items()} == {
        name: array.tolist() for name, array in views.items()
    }
    assert all(got[name].shape == array.shape for name, array in views.items())


def test_bytes_of_an_array_with_a_mask_are_refused_regression() -> None:
    with pytest.raises(streamer.UsageError, match="'a' has a mask"):
        our_numpy.save({"a": np.ma.masked_array(np.zeros(2), mask=[0, 1])})


@pytest.mark.parametrize("url", ["memory://numpy-face/masked.safetensors", "{folder}/masked.safetensors"])
def test_an_array_with_a_mask_is_refused_at_a_path_too_regression(url: str, tmp_path: Path) -> None:
    place = url.format(folder=tmp_path)
    with pytest.raises(streamer.UsageError, match="'a' has a mask"):
        our_numpy.save_file({"b": np.ones(1), "a": np.ma.masked_array(np.zeros(2), mask=[0, 1])}, place)
    assert not fsspec.url_to_fs(place)[0].exists(place)


CONJUGATED = torch.tensor([1 + 2j, 3 - 4j]).conj()


VIEWS = {
    "conjugated": CONJUGATED,
    "imaginary": CONJUGATED.imag,
    "negated": torch._neg_view(torch.ones(3)),
    "part": CONJUGATED.reshape(1, 2).t()[:1],
    "plain": torch.ones(2),
}


@each_row("way", ["save", "save_file", "save_model"])
@each_row("view", VIEWS)
def test_the_values_that_a_view_shows_are_saved_regression(view: str, way: str, tmp_path: Path) -> None:
    path, tensor = tmp_path / "a.safetensors", VIEWS[view].clone() if view == "plain" else VIEWS[view]
    if way == "save":
        path.write_bytes(our_torch.save({"a": tensor}, {"k": "v"}))
    elif way == "save_file":
        our_torch.save_file({"a": tensor}, path, {"k": "v"})
    else:
        model = torch.nn.Module()
        model.register_buffer("a", tensor)
        our_torch.save_model(model, path, {"k": "v"})
    assert torch.equal(safetensors.torch.load_file(path)["a"], tensor.resolve_conj().resolve_neg())
    with safetensors.safe_open(path, "pt") as handle:
        assert handle.metadata()["k"] == "v"


def test_save_model_keeps_one_of_a_tensor_and_its_conjugate_regression(tmp_path: Path) -> None:
    model, again = torch.nn.Module(), torch.nn.Module()
    for each, memory in ((model, torch.tensor([1 + 2j, 3 - 4j])), (again, torch.zeros(2, dtype=torch.complex64))):
        each.register_buffer("a", memory.conj())
        each.register_buffer("b", memory)
    our_torch.save_model(model, tmp_path / "a.safetensors")
    our_torch.load_model(again, tmp_path / "a.safetensors")
    assert torch.equal(again.b, model.b)
    assert torch.equal(again.a, model.a)
