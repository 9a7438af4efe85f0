"""``streamer.compat.runai`` has the names of Run:ai's package, for installs without it."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import threading
from contextlib import suppress
from pathlib import Path

import fsspec
import pytest
import torch
from comparison import tensors_of
from safetensors.torch import save, save_file
from servers.seaweedfs import SeaweedServer

import streamer
from streamer.compat import runai
from streamer.compat.runai import variables
from streamer.compat.runai.file_streamer.file_streamer import RunaiStreamerInvalidInputException
from streamer.compat.runai.s3_utils import s3_utils
from streamer.compat.runai.safetensors_streamer import safetensors_pytorch
from streamer.compat.runai.safetensors_streamer.streamer_mock import StreamerPatcher
from streamer.core.errors import FormatError, TruncatedError

TENSORS = {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.tensor([True, False]), "none": torch.empty(0, 3)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "a.safetensors")
    save_file({"other": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "b.safetensors")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def memory_url(folder: Path) -> str:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), f"/{folder.name}", recursive=True)
    memory.pipe_file(f"/{folder.name}/in/deep.json", b"[]")
    return f"memory://{folder.name}"


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what `install` does."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def streamed(paths: list[str], **how: object) -> dict[str, torch.Tensor]:
    with runai.SafetensorsStreamer() as reading:
        reading.stream_files(paths, **how)  # type: ignore[arg-type]
        return dict(reading.get_tensors())


def test_tensors_of_files_arrive_and_own_their_memory(folder: Path) -> None:
    paths = sorted(runai.list_safetensors(str(folder)))
    assert paths == [f"{folder}/a.safetensors", f"{folder}/b.safetensors"]
    tensors = streamed(paths, device=None)
    assert tensors.keys() == {*TENSORS, "other"}
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
    assert len({each.untyped_storage().data_ptr() for each in tensors.values() if each.numel()}) == 3


@pytest.mark.server
def test_a_checkpoint_of_s3_is_read_with_credentials_of_the_caller(
    s3_server: SeaweedServer, s3_checkpoint: str, checkpoint: Path
) -> None:
    keys = s3_utils.S3Credentials(s3_server.access_key, s3_server.secret_key, None, "us-east-1", s3_server.endpoint_url)
    paths = runai.list_safetensors(s3_checkpoint, keys)
    tensors = streamed(paths, s3_credentials=keys)
    expected = tensors_of(checkpoint)
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert s3_server.secret_key not in repr(keys)


def test_only_what_is_named_is_read(folder: Path) -> None:
    path = f"{folder}/a.safetensors"
    assert streamed([path], tensor_names=("bias",)).keys() == {"bias"}
    with runai.SafetensorsStreamer() as reading:
        reading.stream_file(path, tensor_names={"weight"})
        (tensor,) = reading.files_to_tensors_metadata[0]
        assert (tensor.name, tensor.shape, tensor.dtype, tensor.get_bytesize()) == ("weight", [3, 4], "F32", 48)
        assert (tensor.get_item_count(), tensor.get_torch_dtype()) == (12, torch.float32)
        assert reading.total_size == 48


def test_one_path_in_place_of_a_list_is_refused(folder: Path) -> None:
    with runai.SafetensorsStreamer() as reading, pytest.raises(streamer.OptionError, match=r"a list.*stream_file"):
        reading.stream_files(f"{folder}/a.safetensors")  # type: ignore[arg-type]


@pytest.mark.parametrize(("names", "reported"), [("weight", "str"), ([], "empty"), (["nowhere"], "nowhere")])
def test_names_that_cannot_be_meant_are_refused(folder: Path, names: object, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        streamed([f"{folder}/a.safetensors"], tensor_names=names)


def test_headers_are_described(folder: Path) -> None:
    path = folder / "a.safetensors"
    ((begin, tensors, sizes),) = safetensors_pytorch.prepare_request(None, [str(path)], None)
    assert begin == 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert sizes == [each.get_bytesize() for each in tensors]
    assert sum(sizes) == path.stat().st_size - begin


def test_ranges_of_files_arrive_as_bytes(memory_url: str) -> None:
    content = fsspec.filesystem("memory").cat_file(f"{memory_url}/a.safetensors")
    chunks = [
        runai.FileChunks(7, f"{memory_url}/a.safetensors", [8, 0, 4], [4, 8, 0]),
        runai.FileChunks.contiguous(9, f"{memory_url}/config.json", 0, [1, 1]),
    ]
    assert (chunks[0].total_size(), chunks[0].max_chunk_size(), chunks[1].offsets) == (12, 8, [0, 1])
    with runai.DistributedStreamer() as reading:
        reading.stream_files(chunks, is_distributed=True)
        found = {(file, index): bytes(tensor.numpy()[0]) for file, index, tensor in reading.get_chunks()}
        assert reading.ring_info() is None
    expected = {(7, 0): content[8:12], (7, 1): content[:8], (7, 2): b"", (9, 0): b"{", (9, 1): b"}"}
    assert found == expected


def test_a_second_stream_waits_for_the_end_of_the_first(folder: Path) -> None:
    path = f"{folder}/a.safetensors"
    with runai.FileStreamer() as reading:
        reading.stream_files([runai.FileChunks(0, path, [0], [8])])
        with pytest.raises(ValueError, match="not read to its end"):
            reading.stream_files([runai.FileChunks(0, path, [0], [8])])
        next(reading.get_chunks())
    with runai.FileStreamer() as reading, pytest.raises(TruncatedError):
        reading.stream_files([runai.FileChunks(0, path, [0], [1 << 40])])
    with runai.FileStreamer() as reading, pytest.raises(RunaiStreamerInvalidInputException, match="nosuch"):
        reading.stream_files([], device="nosuch")


def test_files_are_pulled_by_pattern(memory_url: str, tmp_path: Path) -> None:
    target = tmp_path / "pulled"
    runai.pull_files(memory_url, str(target), ["*.json"], ["config*"])
    assert [each for each in target.rglob("*") if each.is_file()] == [target / "in/deep.json"]
    with pytest.raises(NotImplementedError):
        runai.pull_files(str(tmp_path), str(target))


def test_a_listed_name_that_leads_out_of_the_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, memory_url: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(s3_utils, "listed_files", lambda base, *_, **__: [(f"{base}../out.json", 2)])
    with pytest.raises(FormatError, match="segment"):
        runai.pull_files(memory_url, str(tmp_path / "in"))
    assert list(tmp_path.glob("out*")) == []


def test_the_first_process_pulls_a_model_and_the_others_use_it(memory_url: str, tmp_path: Path) -> None:
    target = str(tmp_path / "model")
    pulled = []

    def pull() -> None:
        with runai.ObjectStorageModel(memory_url, target) as model:
            if not model._skip:
                pulled.append(threading.get_ident())
            model.pull_files(["*.json"])
            assert Path(model.dir, "config.json").read_text() == "{}"

    threads = [threading.Thread(target=pull) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pulled) == 1


def test_a_model_that_was_not_pulled_to_its_end_is_pulled_again(memory_url: str, tmp_path: Path) -> None:
    target = str(tmp_path / "model")
    with suppress(KeyError), runai.ObjectStorageModel(memory_url, target) as model:
        model.pull_files(["*.json"])
        raise KeyError
    with runai.ObjectStorageModel(memory_url, f"{target}/") as model:
        assert list(Path(target).iterdir()) == []
        model.pull_files(ignore_pattern=["*.json"])
    with pytest.raises(RuntimeError, match="No files"), runai.ObjectStorageModel(memory_url, f"{target}-2") as model:
        model.pull_files(["nothing"])
    with pytest.raises(ValueError, match="no URL"):
        runai.ObjectStorageModel("/a/folder", target)


def test_a_folder_stands_for_a_bucket(folder: Path, tmp_path: Path) -> None:
    patcher = StreamerPatcher(str(folder.parent))
    listed = patcher.shim_list_safetensors(f"s3://bucket/{folder.name}")
    assert sorted(listed) == [f"s3://bucket/{folder.name}/{name}.safetensors" for name in "ab"]
    with patcher.create_mock_streamer() as reading:
        reading.stream_file(listed[0])
        assert dict(reading.get_tensors())
    patcher.shim_pull_files(f"gs://bucket/{folder.name}", str(tmp_path / "to"), ["*.json"])
    assert [each.name for each in (tmp_path / "to").iterdir()] == ["config.json"]


@pytest.mark.usefixtures("imports")
def test_run_ais_name_is_ours_after_install() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("runai_model_streamer")
    assert runai.install()
    assert runai.install()
    theirs = importlib.import_module("runai_model_streamer")
    assert theirs.SafetensorsStreamer is runai.SafetensorsStreamer
    spec = importlib.util.find_spec("runai_model_streamer")
    assert spec is not None
    assert spec is theirs.__spec__
    mock = importlib.import_module("runai_model_streamer.safetensors_streamer.streamer_mock")
    assert mock.StreamerPatcher is StreamerPatcher
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("runai_model_streamer.nowhere")


@pytest.mark.usefixtures("imports")
def test_a_package_of_run_ais_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runai_model_streamer.py").write_text("is_theirs = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert not runai.install()
    assert "STREAMER_LIBRARY" in caplog.text
    assert importlib.import_module("runai_model_streamer").is_theirs


def test_the_signatures_are_those_of_0_17() -> None:
    def parameters(function: object) -> list[str]:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]

    of_files = ["s3_credentials", "device", "is_distributed", "tensor_names", "owned"]
    assert parameters(runai.SafetensorsStreamer.stream_files) == ["self", "paths", *of_files]
    assert parameters(runai.SafetensorsStreamer.stream_file) == ["self", "path", *of_files]
    assert parameters(runai.FileStreamer.stream_files) == [
        *("self", "file_stream_requests", "credentials", "device", "memory_limit", "owned")
    ]
    assert parameters(runai.DistributedStreamer.stream_files) == [
        *("self", "file_stream_requests", "credentials", "device", "is_distributed", "owned")
    ]
    assert parameters(runai.ObjectStorageModel) == ["model_path", "dst", "s3_credentials"]
    pulls = ["model_path", "dst", "allow_pattern", "ignore_pattern", "s3_credentials"]
    assert parameters(runai.pull_files) == parameters(s3_utils.gcs_pull_files) == pulls
    assert parameters(runai.list_safetensors) == ["path", "s3_credentials"]


def test_variables_of_run_ai_are_options_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {
        "CONCURRENCY": "6",
        "CHUNK_BYTESIZE": "1",
        "S3_UNSIGNED": "true",
        "S3_USE_VIRTUAL_ADDRESSING": "0",
        "GCS_CREDENTIAL_FILE": "/a/key.json",
        "FS_QUEUE_DEPTH": "9",
    }.items():
        monkeypatch.setenv(f"RUNAI_STREAMER_{name}", value)
    monkeypatch.setattr(variables, "_logged", set())
    with caplog.at_level(logging.DEBUG):
        options = variables.options_from_environment()
    assert (options.file_threads, options.block_bytes) == (6, 64 << 10)
    assert "RUNAI_STREAMER_FS_QUEUE_DEPTH has no meaning" in caplog.text
    assert "CONCURRENCY" not in caplog.text
    s3 = {"anon": True, "config_kwargs": {"s3": {"addressing_style": "path"}}}
    assert variables.storage_options_for("s3://b/k", {}) == s3
    assert variables.storage_options_for("gs://b/k", {}) == {"token": "/a/key.json"}
    assert variables.storage_options_for("/k", {"access_key_id": "a"}) == {}
    monkeypatch.setenv("STREAMER_FILE_THREADS", "3")
    monkeypatch.setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "many")
    assert variables.options_from_environment() == variables.Options()


def test_a_file_with_a_tensor_that_another_has_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.safetensors").write_bytes(save({"same": torch.ones(1)}))
    with pytest.raises(FormatError, match="same"):
        streamed([f"{tmp_path}/a.safetensors", f"{tmp_path}/b.safetensors"])
