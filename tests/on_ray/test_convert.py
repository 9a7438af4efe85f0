"""``streamer.ray.convert`` to a real S3: the nodes write the shards, the index comes last; a second call goes on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

pytest.importorskip("ray.cluster_utils", reason="Ray is installed by make test-ray alone")

from ray_nodes import LONG_S, through, until
from servers.forwarding import ForwardingProxy

import streamer

pytestmark = pytest.mark.slow
SHARD_BYTES = 400_000


def tensors():
    """Eight large tensors, two that share memory, a scalar, an empty one, and others of odd dtypes."""
    made = torch.Generator().manual_seed(1)
    found = {f"weight{number}": torch.rand(100_000, generator=made) for number in range(8)}
    found |= {"tied": found["weight0"], "scalar": torch.tensor(7), "empty": torch.zeros(0, 3)}
    return found | {"half": torch.rand(11, 3, generator=made).bfloat16(), "truth": torch.tensor([True, False])}


def save_bin(folder, named):
    """Two files and their index, as transformers wrote them before it used safetensors."""
    names = sorted(named)
    files = {"pytorch_model-00001-of-00002.bin": names[:5], "pytorch_model-00002-of-00002.bin": names[5:]}
    for file, some in files.items():
        torch.save({name: named[name] for name in some}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, some in files.items() for name in some}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "tokenizer.model").write_bytes(b"\x01\x02")
    (folder / "training_args.bin").write_bytes(b"no weights")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_bin(folder, tensors())
    return folder


@pytest.fixture
def place(s3_server, tmp_path):
    """Where the result goes, and the storage options for it."""
    return f"s3://private/ray-convert-{tmp_path.name}", s3_server.storage_options()


def shards_sent(proxy):
    return {path.partition("?")[0] for method, path in proxy.requests if method == "PUT" and "-of-" in path}


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def check_equal(uri, options, expected):
    found = streamer.load(uri, storage_options=options, verify="manifest")
    assert {name: bits(each) for name, each in found.items()} == {name: bits(each) for name, each in expected.items()}


def convert(model, uri, options, **how):
    return streamer.ray.convert(model, uri, target_options=options, **{"max_shard_bytes": SHARD_BYTES, **how})


def test_two_files_of_torch_become_shards_that_the_nodes_wrote_and_the_index_comes_last(
    nodes, s3_server, model, place, tmp_path
):
    uri, options = place
    with ForwardingProxy(s3_server.port, lambda method, path: None) as proxy:
        report = convert(model, uri, through(proxy, options))
        puts = [path for method, path in proxy.requests if method == "PUT"]
    assert "model.safetensors.index.json" in puts[-1]
    shards = [name for name in report.checkpoint.files if "-of-" in name]
    assert len(shards) >= 8
    assert sum(report.nodes.values()) >= 9 * SHARD_BYTES
    assert report.checkpoint.bytes >= sum(report.nodes.values())
    assert report.files is not None
    assert report.files.files == 2  # config.json and tokenizer.model
    check_equal(uri, options, tensors())
    streamer.pull(uri, tmp_path / "pulled", storage_options=options)
    there = {each.name for each in (tmp_path / "pulled").iterdir() if not each.name.startswith(".")}
    assert there == {*report.checkpoint.files, "config.json", "tokenizer.model"}


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_another_format_with_a_cast(nodes, tmp_path, form):
    named = {f"weight{number}": np.linspace(0, number, 100_000, dtype="f4") for number in range(6)}
    named["counts"] = np.arange(7)
    source, target = tmp_path / f"model.{form}", tmp_path / "target"
    if form == "npz":
        np.savez(source, **named)
    else:
        streamer.save(named, source)
    report = convert(source, target, None, dtype=torch.bfloat16)
    assert report.files is None
    expected = {name: torch.from_numpy(each) for name, each in named.items()}
    cast = {name: each.bfloat16() if each.is_floating_point() else each for name, each in expected.items()}
    check_equal(target, None, cast)


def test_a_single_shard_is_written_too(nodes, model, place):
    uri, options = place
    report = convert(model, uri, options, max_shard_bytes="1GB")
    assert report.checkpoint.files == ("model.safetensors.manifest.json", "model.safetensors")
    assert report.nodes == {}
    check_equal(uri, options, tensors())


def test_what_a_lost_node_was_to_write_is_written_by_another(nodes, s3_server, model, place):
    uri, options = place
    lost = nodes.add()

    def held(method, path):
        is_held = method == "PUT" and "-of-" in path and "00001-of" not in path and not proxy.released.is_set()
        return "hold" if is_held else None

    with ForwardingProxy(s3_server.port, held) as proxy, ThreadPoolExecutor() as pool:
        converting = pool.submit(convert, model, uri, through(proxy, options))
        until(lambda: len(shards_sent(proxy)) >= 4)  # the first, and then one on each node
        nodes.kill(lost)
        proxy.released.set()
        converting.result(LONG_S)
    check_equal(uri, options, tensors())


def test_a_node_that_fails_is_named_and_a_second_call_goes_on_and_a_third_is_refused(nodes, s3_server, model, place):
    uri, options = place

    def refusing(method, path):
        return (403, b"<Error><Code>AccessDenied</Code></Error>") if method == "PUT" and "00003-of" in path else None

    with ForwardingProxy(s3_server.port, refusing) as proxy:
        with pytest.raises(streamer.StorageError, match=r"node .+ could not convert '?model-00003-of") as caught:
            convert(model, uri, through(proxy, options))
        assert isinstance(caught.value.__cause__, streamer.AccessDeniedError)
        assert not [path for _, path in proxy.requests if "safetensors.index.json" in path]
    report = convert(model, uri, options)
    assert report.checkpoint.kept_bytes >= SHARD_BYTES
    check_equal(uri, options, tensors())
    with pytest.raises(streamer.UsageError, match="there is a checkpoint already"):
        convert(model, uri, options)


def test_shards_of_another_source_are_refused_and_replaced_with_overwrite(nodes, s3_server, model, place):
    uri, options = place

    def refusing(method, path):
        return (403, b"<Error><Code>AccessDenied</Code></Error>") if method == "PUT" and "00003-of" in path else None

    with ForwardingProxy(s3_server.port, refusing) as proxy, pytest.raises(streamer.StorageError):
        convert(model, uri, through(proxy, options))
    other = {name: each + 1 if each.is_floating_point() else each for name, each in tensors().items()}
    save_bin(model, other)
    (model / "config.json").write_text("{}")
    with pytest.raises(streamer.UsageError, match=r"shards of a save that did not end: .*, and not of this one"):
        convert(model, uri, options)
    convert(model, uri, options, overwrite=True)
    check_equal(uri, options, other)


def test_a_shard_that_another_program_wrote_meanwhile_is_an_error_and_stays(nodes, s3_server, model, place, tmp_path):
    uri, options = place
    folder = tmp_path / "other"
    folder.mkdir()

    def writing(method, path):
        if method == "PUT" and "00001-of" in path and not (folder / "done").exists():
            name = path.partition("?")[0].rpartition("/")[2].replace("00001-of", "00002-of")
            (folder / name).write_bytes(b"of another program")
            s3_server.upload_folder(folder, "private", uri.rpartition("/")[2])
            (folder / "done").touch()

    with (
        ForwardingProxy(s3_server.port, writing) as proxy,
        pytest.raises(streamer.StorageError, match=r"model-00002.*not what was converted") as caught,
    ):
        convert(model, uri, through(proxy, options))
    assert isinstance(caught.value.__cause__, streamer.ChecksumError)
    with pytest.raises(streamer.UsageError, match=r"there is a checkpoint already|and not of this one"):
        convert(model, uri, options)


def test_a_save_that_is_faster_wins(nodes, s3_server, model, place):
    uri, options = place
    saved, other = {}, {"faster": torch.ones(300_000), "fastest": torch.ones(300_000)}

    def saving(method, path):
        if method == "PUT" and "00001-of" in path and other:
            streamer.save(other, uri, storage_options=options, max_shard_bytes=1_200_000)
            saved.update(other)
            other.clear()

    with ForwardingProxy(s3_server.port, saving) as proxy, pytest.raises(streamer.StorageError):
        convert(model, uri, through(proxy, options))
    check_equal(uri, options, saved)


def test_a_source_that_changes_meanwhile_is_an_error_and_there_is_no_index(nodes, s3_server, model, place):
    uri, options = place

    def changing(method, path):
        if method == "PUT" and "00001-of" in path:
            save_bin(model, {name: each * 0 for name, each in tensors().items()})

    with (
        ForwardingProxy(s3_server.port, changing) as proxy,
        pytest.raises(streamer.StorageError, match=r"node .+ could not convert '?model-0000"),
    ):
        convert(model, uri, through(proxy, options))
    with pytest.raises(streamer.StreamerError):
        streamer.load(uri, storage_options=options)
