"""Choosing tensors: by name, pattern or predicate, and never silently fewer than asked for."""

import pytest
from each_row import each_row

from streamer.core.checkpoint.selection import select
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
