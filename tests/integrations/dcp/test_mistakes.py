"""What a damaged, foreign or malicious checkpoint of DCP leads to: an error of ours that says what to do."""

from __future__ import annotations

import fractions
import io
import mmap
import os
import pickle
import shutil
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from each_row import each_row
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

import streamer
from streamer.integrations.dcp import saved_items

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

LARGE = (600, 512)


def blank():
    return {"large": torch.zeros(LARGE), "small": torch.zeros(3), "step": 0}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "step"
    dcp.save({"large": torch.ones(LARGE), "small": torch.ones(3), "step": 7}, checkpoint_id=path)
    return path


def error_of(uri, found=None, **how):
    """Return our error, which torch wraps."""
    reader = streamer.dcp.StorageReader(uri, **how)
    reader.read_metadata()
    with pytest.raises(CheckpointException) as caught:
        dcp.load(blank() if found is None else found, storage_reader=reader)
    (error, _) = caught.value.failures[0]
    return error


def test_an_absent_folder_is_an_error(tmp_path):
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.dcp.StorageReader(tmp_path / "absent").read_metadata()


def test_the_error_of_torch_has_our_message(tmp_path):
    with pytest.raises(CheckpointException) as caught:
        dcp.load(blank(), storage_reader=streamer.dcp.StorageReader(tmp_path / "absent"))
    assert "absent" in str(caught.value.failures[0][0])


def malformed(path):
    path.mkdir()
    (path / ".metadata").write_bytes(b"garbage")
    return path


@pytest.mark.parametrize(
    ("make", "reported"),
    [
        (lambda path: path, "No such file or folder"),
        (malformed, "the pickle is malformed"),
        (lambda path: "http://127.0.0.1:9/step", "No connection to the server"),
    ],
    ids=["absent", "malformed", "refused"],
)
def test_a_failed_load_prints_our_line_once_regression(tmp_path, make, reported):
    with pytest.raises(CheckpointException) as caught:
        dcp.load(blank(), storage_reader=streamer.dcp.StorageReader(make(tmp_path / "step")))
    assert str(caught.value).count(reported) == 1


def test_a_reader_raises_the_error_of_another_load_too(folder, tmp_path):
    reader = streamer.dcp.StorageReader(tmp_path / "absent")
    for _ in range(2):
        with pytest.raises(CheckpointException, match="absent"):
            dcp.load(blank(), storage_reader=reader)
    reader.reset(folder)
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.dcp.StorageReader(tmp_path / "absent").read_metadata(rank=0)
    assert reader.read_metadata().state_dict_metadata.keys() == blank().keys()


@pytest.mark.parametrize(
    ("names", "reported"),
    [
        (["config.json"], r"holds no \.metadata, but config\.json\. Check the URL"),
        (["__0_0.distcp", "__1_0.distcp"], r"holds no \.metadata, but __0_0.* Its save was not finished"),
        (["__0.metadata", "__0_0.distcp"], r"Each process saved its own part: there is __0\.metadata"),
    ],
    ids=["nothing", "unfinished", "by rank"],
)
def test_a_folder_without_a_checkpoint(tmp_path, names, reported):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(streamer.ObjectNotFoundError, match=reported):
        streamer.dcp.StorageReader(tmp_path).read_metadata()


def test_a_file_that_is_missing(folder):
    (folder / "__0_0.distcp").unlink()
    error = error_of(folder)
    assert isinstance(error, streamer.ObjectNotFoundError)
    assert "the metadata name the file '__0_0.distcp', which does not exist. Upload the whole folder" in str(error)


def test_a_file_that_is_truncated(folder):
    path = folder / "__0_0.distcp"
    os.truncate(path, path.stat().st_size - 1)
    error = error_of(folder)
    assert isinstance(error, streamer.TruncatedError)
    assert "ends at byte" in str(error)
    assert error.object_size == path.stat().st_size


def test_a_file_that_is_truncated_while_nothing_of_its_end_is_wanted(folder):
    path = folder / "__0_0.distcp"
    os.truncate(path, path.stat().st_size - 1)
    ends = {}
    for name, info in streamer.dcp.StorageReader(folder).read_metadata().storage_data.items():
        ends[name.fqn] = info.offset + info.length
    first = min(ends, key=ends.__getitem__)
    found = {first: blank()[first]}
    dcp.load(found, storage_reader=streamer.dcp.StorageReader(folder))
    assert found[first] == 7 or bool((found[first] == 1).all())


class Runs:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_malicious_metadata_do_not_run(folder, tmp_path):
    (folder / ".metadata").write_bytes(pickle.dumps(Runs(tmp_path / "proof")))
    with pytest.raises(streamer.FormatError, match="nothing of it was run") as caught:
        streamer.dcp.StorageReader(folder).read_metadata()
    assert caught.value.uri == str(folder / ".metadata")
    assert not (tmp_path / "proof").exists()


def test_dcp_load_reports_what_is_wrong_with_the_metadata(folder):
    (folder / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(CheckpointException) as caught:
        dcp.load(blank(), storage_reader=streamer.dcp.StorageReader(folder))
    (error, _) = caught.value.failures[0]
    assert f"{folder / '.metadata'}: the pickle is malformed" in str(error)
    assert "holds no" not in str(error)  # torch asks for the metadata of a rank afterwards, and tells both errors


def test_a_malicious_value_does_not_run(tmp_path):
    """torch's own planner unpickles values with all that pickles can do."""
    dcp.save({"step": Runs(tmp_path / "proof")}, checkpoint_id=tmp_path / "step")
    error = error_of(tmp_path / "step", {"step": 0})
    assert isinstance(error, streamer.FormatError)
    assert "names 'posix.mkdir', which may run code, and was not run" in str(error)
    assert not (tmp_path / "proof").exists()


def test_a_class_that_the_user_allows_is_loaded(tmp_path):
    dcp.save({"step": fractions.Fraction(1, 3)}, checkpoint_id=tmp_path)
    error = error_of(tmp_path, {"step": 0})
    assert "names 'fractions.Fraction'" in str(error)
    assert "torch.serialization.add_safe_globals" in str(error)
    found = {"step": 0}
    with torch.serialization.safe_globals([fractions.Fraction]):
        dcp.load(found, storage_reader=streamer.dcp.StorageReader(tmp_path))
    assert found == {"step": fractions.Fraction(1, 3)}


def changed(folder, change):
    """Write the checkpoint's metadata with one of its items changed."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    for index, info in metadata.storage_data.items():
        change(index.fqn, info)
    path.write_bytes(pickle.dumps(metadata))


def overwritten(folder, name, data):
    """Write other bytes over an item."""
    infos = {index.fqn: info for index, info in pickle.loads((folder / ".metadata").read_bytes()).storage_data.items()}
    with (folder / infos[name].relative_path).open("r+b") as file:
        file.seek(infos[name].offset)
        file.write(data(infos[name].length))


def test_an_encrypted_item_is_an_error(folder):
    changed(folder, lambda name, info: setattr(info, "transform_descriptors", ["stream.secret/1"]))
    error = error_of(folder)
    assert isinstance(error, streamer.FormatError)
    assert "was saved with 'stream.secret/1', which this reader cannot undo" in str(error)
    assert "FsspecReader" in str(error)


@pytest.mark.parametrize("name", ["large", "small", "step"])
def test_a_damaged_item_is_an_error(folder, name):
    overwritten(folder, name, bytes)
    error = error_of(folder)
    assert isinstance(error, streamer.FormatError)
    assert f"item '{name}' is damaged, or was not written by torch.save" in str(error)


@pytest.mark.parametrize("value", [torch.ones(2), torch.ones(3, 1), [1, 2]], ids=["fewer", "another rank", "a list"])
def test_an_item_that_contradicts_the_metadata_is_an_error(folder, value):
    saved = io.BytesIO()
    torch.save(value, saved)
    (folder / "other.distcp").write_bytes(saved.getvalue())

    def change(name, info):
        if name == "small":
            info.relative_path, info.offset, info.length = "other.distcp", 0, len(saved.getvalue())

    changed(folder, change)
    error = error_of(folder)
    assert isinstance(error, streamer.FormatError)
    assert "item 'small'" in str(error)


def test_a_tensor_of_another_shape_in_a_large_item(folder):
    saved = io.BytesIO()
    torch.save(torch.ones(LARGE[1], LARGE[0]), saved)
    overwritten(folder, "large", lambda length: saved.getvalue() if length == len(saved.getvalue()) else b"")
    error = error_of(folder)
    assert isinstance(error, streamer.FormatError)
    assert "item 'large' has shape [512, 600], the metadata another one" in str(error)


def test_an_item_without_metadata_is_an_error(folder):
    reader = streamer.dcp.StorageReader(folder)
    metadata = reader.read_metadata()
    (index,) = (index for index in metadata.storage_data if index.fqn == "small")
    absent = type(index)("absent", index.offset)
    request = ReadItem(LoadItemType.TENSOR, index, torch.Size([0]), absent, torch.Size([0]), torch.Size([3]))
    with pytest.raises(streamer.FormatError, match="the metadata have no place for 'absent'"):
        reader.read_data(LoadPlan([request]), DefaultLoadPlanner())


def test_a_missing_name_and_another_shape_are_torch_s_errors(folder):
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: absent"):
        dcp.load({"absent": torch.zeros(1)}, storage_reader=streamer.dcp.StorageReader(folder))
    with pytest.raises(CheckpointException, match="Size mismatch"):
        dcp.load({"small": torch.zeros(4)}, storage_reader=streamer.dcp.StorageReader(folder))


class OfAnotherShape(DefaultLoadPlanner):
    def resolve_tensor(self, read_item):
        return torch.zeros(5)


def test_a_planner_that_gives_another_shape(folder):
    reader = streamer.dcp.StorageReader(folder)
    with pytest.raises(CheckpointException) as caught:
        dcp.load({"small": torch.zeros(3)}, storage_reader=reader, planner=OfAnotherShape())
    (error, _) = caught.value.failures[0]
    assert isinstance(error, streamer.TargetError)
    assert "tensor 'small' has a part of shape [3] to load, its target [5]" in str(error)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch says so once in each process
def test_memory_that_may_not_be_written(folder, tmp_path):
    (tmp_path / "zeros").write_bytes(bytes(LARGE[0] * LARGE[1] * 4))
    with (tmp_path / "zeros").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    target = torch.frombuffer(mapped, dtype=torch.float32).view(LARGE)
    error = error_of(folder, {"large": target})
    assert isinstance(error, streamer.TargetError)
    assert "is read-only" in str(error)


@each_row(
    ("arguments", "named", "kind"),
    [
        ((3,), {}, streamer.UsageError),
        (("",), {}, streamer.UsageError),
        ((["a", "b"],), {}, streamer.UsageError),
        (("a",), {"storage_options": 3}, streamer.OptionError),
        (("a",), {"options": {"deadline_s": 3}}, streamer.OptionError),
        (("a",), {"fs": "s3"}, streamer.OptionError),
    ],
)
def test_wrong_arguments(arguments, named, kind):
    with pytest.raises(kind):
        streamer.dcp.StorageReader(*arguments, **named)


def test_data_before_metadata(folder):
    with pytest.raises(streamer.UsageError, match="read_data was called before read_metadata"):
        streamer.dcp.StorageReader(folder).read_data(LoadPlan([]), DefaultLoadPlanner())


def test_an_unknown_scheme():
    with pytest.raises(streamer.UnknownSchemeError):
        streamer.dcp.StorageReader("nosuchscheme://bucket/step").read_metadata()


def test_a_dtype_that_this_torch_lacks(tmp_path, monkeypatch):
    dcp.save({"w": torch.ones(3).to(torch.float8_e8m0fnu)}, checkpoint_id=tmp_path)
    monkeypatch.delattr(torch, "float8_e8m0fnu")
    with pytest.raises(streamer.FormatError, match=r"has no dtype .float8_e8m0fnu. .* Use a newer torch"):
        streamer.dcp.StorageReader(tmp_path).read_metadata()


def test_an_archive_with_code_beside_its_tensor_is_not_run(folder, tmp_path):
    """The tensor's bytes are where they should be; its pickle is not."""
    saved = io.BytesIO()
    torch.save(torch.ones(LARGE), saved)
    evil = pickle.dumps(Runs(tmp_path / "proof"), 2)
    with zipfile.ZipFile(io.BytesIO(saved.getvalue())) as archive:
        plain = archive.read("archive/data.pkl")
    data = saved.getvalue().replace(plain, evil.ljust(len(plain), b"."))
    overwritten(folder, "large", lambda length: data if length == len(data) else b"")
    error = error_of(folder)
    assert isinstance(error, streamer.FormatError)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("begin", [None, 640], ids=["straight", "read again"])
def test_a_file_that_is_replaced_during_the_load_is_noticed(folder, tmp_path, monkeypatch, begin):
    dcp.save({"large": torch.zeros(LARGE), "small": torch.zeros(3), "step": 8}, checkpoint_id=tmp_path / "other")
    guess = saved_items.begin_of_data

    def replaced(head):
        (tmp_path / "other/__0_0.distcp").rename(folder / "__0_0.distcp")
        return begin or guess(head)

    monkeypatch.setattr(saved_items, "begin_of_data", replaced)
    assert isinstance(error_of(folder), streamer.ChangedError)


def test_a_copy_elsewhere_is_the_same_checkpoint(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    found = blank()
    dcp.load(found, storage_reader=streamer.dcp.StorageReader(tmp_path / "copy"))
    assert bool((found["large"] == 1).all())
    assert found["step"] == 7
