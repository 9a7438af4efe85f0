"""What a prefix and new names make of the names in a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from each_row import each_row

import streamer
from streamer.core.checkpoint.names import Renaming, prefix_hint


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
