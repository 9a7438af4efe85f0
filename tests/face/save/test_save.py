"""``save`` to a disk: the file is the reference's own, everything else is refused before a byte is written."""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each_row import each_row
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import load_file, load_model, save_file, save_model
from tiny_models import save_llama
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

import streamer
from streamer._save.writing import Writing, quiet_writing
from streamer.backends.posix.upload import PosixUpload
from streamer.compat.safetensors.torch import save_file as save_file_at_url
from streamer.core.format.dtypes import TORCH_DTYPES
from streamer.core.options.settings import resolve
from streamer.core.quoting import size_text
from streamer.plugins import open_store

FORMAT = {"format": "pt"}
BASE = np.zeros(9)
DTYPES = [getattr(torch, name) for name in TORCH_DTYPES.values() if hasattr(torch, name)]


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    tensors = {str(dtype): torch.randint(0, 2, (3, 16), dtype=torch.uint8).view(dtype) for dtype in DTYPES}
    return {**tensors, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 7), "é\n": torch.arange(5)}


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_file_is_byte_for_byte_the_references(tmp_path: Path) -> None:
    tensors = some_tensors()
    save_file(tensors, tmp_path / "reference", FORMAT)
    report = streamer.save(tensors, tmp_path / "model")
    assert (tmp_path / "model/model.safetensors").read_bytes() == (tmp_path / "reference").read_bytes()
    assert report.files == ("model.safetensors.manifest.json", "model.safetensors")
    assert (report.tensors, report.bytes) == (
        len(tensors),
        sum(f.stat().st_size for f in (tmp_path / "model").iterdir()),
    )
    assert json.dumps(report.to_dict())


def test_a_file_url_is_one_file_whatever_its_size(tmp_path: Path) -> None:
    with pytest.raises(streamer.UsageError, match="max_shard_bytes divides a folder"):
        streamer.save(some_tensors(), f"file://{tmp_path}/a.safetensors", max_shard_bytes=1)
    streamer.save(some_tensors(), f"file://{tmp_path}/a.safetensors")
    assert files_in(tmp_path) == ["a.safetensors", "a.safetensors.manifest.json"]
    streamer.load(tmp_path / "a.safetensors", verify="manifest")


def test_shards_and_index_are_those_of_transformers(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_llama(tmp_path / "llama"))
    state = dict(model.state_dict())
    expected = split_torch_state_dict_into_shards(
        state, max_shard_size="100KB", filename_pattern="model{suffix}.safetensors"
    )
    streamer.save(state, tmp_path / "model", max_shard_bytes="100KB", digests=False)
    index = json.loads((tmp_path / "model/model.safetensors.index.json").read_text())
    assert index["weight_map"] == expected.tensor_to_filename
    assert index["metadata"] == expected.metadata
    assert files_in(tmp_path / "model") == sorted([*expected.filename_to_tensors, "model.safetensors.index.json"])
    for shard, names in expected.filename_to_tensors.items():
        save_file({name: state[name] for name in names}, tmp_path / "reference", FORMAT)
        assert (tmp_path / "model" / shard).read_bytes() == (tmp_path / "reference").read_bytes()


@pytest.mark.parametrize("max_shard_bytes", ["5GB", "100KB"])
def test_transformers_loads_what_is_saved(max_shard_bytes: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_llama(tmp_path / "llama"))
    streamer.save(model, tmp_path / "model", max_shard_bytes=max_shard_bytes)
    shutil.copy(tmp_path / "llama/config.json", tmp_path / "model")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


def test_views_and_strides_are_saved_as_what_they_show(tmp_path: Path) -> None:
    base = torch.arange(40.0).reshape(5, 8)
    saved = {
        "transposed": torch.arange(24.0).reshape(4, 6).t(),
        "every other": torch.arange(40.0).reshape(5, 8)[::2, ::3],
        "expanded": torch.arange(3.0).expand(4, 3),
        "first half": base[:2],
        "second half": base[2:],  # of one storage, and they do not overlap
        "conjugate": torch.complex(torch.arange(6.0), torch.ones(6)).conj(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    streamer.save(saved, tmp_path / "model")
    loaded = streamer.load(tmp_path / "model", verify="manifest")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


@each_row("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int16, torch.uint8])
@each_row("shape", [(), (1,), (1, 1), (1, 0), (1, 2)])
def test_an_element_of_a_larger_tensor_is_saved_and_filled_whatever_its_stride_regression(
    shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    def views(base: torch.Tensor) -> dict[str, torch.Tensor]:
        many = {"odd": (3,) * len(shape), "none": (0,) * len(shape), "even": (4, 2)[: len(shape)]}
        return {name: base.as_strided(shape, strides, 5) for name, strides in many.items()}

    saved = views(torch.arange(20).to(dtype))
    for name, view in saved.items():
        streamer.save({"a": view, "b": view.clone()}, tmp_path / name)
        loaded = streamer.load(tmp_path / name, verify="manifest")
        assert all(torch.equal(each, view) for each in loaded.values())
        if name == "odd":
            target = views(torch.zeros(20, dtype=dtype))[name]
            streamer.load_into(tmp_path / name, {"a": target, "b": target})  # one memory: the values are compared
            assert torch.equal(target, view)


def test_numpy_arrays_are_saved_in_the_files_byte_order(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    saved: dict[str, Any] = {
        "big-endian": np.arange(6, dtype=">i4").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "strided": np.arange(10, dtype="u2")[::3],
        "scalar": np.array(True),
        "bfloat16": np.arange(4).astype(ml_dtypes.bfloat16),
        "float4": np.array([0, 0.5, -1, 6], dtype=ml_dtypes.float4_e2m1fn),
    }
    streamer.save(saved, tmp_path / "model")
    loaded = streamer.load(tmp_path / "model", framework="np", verify="manifest")
    assert all(np.array_equal(loaded[name], array) for name, array in saved.items())
    assert load_file(tmp_path / "model/model.safetensors")["float4"].shape == (2,)


@pytest.mark.parametrize("overlap", ["same", "part", "inside"])
def test_shared_tensors_are_refused_where_the_reference_refuses_them(overlap: str, tmp_path: Path) -> None:
    base = torch.arange(20.0)
    other = {"same": base, "part": base[:12], "inside": base[3:5]}[overlap]
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"a": base, "b": other}, tmp_path / "reference")
    with pytest.raises(streamer.UsageError, match=r"share memory: 'a', 'b'.*save_model") as caught:
        streamer.save({"a": base, "b": other}, tmp_path / "model")
    assert caught.value.hint
    assert files_in(tmp_path) == []


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_saved_as_save_model_of_the_reference_saves_them(tmp_path: Path) -> None:
    model = Tied()
    with pytest.raises(streamer.UsageError, match="save_model"):
        streamer.save(model, tmp_path / "model")
    save_model(model, str(tmp_path / "reference"), FORMAT)
    streamer.save_model(model, tmp_path / "model.safetensors")
    reference, ours = load_file(tmp_path / "reference"), load_file(tmp_path / "model.safetensors")
    assert reference.keys() == ours.keys() == {"embed.weight"}
    with streamer.open(tmp_path / "model.safetensors") as checkpoint:
        assert checkpoint.metadata() == {"head.weight": "embed.weight", **FORMAT}
    other = Tied()
    load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other.head.weight, model.head.weight)


def test_no_tensor_of_a_group_that_covers_it_all_is_an_error(tmp_path: Path) -> None:
    base = torch.arange(20.0)
    with pytest.raises(streamer.UsageError, match="none of them covers it all"):
        streamer.save_model({"a": base[:12], "b": base[5:]}, tmp_path)


@each_row(
    ("tensors", "message"),
    [
        ({"a": torch.empty(3, device="meta")}, "meta device"),
        ({"a": torch.eye(3).to_sparse()}, "sparse"),
        (torch.nn.LazyLinear(3), "'weight' is of a lazy module"),
        ({"a": np.zeros(9)[:5], "b": np.ones(2)} | dict.fromkeys("cd", np.ones(3)), "arrays share memory: 'c', 'd'"),
        ({"a": BASE[3:], "b": BASE[::-1]}, "arrays share memory: 'a', 'b'"),
        ({"a": torch.zeros(3, dtype=torch.complex128)}, "complex128"),
        ({"a": np.zeros(3, dtype="c16")}, "complex128"),
        ({"a": np.array(["x"])}, "dtype"),
        ({"a": np.ma.masked_array(np.zeros(3), mask=[0, 1, 0])}, "'a' has a mask"),
        ({"a": np.ma.masked_array(np.zeros(3))}, "'a' has a mask"),
        ({"a": [1.0]}, "no tensor but list"),
        ({1: torch.zeros(3)}, "is a text"),
        ({"__metadata__": torch.zeros(3)}, "keeps its metadata"),
        ({"\udcff": torch.zeros(3)}, "no UTF-8"),
        ([torch.zeros(3)], "list cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(tensors: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(streamer.UsageError, match=message):
        streamer.save(tensors, tmp_path / "model")
    assert files_in(tmp_path) == []


def test_a_fake_tensor_has_no_bytes_to_save(tmp_path: Path) -> None:
    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(streamer.UsageError, match="without memory of its own"):
        streamer.save({"a": fake}, tmp_path / "model")
    assert files_in(tmp_path) == []


@each_row(
    "how",
    [
        {"max_shard_bytes": "many"},
        {"max_shard_bytes": 0},
        {"metadata": {"step": 3}},
        {"metadata": ["a"]},
        {"metadata": {1: "a"}},
        {"metadata": {"a": None}},
        {"metadata": {"streamer.encryption": "x"}},
        {"digests": "no"},
        {"overwrite": 1},
        {"resume": None},
        {"storage_options": 3},
        {"options": 3},
        {"progress": "yes"},
    ],
)
def test_wrong_arguments_are_refused(how: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(streamer.UsageError):
        streamer.save({"a": torch.zeros(3)}, tmp_path / "model", **how)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("uri", ["*.safetensors", "model.safetensors.index.json"])
def test_a_glob_or_an_index_is_no_place_to_save_to(uri: str, tmp_path: Path) -> None:
    with pytest.raises(streamer.UsageError, match="not to an index or a glob"):
        streamer.save({"a": torch.zeros(3)}, tmp_path / uri)
    with pytest.raises(streamer.UsageError, match="one place"):
        streamer.save({"a": torch.zeros(3)}, [tmp_path])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("there", "advice"),
    [
        ("model.safetensors", r"already.*overwrite=True"),
        ("other.safetensors", r"another checkpoint.*move them away"),
        ("model.safetensors.index.json", r"remove it and them"),
    ],
)
def test_existing_files_are_not_overwritten_by_default(there: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / there).write_bytes(b"precious")
    with pytest.raises(streamer.StreamerError, match=advice):
        streamer.save({"a": torch.zeros(3)}, tmp_path)
    assert files_in(tmp_path) == [there]
    assert (tmp_path / there).read_bytes() == b"precious"


def test_files_of_another_checkpoint_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "lora.safetensors").write_bytes(b"precious")
    with pytest.raises(streamer.UsageError, match="another checkpoint"):
        streamer.save({"a": torch.zeros(3)}, tmp_path, overwrite=True)
    assert files_in(tmp_path) == ["lora.safetensors"]


@pytest.mark.parametrize("old_shards", [1, 3])
@pytest.mark.parametrize("new_shards", [1, 3])
def test_an_older_checkpoint_is_whole_until_the_new_one_is(
    old_shards: int, new_shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each file shows up, the folder loads as the old or as the new one."""
    old = {f"{name}": torch.full((8,), 1.0) for name in "abc"}
    new = {f"{name}": torch.full((8,), 2.0) for name in "bcd"}
    sizes = {1: 10_000, 3: 32}
    streamer.save(old, tmp_path, max_shard_bytes=sizes[old_shards])
    seen = []
    show = Writing.show

    def looking_show(self: Writing, *arguments: Any, **named: Any) -> None:
        seen.append(streamer.load(tmp_path))
        show(self, *arguments, **named)
        seen.append(streamer.load(tmp_path))

    monkeypatch.setattr(Writing, "show", looking_show)
    report = streamer.save(new, tmp_path, max_shard_bytes=sizes[new_shards], overwrite=True)
    assert [each.keys() in (old.keys(), new.keys()) for each in seen] == [True] * len(seen)
    assert [{*map(float, (t[0] for t in each.values()))} in ({1.0}, {2.0}) for each in seen] == [True] * len(seen)
    assert seen[0].keys() == old.keys()
    assert files_in(tmp_path) == sorted(report.files)
    assert streamer.load(tmp_path, verify="manifest").keys() == new.keys()


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def failing(done: int, total: int) -> None:
        raise streamer.LoadCancelledError("enough")

    with pytest.raises(streamer.LoadCancelledError):
        streamer.save({"a": torch.zeros(100)}, tmp_path, progress=failing)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_older_checkpoint(error: type[BaseException], tmp_path: Path) -> None:
    streamer.save({"a": torch.ones(100)}, tmp_path)
    before = files_in(tmp_path)

    def interrupting(done: int, total: int) -> None:
        raise error

    with pytest.raises(error):
        streamer.save(
            {"a": torch.zeros(100), "b": torch.zeros(9)},
            tmp_path,
            max_shard_bytes=9,
            overwrite=True,
            progress=interrupting,
        )
    assert files_in(tmp_path) == before
    assert streamer.load(tmp_path, verify="manifest")["a"].sum() == 100


def test_progress_counts_the_bytes_of_the_files(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    streamer.save({"a": torch.zeros(9 << 20)}, tmp_path, progress=lambda *each: seen.append(each))
    size_bytes = (tmp_path / "model.safetensors").stat().st_size
    assert seen[-1] == (size_bytes, size_bytes)
    assert len(seen) == 3  # two parts of 16 MiB, and the rest


def test_a_checkpoint_is_copied_into_other_shards_without_being_in_memory(tmp_path: Path) -> None:
    saved = {f"layer.{n}": torch.randn(1000) for n in range(5)}
    streamer.save(saved, tmp_path / "one")
    with streamer.open(tmp_path / "one") as checkpoint:
        report = streamer.save(checkpoint, tmp_path / "two", max_shard_bytes="8KB")
        streamer.save({"half": checkpoint["layer.1"], "own": torch.ones(3)}, tmp_path / "three")
    assert len(report.files) == 5
    loaded = streamer.load(tmp_path / "two", verify="manifest")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())
    assert torch.equal(streamer.load(tmp_path / "three")["half"], saved["layer.1"])


def test_a_checkpoint_is_cast_on_the_way(tmp_path: Path) -> None:
    streamer.save({"a": torch.tensor([1.5, 2.5])}, tmp_path / "one")
    with streamer.open(tmp_path / "one", dtype="bfloat16") as checkpoint:
        streamer.save(checkpoint, tmp_path / "two")
    assert streamer.load(tmp_path / "two")["a"].equal(torch.tensor([1.5, 2.5], dtype=torch.bfloat16))


def test_a_large_lazy_tensor_is_read_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer._save.saved_tensors.MOST_READ_BYTES", 1000)
    saved = {"a": torch.randn(70, 9), "one row": torch.randn(1, 900)}
    streamer.save(saved, tmp_path / "one")
    with streamer.open(tmp_path / "one") as checkpoint:
        streamer.save(checkpoint, tmp_path / "two")
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()


def test_no_tensors_make_a_file_without_tensors(tmp_path: Path) -> None:
    streamer.save({}, tmp_path)
    assert load_file(tmp_path / "model.safetensors") == {}


def test_asave_saves_and_a_cancelled_one_leaves_nothing(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(1 << 22)}

    async def both() -> None:
        await streamer.asave(tensors, tmp_path / "one")
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        saving = asyncio.ensure_future(
            streamer.asave(tensors, tmp_path / "two", progress=lambda *_: loop.call_soon_threadsafe(begun.set))
        )
        await asyncio.sleep(0)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving

    asyncio.run(both())
    assert streamer.load(tmp_path / "one", verify="manifest")["a"].shape == (1 << 22,)
    assert not (tmp_path / "two").exists() or files_in(tmp_path / "two") == []


CHILD = """
import os, sys, threading, numpy, streamer
from streamer.backends.posix.upload import PosixUpload
point = sys.argv[2]
counts = {"before": 0, "after": 0}
guard = threading.Lock()
finish = PosixUpload.finish
def pass_by(when):
    with guard:
        counts[when] += 1
        if point == f"{when} {counts[when]}":
            os.kill(os.getpid(), 9)
def dying_finish(self):
    pass_by("before")
    finish(self)
    pass_by("after")
PosixUpload.finish = dying_finish
def progress(done, total):
    if point == "parts" and done * 2 > total:
        os.kill(os.getpid(), 9)
tensors = {name: numpy.full(1000, 2.0, "f4") for name in "bcde"}
streamer.save(tensors, sys.argv[1], max_shard_bytes=4000, overwrite=True, progress=progress)
"""


@pytest.mark.parametrize("point", ["parts", *(f"{when} {n}" for when in ("before", "after") for n in (1, 3, 4, 5))])
def test_a_process_that_is_killed_leaves_the_old_or_the_new_checkpoint(point: str, tmp_path: Path) -> None:
    streamer.save({name: np.full(1000, 1.0, "f4") for name in "abcd"}, tmp_path, max_shard_bytes=4000)
    killed = subprocess.run([sys.executable, "-c", CHILD, tmp_path, point], check=False, capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    loaded = streamer.load(tmp_path, framework="np")
    assert "".join(loaded) in ("abcd", "bcde")
    assert {float(array[0]) for array in loaded.values()} == {1.0 if "a" in loaded else 2.0}
    report = streamer.save({"z": np.zeros(3)}, tmp_path, overwrite=True)
    assert [*streamer.load(tmp_path, verify="manifest", framework="np")] == ["z"]
    assert [name for name in files_in(tmp_path) if not name.startswith(".")] == sorted(report.files)


def _in_child(code: str, *arguments: Any, before: Callable[[], None] | None = None) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=before,
    )
    return ran.stdout + ran.stderr


FULL = """
import signal, sys, numpy, streamer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    streamer.save({"a": numpy.zeros(1 << 20)}, sys.argv[1])
except streamer.StorageError as error:
    print(error.code, error)
"""


def test_a_disk_that_is_full_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    reported = _in_child(FULL, tmp_path, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    assert reported.startswith("EFBIG")
    assert "not saved" in reported
    assert "ulimit -f" in reported
    assert files_in(tmp_path) == []


def test_a_folder_that_may_not_be_written_is_an_access_error() -> None:
    with pytest.raises(streamer.StorageError, match=r"not saved"):
        streamer.save({"a": torch.zeros(3)}, "/proc/self/fd/model")  # even root cannot make a file there


def test_a_storage_that_cannot_be_written_is_refused_before_a_byte_is_sent() -> None:
    with pytest.raises(streamer.StreamerError) as caught:
        streamer.save({"a": torch.zeros(3)}, "zip://model::file:///tmp/m.zip")
    assert isinstance(caught.value, streamer.UsageError)
    assert "cannot be written" in str(caught.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused(layout: torch.layout, tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    for save_it in (streamer.save, streamer.save_model):
        with pytest.raises(streamer.UsageError, match="'a' is nested"):
            save_it({"a": nested}, tmp_path / "model")


def test_save_model_names_what_it_cannot_save(tmp_path: Path) -> None:
    with pytest.raises(streamer.UsageError, match="'weight' is of a lazy module"):
        streamer.save_model(torch.nn.LazyLinear(3), tmp_path / "model")


def test_arrays_beside_one_another_in_one_memory_are_saved(tmp_path: Path) -> None:
    base = np.arange(9.0)
    streamer.save({"a": base[:4], "b": base[4:], "c": base[:0]}, tmp_path)
    assert np.array_equal(streamer.load(tmp_path, framework="np")["b"], base[4:])


@pytest.mark.parametrize("below", ["", "/model", "/model/deeper"])
def test_a_file_in_the_way_of_the_folder_is_named(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(streamer.UsageError, match="file: this is a file, not a folder"):
        streamer.save({"a": torch.zeros(3)}, f"{tmp_path}/file{below}")
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_a_progress_function_that_raises_is_no_matter_of_a_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(done: int, total: int) -> None:
        raise ValueError("mine")

    streamer.save({"a": torch.zeros(3)}, tmp_path, progress=fail)
    assert "the progress is no longer shown: ValueError('mine')" in caplog.text


def test_shards_of_an_unfinished_save_are_no_checkpoint_regression(tmp_path: Path) -> None:
    streamer.save(some_tensors(), tmp_path, max_shard_bytes=1)
    (tmp_path / "model.safetensors.index.json").unlink()
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(streamer.UsageError, match=r"a save that did not end.*resume=True.*overwrite=True"):
        streamer.save({"other": torch.zeros(3)}, tmp_path)
    with pytest.raises(
        streamer.UsageError, match=r"did not end.*not of this one.*Pass the tensors, metadata=.*overwrite"
    ):
        streamer.save({"other": torch.zeros(3)}, tmp_path, resume=True)
    streamer.save({"other": torch.zeros(3)}, tmp_path, overwrite=True)
    assert [*streamer.load(tmp_path)] == ["other"]


def test_one_of_two_writers_at_the_same_time_wins_and_the_other_leaves_nothing_regression(tmp_path: Path) -> None:
    for attempt in range(5):
        folder, are_ready, errors = tmp_path / str(attempt), threading.Barrier(2), []
        saved = [{f"{name}{number}": torch.full((9,), number) for number in range(8)} for name in "ab"]

        def save(tensors: Any, folder: Path = folder, ready: Any = are_ready, errors: Any = errors) -> None:
            def wait(done: int, total: int) -> None:
                if done == total and not ready.broken:
                    with suppress(threading.BrokenBarrierError):
                        ready.wait(timeout=10)
                        ready.abort()

            try:
                streamer.save(tensors, folder, overwrite=True, max_shard_bytes=36, digests=False, progress=wait)
            except streamer.StreamerError as error:
                errors.append(error)

        threads = [threading.Thread(target=save, args=(each,)) for each in saved]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert [type(each) for each in errors] == [streamer.ChangedError]
        assert "save again" in str(errors[0])
        assert {*streamer.load(folder)} in [{*each} for each in saved]
        assert len(files_in(folder)) == 9


def test_a_file_that_shows_up_after_the_failure_of_another_is_removed_regression(tmp_path: Path) -> None:
    has_failed = threading.Event()
    with closing(open_store(str(tmp_path), {})) as store:

        class Late:
            """An upload that ends after another one has failed."""

            def __init__(self, upload: Any) -> None:
                self._upload = upload

            def __getattr__(self, name: str) -> Any:
                return getattr(self._upload, name)

            def finish(self) -> None:
                assert has_failed.wait(10)
                self._upload.finish()

        def failing() -> None:
            has_failed.set()
            raise streamer.ChangedError("another program")

        def write() -> None:
            with quiet_writing(store, str(tmp_path), resolve(None)) as writing:
                uploads = [writing.send(f"{tmp_path}/{name}", 0, [], None) for name in "ab"]
                uploads[0].finish = failing  # type: ignore[method-assign]
                late: Any = Late(uploads[1])
                writing.show_all([(f"{tmp_path}/a", uploads[0], None), (f"{tmp_path}/b", late, None)])

        with pytest.raises(streamer.ChangedError):
            write()
    assert files_in(tmp_path) == []


def test_an_interrupted_save_whose_files_cannot_be_removed_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: PosixUpload) -> None:
        raise streamer.StorageError("the disk is gone")

    monkeypatch.setattr(PosixUpload, "abort", failing)
    monkeypatch.setattr(PosixUpload, "finish", failing)
    with pytest.raises(
        streamer.StorageError, match=r"not saved: the disk is gone.*Could not be removed.*model\.safetensors'"
    ):
        streamer.save({"a": torch.zeros(3)}, tmp_path)


def test_one_of_two_writers_wins_and_the_other_gets_an_error(tmp_path: Path) -> None:
    def meanwhile(done: int, total: int) -> None:
        if not files_in(tmp_path / "model")[0].endswith("json"):
            streamer.save({"first": torch.zeros(3)}, tmp_path / "model", progress=False)

    with pytest.raises(streamer.ChangedError, match="another program has written it meanwhile"):
        streamer.save({"second": torch.zeros(3)}, tmp_path / "model", progress=meanwhile)
    assert [*streamer.load(tmp_path / "model", verify="manifest")] == ["first"]
    assert len(files_in(tmp_path / "model")) == 2


def test_the_umask_sets_the_permissions(tmp_path: Path) -> None:
    streamer.save({"a": torch.zeros(3)}, tmp_path)
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_drafts_of_a_killed_save_are_removed_by_the_next_one_and_no_others(tmp_path: Path) -> None:
    tmp_path.joinpath(".model.safetensors-streamer-0a1b2c3d").touch()
    tmp_path.joinpath(".model-0a1b2c3d-00001-of-00002.safetensors-streamer-0a1b2c3d").touch()
    tmp_path.joinpath(".else.txt-streamer-0a1b2c3d").touch()
    with tmp_path.joinpath(".model.safetensors-streamer-ffffffff").open("w") as written:  # by another process, now
        fcntl.flock(written, fcntl.LOCK_EX)
        streamer.save({"a": torch.zeros(3)}, tmp_path)
    assert {each.name for each in tmp_path.iterdir() if each.name.startswith(".")} == {
        ".else.txt-streamer-0a1b2c3d",
        ".model.safetensors-streamer-ffffffff",
    }


def test_an_unknown_keyword_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'shards'"):
        streamer.save({}, tmp_path, shards=2)  # type: ignore[call-arg]
    assert "resume" in inspect.signature(streamer.save_model).parameters


def test_the_report_is_one_line_with_what_a_user_wants_to_know(tmp_path: Path) -> None:
    report = streamer.save({"weight": torch.zeros(1000)}, tmp_path / "model")
    assert str(report).startswith(f"{tmp_path}/model: 1 tensor, {size_text(report.bytes)} in 0.")
    resumed = replace(report, kept_bytes=4000, not_removed=("old.safetensors",))
    assert "4.00 kB of it was there; note: could not remove old.safetensors" in str(resumed)


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda tensor: tensor.add_(1),
    "by a view": lambda tensor: tensor[1:].zero_(),
    "by an optimizer": lambda tensor: torch.optim.SGD([tensor.requires_grad_()], maximize=True).step(),
    "by load_state_dict": lambda tensor: tensor.copy_(torch.ones(50)),
}
LAYOUTS: list[dict[str, Any]] = [{}, {"max_shard_bytes": 100}, {"digests": False}, {"key": bytes(range(32))}]


@each_row("how", LAYOUTS)
@each_row("change", CHANGES)
@each_row("overwrite", [False, True])
def test_tensors_that_change_while_they_are_saved_are_an_error_regression(
    change: str, how: dict[str, Any], overwrite: bool, tmp_path: Path
) -> None:
    older = {"a": torch.full((50,), 7.0)}
    if overwrite:
        streamer.save(older, tmp_path / "model", **how)
    before = sorted(path.name for path in (tmp_path / "model").glob("*"))
    tensors = {"a": torch.zeros(50), "b": torch.zeros(50), "c": torch.zeros(50)}
    tensors["b"].grad = torch.ones(50)

    def step(done: int, total: int) -> None:
        if done:
            CHANGES[change](tensors["b"])

    with pytest.raises(streamer.ChangedError, match=r"not saved: tensors were changed while they were saved: b\. Do"):
        streamer.save(tensors, tmp_path / "model", overwrite=overwrite, progress=step, **how)
    assert sorted(path.name for path in (tmp_path / "model").glob("*")) == before
    if overwrite:
        assert torch.equal(streamer.load(tmp_path / "model", key=how.get("key"))["a"], older["a"])


UNCOUNTED: dict[str, Callable[[Any], Any]] = {
    "by a fused optimizer": lambda tensor: torch.optim.AdamW([tensor], fused=True).step(),
    "data": lambda tensor: tensor.data.add_(1),
    "an array of NumPy": lambda tensor: tensor.detach().numpy().__iadd__(1),
}


@each_row("change", UNCOUNTED)
@each_row("size", [5, 600_001])
def test_asave_notices_changes_that_torch_does_not_count_regression(change: str, size: int, tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(50), "b": torch.zeros(size, requires_grad=True)}
    tensors["b"].grad = torch.ones(size)
    saved = {**tensors, "b": tensors["b"].detach().numpy()} if change == "an array of NumPy" else tensors

    def step(done: int, total: int) -> None:
        if done:
            UNCOUNTED[change](tensors["b"])

    with pytest.raises(streamer.ChangedError, match=r"not saved: tensors were changed while they were saved: b\. Do"):
        asyncio.run(streamer.asave(saved, tmp_path / "model", progress=step))
    assert not (tmp_path / "model").exists()


def test_tensors_without_a_count_of_changes_are_saved(tmp_path: Path) -> None:
    with torch.inference_mode():
        tensors = {"a": torch.ones(3), "b": np.ones(3)}
    assert streamer.save(tensors, tmp_path / "model").tensors == 2


WRITES: dict[str, Callable[[Path], Any]] = {
    "save": lambda path: streamer.save({"a": torch.ones(3)}, path, overwrite=True),
    "save_file": lambda path: save_file_at_url({"a": torch.ones(3)}, f"file://{path}"),
    "large": lambda path: streamer.save({"a": torch.ones(3 << 18)}, path, overwrite=True, digests=False),
}


@each_row("write", WRITES)
@each_row("mode", [0o400, 0o600, 0o640, 0o755, 0o666])
def test_a_file_that_replaces_another_has_its_permissions_regression(mode: int, write: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"older")
    path.chmod(mode)
    WRITES[write](path)
    assert path.stat().st_mode & 0o777 == mode
    assert path.read_bytes() != b"older"


@pytest.mark.parametrize("write", WRITES)
def test_a_folder_or_a_broken_link_is_no_other_program_regression(write: str, tmp_path: Path) -> None:
    folder, link = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    folder.mkdir()
    link.symlink_to("nowhere")
    with pytest.raises(streamer.StorageError, match="this is a folder, not a file"):
        WRITES[write](folder)
    with pytest.raises(streamer.StorageError, match="this is a link that leads nowhere"):
        WRITES[write](link)
    with pytest.raises(streamer.StorageError, match="this is a link that leads nowhere"):
        WRITES[write](link / "model.safetensors")
    assert files_in(tmp_path) == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize("text", ["{", "{}", '{"metadata": {}, "weight_map": {}}', "<html>"])
def test_a_damaged_index_of_the_older_checkpoint_is_to_be_removed_regression(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(streamer.ShardIndexError, match="of the older checkpoint: remove it and them, and save again"):
        streamer.save({"a": torch.ones(3)}, tmp_path, overwrite=True)


@each_row("name", [1, b"a", None, ("a",), float("nan"), object()])
def test_a_name_that_is_no_text_is_an_error_that_shows_it_regression(name: Any, tmp_path: Path) -> None:
    with pytest.raises(streamer.UsageError, match="the name of a tensor is a text, not"):
        streamer.save({name: torch.ones(3)}, tmp_path)
    with pytest.raises(streamer.UsageError, match="not a text"):
        streamer.save({"a": torch.ones(3)}, tmp_path, metadata={name: "x"})
