"""What a checkpoint says beside its tensors is said by the checkpoint that is saved from it, too."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from each_row import each_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import streamer
import streamer.compat.safetensors.torch as compat
from streamer._cli import main
from streamer._save.saved_tensors import MOST_READ_BYTES, SavedTensors

KEY = bytes(range(32))
NOTES = {"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": 4}), "step": "3", "ü\n": "née"}
TENSORS = {"a": torch.arange(6.0), "b": torch.ones(2, 3, dtype=torch.float16), "c": torch.ones(2, dtype=torch.uint8)}

Made = tuple[Path, dict[str, str]]


def of_safetensors(folder: Path) -> Made:
    save_file(TENSORS, folder / "model.safetensors", NOTES | {"format": "mlx"})
    return folder, NOTES | {"format": "mlx"}


def of_shards(folder: Path) -> Made:
    streamer.save(TENSORS, folder, max_shard_bytes=1, metadata=NOTES)
    return folder, NOTES


def of_encrypted(folder: Path) -> Made:
    streamer.save(TENSORS, folder, metadata=NOTES, key=KEY)
    return folder, NOTES


def of_pickle(folder: Path) -> Made:
    torch.save(OrderedDict(state=TENSORS, epoch=3, name="née"), folder / "pytorch_model.bin")
    return folder, {"epoch": "3", "name": "née"}


SOURCES = {each.__name__: each for each in (of_safetensors, of_shards, of_encrypted, of_pickle)}
VERBS: dict[str, Callable[[Any, Path, dict[str, Any]], Any]] = {
    "save": lambda tensors, to, how: streamer.save(tensors, to, **how),
    "save_model": lambda tensors, to, how: streamer.save_model(tensors, to, **how),
    "asave": lambda tensors, to, how: asyncio.run(streamer.asave(tensors, to, **how)),
}
HOW: list[dict[str, Any]] = [
    {},
    {"max_shard_bytes": 1},
    {"key": KEY},
    {"key": KEY, "hide_names": True},
    {"digests": False},
]
TAKEN: dict[str, Callable[[Any], Any]] = {
    "all": lambda checkpoint: checkpoint,
    "some": lambda checkpoint: {name: checkpoint[name] for name in checkpoint.keys()[:1]},
    "renamed, with another": lambda checkpoint: {"new": checkpoint[checkpoint.keys()[0]], "more": torch.zeros(2)},
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    *map(st.sampled_from, (sorted(SOURCES), sorted(VERBS), HOW, sorted(TAKEN), [None, "bfloat16"])),
    st.sampled_from([{}, {"step": "4"}, {"mine": "yes"}]),
)
def test_notes_survive_every_way_of_saving(
    tmp_path_factory: pytest.TempPathFactory,
    source: str,
    verb: str,
    how: dict[str, Any],
    taken: str,
    dtype: str | None,
    own: dict[str, str],
) -> None:
    folder = tmp_path_factory.mktemp("notes")
    (folder / "source").mkdir()
    path, notes = SOURCES[source](folder / "source")
    key = {"key": KEY} if source == "of_encrypted" else {}
    with streamer.open(path, dtype=dtype, **key) as checkpoint:
        VERBS[verb](TAKEN[taken](checkpoint), folder / "saved", how | {"metadata": own})
    with streamer.open(folder / "saved", **({"key": how["key"]} if "key" in how else {})) as saved:
        assert saved.metadata() == {"format": "pt"} | notes | own


def test_two_checkpoints_that_differ_need_a_word_of_the_caller(tmp_path: Path) -> None:
    for number in (1, 2):
        save_file({f"t{number}": torch.zeros(2)}, tmp_path / f"{number}.safetensors", {"step": str(number), "by": "me"})
    first, second = (streamer.open(tmp_path / f"{number}.safetensors") for number in (1, 2))
    both = {"t1": first["t1"], "t2": second["t2"]}
    with pytest.raises(streamer.UsageError, match=r"differ in their metadata 'step'.*metadata="):
        streamer.save(both, tmp_path / "both")
    assert not (tmp_path / "both").exists()
    streamer.save(both, tmp_path / "both", metadata={"step": "1 and 2"})
    with streamer.open(tmp_path / "both") as saved:
        assert saved.metadata() == {"format": "pt", "by": "me", "step": "1 and 2"}


@pytest.mark.parametrize(("dtype", "times"), [(None, 1), ("float32", 1), ("bfloat16", 1.5), ("float64", 3)])
def test_a_cast_counts_the_memory_before_it_regression(dtype: str | None, times: float, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1000)}, tmp_path / "a.safetensors")
    with streamer.open(tmp_path / "a.safetensors", dtype=dtype) as checkpoint:
        tensors = SavedTensors(checkpoint)
        assert tensors.held_bytes(tensors.layouts[0]) == 4000 * times


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_rows_are_read_so_that_both_dtypes_fit_regression(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer._save.saved_tensors.MOST_READ_BYTES", 1200)
    save_file({"a": torch.arange(1000.0).reshape(50, 20)}, tmp_path / "a.safetensors")
    with streamer.open(tmp_path / "a.safetensors", dtype=dtype) as checkpoint:
        tensors = SavedTensors(checkpoint)
        (layout,) = tensors.layouts
        assert tensors.held_bytes(layout) <= 1200 < MOST_READ_BYTES
        pieces = [*tensors.pieces(layout)]
        assert len(pieces) > 1
        assert np.frombuffer(b"".join(pieces), "u1").size == layout.size_bytes


def test_attributes_of_tensors_are_remarked(tmp_path: Path) -> None:
    weight, bias = torch.nn.Parameter(torch.ones(3)), torch.nn.Buffer(torch.ones(2))
    assert streamer.save({"w": weight, "b": bias}, tmp_path / "plain").remarks == ()
    weight.scale, weight._own = torch.ones(1), True  # type: ignore[attr-defined]
    report = streamer.save({"w": weight, "b": bias}, tmp_path / "more")
    assert report.remarks == ("attributes of tensors are not saved: w.scale",)
    assert str(report).endswith("; note: attributes of tensors are not saved: w.scale")


def adapter(folder: Path) -> Path:
    save_file(TENSORS, folder / "lora.safetensors", NOTES)
    return folder / "lora.safetensors"


LOADS: dict[str, Callable[[Path], Any]] = {
    "load": streamer.load,
    "aload": lambda path: asyncio.run(streamer.aload(path)),
    "some": lambda path: streamer.load(path, names="a"),
    "cast": lambda path: streamer.load(path, dtype="bfloat16"),
    "a copy": lambda path: streamer.load(path).copy(),
    "opened": lambda path: streamer.open(path).get_tensors(),
    "of numpy": lambda path: streamer.load(path, framework="np"),
}


@each_row("verb", sorted(VERBS))
@each_row("load", sorted(LOADS))
def test_the_strength_of_an_adapter_that_was_loaded_is_saved_regression(tmp_path: Path, load: str, verb: str) -> None:
    tensors = LOADS[load](adapter(tmp_path))
    VERBS[verb](tensors, tmp_path / "saved", {"metadata": {"step": "4"}})
    with streamer.open(tmp_path / "saved") as saved:
        assert saved.metadata() == {"format": "pt"} | NOTES | {"step": "4"}


def test_the_strength_of_an_adapter_reaches_a_url_by_the_names_of_safetensors_regression(tmp_path: Path) -> None:
    compat.save_file(streamer.load(adapter(tmp_path)), f"file://{tmp_path}/other.safetensors")
    with streamer.open(tmp_path / "other.safetensors") as saved:
        assert saved.metadata() == {"format": "pt"} | NOTES


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_notes_of_a_checkpoint_without_tensors_are_saved_regression(tmp_path: Path, verb: str) -> None:
    torch.save({"epoch": 3}, tmp_path / "model.pt")
    with streamer.open(tmp_path / "model.pt") as checkpoint:
        VERBS[verb](checkpoint, tmp_path / "saved", {})
    with streamer.open(tmp_path / "saved") as saved:
        assert saved.metadata() == {"format": "pt", "epoch": "3"}


def quantised(path: Path, types: dict[str, str]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, kind in types.items():
        blocks = np.zeros((4, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]), np.uint8)
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.add_tensor("plain", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("is_copied", [False, True], ids=["of GGUF", "of its copy"])
def test_types_of_blocks_follow_the_names_of_their_tensors_regression(tmp_path: Path, is_copied: bool) -> None:
    paths = [
        quantised(tmp_path / "one.gguf", {"q": "Q4_0", "k": "Q8_0"}),
        quantised(tmp_path / "two.gguf", {"q": "Q6_K"}),
    ]
    if is_copied:
        for number, path in enumerate(paths):
            with streamer.open(path) as checkpoint:
                paths[number] = tmp_path / f"{number}"
                streamer.save(checkpoint, paths[number])
    with streamer.open(paths[0]) as one, streamer.open(paths[1]) as two:
        wanted = [
            ({"x": one["q"], "q": one["plain"]}, {"x": "Q4_0"}),
            ({"plain": one["plain"]}, {}),
            ({"k": one["k"], "more": torch.zeros(2)}, {"k": "Q8_0"}),
            ({"q": one["q"], "other": two["q"], "plain": two["plain"]}, {"q": "Q4_0", "other": "Q6_K"}),
            ({**one}, {"q": "Q4_0", "k": "Q8_0"}),
        ]
        for number, (tensors, types) in enumerate(wanted):
            streamer.save(tensors, tmp_path / f"saved{number}")
            with streamer.open(tmp_path / f"saved{number}") as saved:
                assert json.loads(saved.metadata()["streamer.ggml_types"]) == types


@pytest.mark.parametrize("text", ["{", "[]", "3", '["q"]', '{"a": 1}'])
def test_another_value_under_the_name_of_these_types_ends_no_save(tmp_path: Path, text: str) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors", {"streamer.ggml_types": text})
    with streamer.open(tmp_path / "model.safetensors") as checkpoint:
        streamer.save({"b": checkpoint["b"]}, tmp_path / "saved")
    assert streamer.load(tmp_path / "saved").keys() == {"b"}


@each_row("source", ["names", "metadata"])
@each_row("verb", sorted(VERBS))
@each_row("key", [None, KEY])
def test_what_a_load_would_take_for_an_encrypted_file_is_not_saved_regression(
    tmp_path: Path, source: str, verb: str, key: bytes | None
) -> None:
    name = "streamer.header-00001-of-00001" if source == "names" else "streamer.encryption"
    torch.save({name: torch.ones(2) if source == "names" else "{}", "w": torch.ones(2)}, tmp_path / "model.pt")
    with (
        streamer.open(tmp_path / "model.pt") as checkpoint,
        pytest.raises(streamer.UsageError, match="belongs to the format of encrypted files"),
    ):
        VERBS[verb](checkpoint, tmp_path / "saved", {"key": key} if key else {})
    assert not (tmp_path / "saved").exists()


def shards_that_differ(folder: Path, kind: str) -> None:
    """Write five shards; each has its number under one key, and a key of its own."""
    for number in range(5):
        tensors, own = {f"t{number}": torch.full((4,), float(number))}, {"lora_alpha": str(number), f"k{number}": "x"}
        if kind == "safetensors":
            save_file(tensors, folder / f"model-0000{number + 1}-of-00005.safetensors", {"format": "pt"} | own)
        else:
            torch.save(tensors | own, folder / f"pytorch_model-0000{number + 1}-of-00005.bin")


@each_row("kind", ["safetensors", "pickles"])
@each_row("verb", VERBS)
@each_row("taken", [dict, lambda checkpoint: checkpoint, lambda checkpoint: {"t": checkpoint["t0"]}])
def test_shards_that_differ_need_a_word_of_the_caller_regression(
    verb: str, taken: Callable[[Any], Any], kind: str, tmp_path: Path
) -> None:
    """The last shard's value was saved for all, and only a remark in the report said so."""
    (tmp_path / "source").mkdir()
    shards_that_differ(tmp_path / "source", kind)
    with streamer.open(tmp_path / "source") as checkpoint:
        with pytest.raises(streamer.UsageError, match=r"differ in their metadata 'lora_alpha'\..*metadata="):
            VERBS[verb](taken(checkpoint), tmp_path / "saved", {"max_shard_bytes": 48})
        assert not (tmp_path / "saved").exists()
        chosen = {"max_shard_bytes": 48, "metadata": {"lora_alpha": "8"}}
        assert VERBS[verb](taken(checkpoint), tmp_path / "saved", chosen).remarks == ()
    with streamer.open(tmp_path / "saved") as saved:
        assert saved.metadata() == {"format": "pt", "lora_alpha": "8"} | {f"k{number}": "x" for number in range(5)}


NOTE_KEYS = st.sampled_from(
    ["t0", "t1.weight", "__metadata__", "ss_network_alpha", "modelspec.title", "", "data_offsets"]
)
NOTE_TEXTS = st.one_of(st.sampled_from(["", "0.5", '{"t0": [1]}', "é\0\n\u2028😀", "x" * 70_000]), st.text(max_size=9))


def copied(command: str) -> Callable[[Path, Path], Any]:
    return lambda source, to: CliRunner().invoke(main, [command, str(source), str(to)], catch_exceptions=False)


def saved_with(opened: dict[str, Any] | None = None, **how: Any) -> Callable[[Path, Path], Any]:
    return lambda source, to: streamer.save(streamer.open(source, **(opened or {})), to, **how)


def twice(source: Path, to: Path) -> None:
    streamer.save(streamer.open(source), to.with_name("sealed"), key=KEY, hide_names=True)
    streamer.save(streamer.open(to.with_name("sealed"), key=KEY), to)


# The ways of a checkpoint to another place, and whether its files stay as they are.
WAYS: dict[str, tuple[Callable[[Path, Path], Any], bool]] = {
    **{command: (copied(command), True) for command in ("push", "copy", "pull")},
    "save": (saved_with(), False),
    "cast": (saved_with({"dtype": "bfloat16"}), False),
    "fewer shards": (saved_with(max_shard_bytes=48), False),
    "more shards": (saved_with(max_shard_bytes=1), False),
    "parts": (saved_with({"slices": {"t0": streamer.Slice(0, 0, 2)}}), False),
    "some": (saved_with({"names": ["t0"]}), False),
    "encrypted and decrypted": (twice, False),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.sampled_from(sorted(WAYS)),
    st.dictionaries(NOTE_KEYS | st.text(max_size=4), NOTE_TEXTS, max_size=5),
    st.sampled_from([{}, {"format": "pt"}]),
    st.integers(1, 5),
    st.booleans(),
)
def test_notes_survive_every_way_to_another_place(
    tmp_path_factory: pytest.TempPathFactory,
    way: str,
    notes: dict[str, str],
    form: dict[str, str],
    shards: int,
    apart: bool,
) -> None:
    folder, (run, is_same) = tmp_path_factory.mktemp("ways"), WAYS[way]
    (folder / "source").mkdir()
    kept = [dict(list(notes.items())[number::shards] if apart else notes) | form for number in range(shards)]
    for number, own in enumerate(kept):
        path = folder / "source" / f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        save_file({f"t{number}": torch.full((4,), float(number))}, path, own or None)
    run(folder / "source", folder / "to")
    found = []
    for path in sorted((folder / "to").glob("*.safetensors")):
        with safe_open(path, "pt") as file:  # safetensors' own reader
            found.append(file.metadata() or {})
    assert found == (kept if is_same else [{"format": "pt"} | notes] * len(found)) != []
    expected = notes | form if is_same else {"format": "pt"} | notes
    with streamer.open(folder / "to") as opened, streamer.stream(folder / "to") as tensors:
        assert opened.metadata() == tensors.report.metadata == expected
    assert streamer.load_into(folder / "to", streamer.load(folder / "to")).metadata == expected


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_writes_of_ranks_is_not_saved_for_other_shards_regression(tmp_path: Path) -> None:
    """One shard's part of it was saved for all tensors, and torch's reader then lacked the others."""
    for number in (1, 2):
        sharding = json.dumps({f"t{number}": {"saved_offsets": [0]}})
        path = tmp_path / f"model-0000{number}-of-00002.safetensors"
        save_file({f"t{number}": torch.ones(2)}, path, {"DCP_SHARDING_INFO": sharding, "step": "3"})
    with streamer.open(tmp_path) as checkpoint:
        report = streamer.save(checkpoint, tmp_path / "saved")
    assert report.remarks == (
        "torch's writer saved this by rank: if files of other ranks are missing, tensors are parts, or missing",
    )
    state = {"t1": torch.zeros(2), "t2": torch.zeros(2)}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path / "saved")), no_dist=True)
    assert state["t1"].tolist() == state["t2"].tolist() == [1, 1]
    assert streamer.stream(tmp_path / "saved").report.metadata == {"format": "pt", "step": "3"}


def test_more_notes_than_a_load_takes_are_refused_before_a_byte_is_written_regression(tmp_path: Path) -> None:
    notes = {str(number): "" for number in range(100_000)}
    with pytest.raises(streamer.UsageError, match=r"the metadata has 100001 members, and a load takes 100000\. Join"):
        streamer.save({"w": torch.ones(2)}, tmp_path / "saved", metadata=notes)
    assert not (tmp_path / "saved").exists()
    streamer.save({"w": torch.ones(2)}, tmp_path / "saved", metadata=notes | {"format": notes.pop("0") or "pt"})
    assert streamer.load(tmp_path / "saved").keys() == {"w"}


@each_row("hides", [False, True])
@each_row("context", [None, "one", "two"])
@each_row("old", [{"hide_names": True}, {"context": "one"}, {"hide_names": True, "context": "one"}, {}])
@each_row("is_sealed", [False, True])
def test_what_protects_the_copied_checkpoint_alone_is_named_regression(
    old: dict[str, Any], context: str | None, hides: bool, is_sealed: bool, tmp_path: Path
) -> None:
    """A save with another key dropped both in silence."""
    key, new_key = bytes(range(32)), bytes(range(1, 33))
    streamer.save({"a": torch.ones(3)}, tmp_path / "old", key=key, **old)
    opened = streamer.open(tmp_path / "old", key=key, context=old.get("context"))
    how: dict[str, Any] = {"key": new_key, "hide_names": hides, "context": context} if is_sealed else {}
    remarks = " ".join(streamer.save(opened, tmp_path / "new", **how).remarks)
    assert ("and this one is not: pass key=" in remarks) is not is_sealed
    assert ("hides its names" in remarks) is (is_sealed and "hide_names" in old and not hides)
    assert ("bound to the context 'one'" in remarks) is (is_sealed and "context" in old and context != "one")


VALUES: dict[str, list[Any]] = {
    "STRING": ["3", "[1, 2]", "true", "née\n", ""],
    "BOOL": [True, False],
    "FLOAT32": [0.1, float("inf"), -0.0, 3.0],
    "FLOAT64": [0.1],
    **{f"{sign}INT{bits}": [3, (1 << bits - (sign == "")) - 1] for sign in ("", "U") for bits in (8, 16, 32, 64)},
}


def test_a_file_of_gguf_is_made_again_from_what_was_saved_of_it_regression(tmp_path: Path) -> None:
    """The text "3" and the number 3 were one, and so were all kinds of numbers."""
    values = {f"x.{kind}.{number}": (each, kind, None) for kind in VALUES for number, each in enumerate(VALUES[kind])}
    values |= {f"x.all.{kind}": (each, "ARRAY", kind) for kind, each in VALUES.items()}
    blocks = {"q": np.arange(72, dtype=np.uint8).reshape(4, 18), "plain": np.ones((2, 4), np.float32)}
    types = {"q": gguf.GGMLQuantizationType.Q4_0, "plain": None}

    def write(path: Path, values: dict[str, Any], tensors: dict[str, Any], types: dict[str, Any]) -> None:
        writer = gguf.GGUFWriter(path, "llama")
        for key, (value, kind, of) in values.items():
            if key not in writer.kv_data[0]:
                own = None if of is None else gguf.GGUFValueType[of]
                writer.add_key_value(key, value, gguf.GGUFValueType[kind], own)
        for name in sorted(tensors):
            writer.add_tensor(name, tensors[name], raw_dtype=types.get(name))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    write(tmp_path / "one.gguf", values, blocks, types)
    with streamer.open(tmp_path / "one.gguf") as checkpoint:
        streamer.save(checkpoint, tmp_path / "saved")
    with streamer.open(tmp_path / "saved", framework="np") as saved:
        notes = saved.metadata()
        kinds = json.loads(notes["streamer.gguf_kinds"])
        found = {}
        for key, kind in kinds.items():
            outer, _, of = kind.rstrip("]").partition("[")
            found[key] = notes[key] if outer == "STRING" else json.loads(notes[key]), outer, of or None
        named = json.loads(notes["streamer.ggml_types"])
        again = {name: gguf.GGMLQuantizationType[each] for name, each in named.items()}
        write(tmp_path / "two.gguf", found, saved.get_tensors(), again)
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
