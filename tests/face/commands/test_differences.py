"""``diff`` of two checkpoints and ``check`` of two URIs: what is equal, what differs, and how far it was compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from each_row import each_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from uploads import STORAGES, uploaded

import streamer
from streamer._cli import main

Tensors = dict[str, torch.Tensor]
SAME = {"a": torch.arange(100.0), "b": torch.ones(3, 2)}


def run(*words: object) -> tuple[int, Any]:
    """Return the exit code, and what the command prints for programs."""
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def text(*words: object) -> str:
    return CliRunner().invoke(main, [*map(str, words)]).stdout


def saved(path: Path, tensors: Tensors, *, has_manifest: bool = False) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    if has_manifest:
        streamer.write_manifest(path, progress=False)
    return path


@each_row(
    ("change", "difference"),
    [
        ({"b": torch.ones(2, 3)}, "shape 3 x 2 and 2 x 3"),
        ({"b": torch.ones(3, 2, dtype=torch.float16)}, "dtype F32 and F16"),
        ({"c": torch.ones(1)}, None),
    ],
)
def test_headers_that_differ_are_told_without_a_read(tmp_path: Path, change: Tensors, difference: str | None) -> None:
    places = saved(tmp_path / "one", SAME), saved(tmp_path / "other", SAME | change)
    code, found = run("diff", *places)
    assert (code, found["compared"], found["equal"]) == (1, "headers", False)
    assert found["differing"] == ({"b": difference} if difference else {})
    assert found["only_in_second"] == ([] if difference else ["c"])
    assert run("diff", *reversed(places))[1]["only_in_first"] == found["only_in_second"]


def test_headers_alone_do_not_make_checkpoints_equal(tmp_path: Path) -> None:
    places = saved(tmp_path / "one", SAME), saved(tmp_path / "other", {**SAME, "b": torch.zeros(3, 2)})
    code, found = run("diff", *places)
    assert (code, found["compared"], found["equal"]) == (0, "headers", None)
    assert "headers only" in text("diff", *places)
    code, found = run("diff", *places, "--full")
    assert (code, found["compared"], found["differing"]) == (1, "bytes", {"b": "other bytes"})


def test_manifests_of_both_are_compared(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", SAME, has_manifest=True)
    same = saved(tmp_path / "same", SAME, has_manifest=True)
    other = saved(tmp_path / "other", {**SAME, "b": torch.zeros(3, 2)}, has_manifest=True)
    without = saved(tmp_path / "without", SAME)
    assert [run("diff", one, each)[0] for each in (same, other, without)] == [0, 1, 0]
    found = run("diff", one, same)[1]
    assert (found["compared"], found["equal"]) == ("manifests", None)  # the files may be newer
    assert run("diff", one, other)[1]["differing"] == {"b": "another digest in its manifest"}
    assert run("diff", one, without)[1]["compared"] == "headers"


def test_a_manifest_that_is_older_than_its_files_makes_nothing_equal_regression(tmp_path: Path) -> None:
    one, other = (saved(tmp_path / name, SAME, has_manifest=True) for name in ("one", "other"))
    save_file({**SAME, "b": torch.zeros(3, 2)}, other / "model.safetensors")
    code, found = run("diff", one, other)
    assert (code, found["compared"], found["equal"]) == (0, "manifests", None)
    assert "the bytes, which may be newer" in text("diff", one, other)
    assert run("diff", one, other, "--full")[1]["differing"] == {"b": "other bytes"}
    code, found = run("check", one, other)
    assert (code, found["equal"], found["signs"]["model.safetensors"]) == (1, False, "*")


@pytest.mark.parametrize("storage", STORAGES)
def test_in_full_formats_and_shards_may_differ(request: pytest.FixtureRequest, storage: str, tmp_path: Path) -> None:
    weights = {f"w{number}": torch.rand(50, 3) for number in range(4)} | {"t": torch.rand(4, 3).t()}
    folder = tmp_path / "model"
    streamer.save(weights, folder, max_shard_bytes="1kB", progress=False)
    torch.save(weights, tmp_path / "other.pt")
    uri, options = uploaded(request, storage, folder)
    words = ("diff", tmp_path / "other.pt", uri, "--to-options", json.dumps(options), "--full")
    code, found = run(*words)
    assert (code, found["same"], found["equal"]) == (0, 5, True), found
    torch.save({**weights, "w3": weights["w3"] + 1}, tmp_path / "other.pt")
    code, found = run(*words)
    assert (code, found["differing"]) == (1, {"w3": "other bytes"}), found


def test_a_missing_checkpoint_is_no_difference(tmp_path: Path) -> None:
    code, found = run("diff", saved(tmp_path / "one", SAME), tmp_path / "absent")
    assert (code, found["error"]) == (66, "ObjectNotFoundError")


def files(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


ONE = {"same.bin": b"abc" * 9, "other.bin": b"one", "gone.bin": b"1", "longer.bin": b"12"}
OTHER = {"same.bin": b"abc" * 9, "other.bin": b"two", "new.bin": b"1", "longer.bin": b"123"}
SIGNS = {"=": ["same.bin"], "*": ["longer.bin", "other.bin"], "+": ["gone.bin"], "-": ["new.bin"]}


@pytest.mark.parametrize("storage", STORAGES)
def test_files_of_two_places_get_the_signs_of_rclone(
    request: pytest.FixtureRequest, storage: str, tmp_path: Path
) -> None:
    one = files(tmp_path / "one", ONE)
    uri, options = uploaded(request, storage, files(tmp_path / "other", OTHER))
    words = ("check", one, uri, "--to-options", json.dumps(options))
    code, found = run(*words)
    expected = {name: sign for sign, names in SIGNS.items() for name in names}
    assert (code, found["signs"], found["equal"]) == (1, expected, False)
    printed = text(*words, "--combined", "-").splitlines()
    assert printed[:-1] == [f"{expected[name]} {name}" for name in sorted(expected)]
    assert [line[0] for line in text(*words).splitlines()[:-1]] == [s for _, s in sorted(expected.items()) if s != "="]
    assert run(*words, "--include", "same*")[0] == 0


@pytest.mark.parametrize("storage", STORAGES)
def test_what_was_copied_is_found_equal(request: pytest.FixtureRequest, storage: str, tmp_path: Path) -> None:
    folder = files(tmp_path / "model", ONE)
    uri, options = uploaded(request, storage, folder)
    code, found = run("check", uri, folder, "--storage-options", json.dumps(options))
    assert (code, found["equal"], sum(found["equal_by"].values())) == (0, True, len(ONE)), found


def test_sizes_alone_are_said_to_be_sizes_alone(tmp_path: Path) -> None:
    one, other = files(tmp_path / "one", {"a": b"1"}), files(tmp_path / "other", {"a": b"2"})
    assert run("check", one, other)[0] == 1
    assert run("check", one, other, "--size-only")[0] == 0
    assert run("check", one, other, "--size-only")[1]["equal"] is None
    assert "1 by size alone" in text("check", one, other, "--size-only")


@each_row(
    "words",
    [
        ("check", "--include", "*.none"),
        ("check", "--include", "*.none", "--size-only"),
        ("check", "--exclude", "*"),
        ("diff",),
        ("diff", "--full"),
    ],
)
def test_what_compared_nothing_calls_nothing_equal(words: tuple[str, ...], tmp_path: Path) -> None:
    places = saved(tmp_path / "one", {}), saved(tmp_path / "other", {})
    code, found = run(words[0], *places, *words[1:])
    assert found.get("equal") is None, found
    assert code == (66 if words[0] == "check" else 0)


def test_other_metadata_is_a_note_and_no_difference_of_tensors(tmp_path: Path) -> None:
    places = [tmp_path / "one.safetensors", tmp_path / "other.safetensors"]
    for path, alpha in zip(places, ("4", "8"), strict=True):
        save_file(SAME, path, metadata={"format": "pt", "alpha": alpha})
    code, found = run("diff", *places, "--full")
    assert (code, found["equal"], found["metadata"]) == (0, True, ["alpha"])
    assert "note: other metadata: alpha" in text("diff", *places)


def test_the_signs_are_written_to_a_file(tmp_path: Path) -> None:
    one, other = files(tmp_path / "one", ONE), files(tmp_path / "other", OTHER)
    text("check", one, other, "--combined", tmp_path / "list")
    assert (tmp_path / "list").read_text().splitlines() == [
        "+ gone.bin",
        "* longer.bin",
        "- new.bin",
        "* other.bin",
        "= same.bin",
    ]


def test_a_file_that_cannot_be_read_is_an_error_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamer._commands import differences

    one, other = files(tmp_path / "one", {"a": b"1", "b": b"2"}), files(tmp_path / "other", {"a": b"1", "b": b"2"})
    compare = differences.are_equal

    def refused(first: Any, second: Any) -> bool:
        if first.info.path.endswith("/a"):
            raise streamer.AccessDeniedError("it may not be read", uri=first.info.uri)
        return compare(first, second)

    monkeypatch.setattr(differences, "are_equal", refused)
    code, found = run("check", one, other)
    assert (code, found["signs"], found["equal"]) == (77, {"a": "!", "b": "="}, False)
    assert "may not be read" in found["errors"]["a"]


def test_two_files_of_other_names_are_compared(tmp_path: Path) -> None:
    folder = files(tmp_path, {"a.bin": b"1", "b.bin": b"1", "c.bin": b"2"})
    assert [run("check", folder / "a.bin", folder / each)[0] for each in ("b.bin", "c.bin")] == [0, 1]


@each_row(
    "words",
    [
        ("a", "b", "--full"),
        ("a", "b", "--key-file", "k"),
        ("a", "--combined", "-"),
        ("a", "--size-only"),
        ("a", "--include", "x"),
    ],
)
def test_options_of_the_other_kind_of_check_are_refused(words: tuple[str, ...]) -> None:
    code, found = run("check", *words)
    assert (code, found["error"]) == (2, "UsageError")


CONTENTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([b"", b"1", b"2", b"12"]), min_size=1)


@given(one=CONTENTS, other=CONTENTS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_two_folders_get_the_signs_of_their_contents(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("two")
    code, found = run("check", files(folder / "one", one), files(folder / "other", other))
    expected = {
        name: "+" if name not in other else "-" if name not in one else "=" if one[name] == other[name] else "*"
        for name in one.keys() | other.keys()
    }
    assert found["signs"] == expected
    assert code == (0 if one == other else 1)
