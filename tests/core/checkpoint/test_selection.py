"""Choosing tensors: by name, pattern or predicate, and never silently fewer than asked for."""

from typing import Any

import pytest
from each_row import each_row

import streamer
from streamer.core.checkpoint.selection import select
from streamer.core.checkpoint.target_names import Renaming, prefix_hint
from streamer.core.errors import UnknownTensorError, UsageError

AVAILABLE = ["h.0.attn.weight", "h.0.attn.bias", "h.1.attn.weight", "lm_head.weight", "odd[0]", "odd0"]


def test_a_selection_of_none_is_everything():
    assert select(None, AVAILABLE) is None


@each_row(
    ("names", "chosen"),
    [
        ("odd0", {"odd0"}),
        (["odd0", "odd0"], {"odd0"}),
        (("odd0", "lm_head.weight"), {"odd0", "lm_head.weight"}),
        (iter(["odd0"]), {"odd0"}),
        ({"odd0"}, {"odd0"}),
        ("h.*.weight", {"h.0.attn.weight", "h.1.attn.weight"}),
        ("h.?.attn.bias", {"h.0.attn.bias"}),
        (["h.[!0].*", "odd*"], {"h.1.attn.weight", "odd[0]", "odd0"}),
        ("*", set(AVAILABLE)),
        ([], set()),
        (lambda name: name.startswith("odd"), {"odd[0]", "odd0"}),
        (lambda name: False, set()),
    ],
)
def test_the_chosen_names_are_those(names, chosen):
    assert select(names, AVAILABLE) == chosen


def test_a_name_that_exists_is_taken_literally():
    assert select("odd[0]", AVAILABLE) == {"odd[0]"}


def test_a_name_that_looks_like_a_pattern_and_does_not_exist_is_one():
    assert select("odd[0]", ["odd0"]) == {"odd0"}


@each_row("names", ["H.0.attn.weight", "H.*", "h.0", "ttn.weight", ["odd0", "absent"], "", "absent*"])
def test_a_name_or_pattern_that_matches_nothing_is_refused(names):
    with pytest.raises(UnknownTensorError):
        select(names, AVAILABLE)


def test_the_error_hints_at_near_names():
    with pytest.raises(UnknownTensorError, match=r"no tensor 'h\.0\.attn\.wieght'") as caught:
        select("h.0.attn.wieght", AVAILABLE)
    assert "'h.0.attn.weight'" in caught.value.hint


@pytest.mark.parametrize(("wanted", "count"), [("h.0", 2), ("h.0.attn.", 2), ("h", 3), ("lm_head", 1)])
def test_the_error_for_the_name_of_a_module_suggests_the_pattern_of_its_tensors(wanted, count):
    with pytest.raises(UnknownTensorError) as caught:
        select(wanted, AVAILABLE)
    tensors = f"its {count} tensors" if count > 1 else "its tensor"
    assert caught.value.hint == f"It is a module: the pattern '{wanted.rstrip('.')}.*' matches {tensors}"
    select(f"{wanted.rstrip('.')}.*", AVAILABLE)


def test_the_error_for_an_unknown_name_lists_existing_names():
    with pytest.raises(UnknownTensorError, match=r"holds 6 tensors, the first is 'h\.0\.attn\.weight'"):
        select("zzz", AVAILABLE)


def test_the_near_name_is_found_among_very_many():
    available = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(5000)] + ["visual.merger.ln_q.weight"]
    with pytest.raises(UnknownTensorError, match=r"visual\.merger\.ln_q\.weight"):
        select("visual.merger.ln_k.weight", available)


def test_a_very_long_name_is_cut_in_the_message():
    with pytest.raises(UnknownTensorError) as caught:
        select("x" * 1_000_000, ["x" * 999_999])
    assert len(str(caught.value)) < 300


def test_an_empty_checkpoint_has_no_tensor_of_any_name():
    with pytest.raises(UnknownTensorError, match="holds 0 tensors"):
        select("a", [])


@each_row("names", [b"odd0", 1, 1.5, object(), [1], ["odd0", None], [b"odd0"], True])
def test_another_type_is_the_callers_mistake(names):
    with pytest.raises(UsageError, match="names must") as caught:
        select(names, AVAILABLE)
    assert not isinstance(caught.value, UnknownTensorError)


def test_an_error_of_the_predicate_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        select(lambda name: 1 / 0, AVAILABLE)


# --- what a prefix and new names make of the names in a checkpoint --------------------------------------------------


@each_row(
    ("prefix", "rename", "stored", "expected"),
    [
        (None, None, "a.b", "a.b"),
        ("", None, "a.b", "a.b"),
        ("a", None, "a.b.c", "b.c"),
        ("a.", None, "a.b.c", "b.c"),
        ("a", None, "ab.c", None),
        ("a", None, "a", None),
        (None, {"a": "x"}, "a.b", "x.b"),
        (None, {"a": "x"}, "ab.b", "ab.b"),
        (None, {"a.": "x."}, "a.b", "x.b"),
        (None, {"a": "x", "a.b": "y"}, "a.b.c", "y.c"),
        (None, {"a.b": "y"}, "a.b", "y"),
        (None, {"a": ""}, "a.b", "b"),
        (None, {"": "module"}, "a.b", "module.a.b"),
        (None, {"": "module", "a": None}, "a.b", None),
        (None, {"": None, "a": "a"}, "c.b", None),
        ("a", {"b": "x"}, "a.b.c", "x.c"),
        ("a", str.upper, "a.b.c", "B.C"),
        (None, lambda _: None, "a", None),
    ],
)
def test_the_name_in_the_target(prefix: Any, rename: Any, stored: str, expected: str | None) -> None:
    assert Renaming(prefix, rename).name_of(stored) == expected


@each_row(
    ("prefix", "rename", "words"),
    [
        (3, None, "prefix is text"),
        (b"a", None, "not bytes"),
        (None, 3, "rename is a mapping of names, a function of a name, or None, not int"),
        (None, "model", "not str"),
        (None, [("a", "b")], "not list"),
        (None, {1: "a"}, "not int"),
        (None, {"a": 1}, "not int"),
    ],
)
def test_other_types_are_refused(prefix: Any, rename: Any, words: str) -> None:
    with pytest.raises(streamer.UsageError, match=words):
        Renaming(prefix, rename)


def test_a_function_must_return_a_name() -> None:
    with pytest.raises(streamer.UsageError, match="rename returned int for 'a': a new name is text, or None"):
        Renaming(None, lambda _: 3).name_of("a")
    with pytest.raises(streamer.UsageError, match="nothing is left of the name 'a'"):
        Renaming(None, {"a": ""}).name_of("a")


def test_two_tensors_get_one_name_only_if_one_is_left_out() -> None:
    with pytest.raises(streamer.TargetError, match=r"'a.w' and 'b.w' of the checkpoint would both be 'b.w'"):
        Renaming(None, {"a": "b"}).names_of(["a.w", "b.w"])
    assert Renaming(None, {"a": "b", "b": None}).names_of(["a.w", "b.w"]) == {"a.w": "b.w"}


def test_names_that_the_checkpoint_lacks_are_reported() -> None:
    held = ["transformer.h.0.w", "lm_head.w"]
    with pytest.raises(
        streamer.UnknownTensorError, match=r"begins with the prefix 'model.': they begin with 'transformer', 'lm_head'"
    ):
        Renaming("model").check_fits(held)
    with pytest.raises(streamer.UnknownTensorError, match=r"rename has 'layer', .* Check its spelling"):
        Renaming(None, {"layer": "h"}).check_fits(held)
    with pytest.raises(streamer.UnknownTensorError, match=r"prefix= has taken 'transformer.' off before"):
        Renaming("transformer", {"transformer.h": "layers"}).check_fits(held)
    Renaming("transformer", {"": "x", "h.0": "y"}).check_fits(held)
    Renaming("model", {"h": "y"}).check_fits([])  # an empty checkpoint is an error, or none, elsewhere


@each_row(
    ("stored", "targets", "words"),
    [
        ({"module.a.w"}, {"a.w"}, "checkpoint's names begin with 'module.': pass prefix='module.'"),
        ({"a.w"}, {"module.a.w"}, "into its submodule, or pass rename={'': 'module'}"),
        ({"a.w"}, {"_orig_mod.a.w"}, "a compiled module"),
        ({"a.0.w", "b"}, {"a.0._orig_mod.w", "b"}, "inside of the target are compiled"),
        ({"a.0.w", "b"}, {"a.0.module.w", "b"}, "inside of the target are wrapped"),
        ({"a.w"}, {"b.w"}, None),
        ({"a", "b"}, {".a", ".b"}, None),  # the hint was rename={'': ''}
    ],
)
def test_a_similar_name_is_suggested(stored: set[str], targets: set[str], words: str | None) -> None:
    hint = prefix_hint(stored, targets)
    assert (words in hint) if hint and words else hint is words
