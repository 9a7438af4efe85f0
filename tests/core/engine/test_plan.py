"""Planning is pure: wanted ranges in, spans out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamer.core.engine.plan import Item, plan_reads


def spans_of(plan):
    rows = list(plan.spans)
    return [tuple(rows[i : i + 5]) for i in range(0, len(rows), 5)]


def test_neighbours_become_one_span():
    plan = plan_reads([Item(0, 8, 16), Item(0, 16, 40)], coalesce_gap_bytes=0)
    assert spans_of(plan) == [(0, 8, 40, 0, 2)]
    assert plan.item_bytes == plan.span_bytes == 32


def test_a_small_gap_is_read_through_and_a_large_one_is_not():
    items = [Item(0, 0, 10), Item(0, 15, 20), Item(0, 26, 30)]
    plan = plan_reads(items, coalesce_gap_bytes=5)
    assert spans_of(plan) == [(0, 0, 20, 0, 2), (0, 26, 30, 2, 1)]
    assert (plan.item_bytes, plan.span_bytes) == (19, 24)


def test_objects_never_share_a_span():
    plan = plan_reads([Item(0, 0, 10), Item(1, 10, 20)], coalesce_gap_bytes=1000)
    assert spans_of(plan) == [(0, 0, 10, 0, 1), (1, 10, 20, 1, 1)]


def test_an_item_that_lies_before_its_predecessor_begins_a_span():
    plan = plan_reads([Item(0, 40, 50), Item(0, 50, 60), Item(0, 0, 10), Item(0, 10, 20)], coalesce_gap_bytes=1000)
    assert spans_of(plan) == [(0, 40, 60, 0, 2), (0, 0, 20, 2, 2)]


def test_a_span_without_bytes_is_not_read():
    plan = plan_reads([Item(0, 5, 5), Item(0, 5, 5)], coalesce_gap_bytes=0)
    assert (len(plan.spans), plan.item_count) == (0, 2)


def test_empty_items_join_no_gap_regression():
    """A process without rows of small tensors read all that lies between them."""
    plan = plan_reads([Item(0, 0, 0), Item(0, 10, 10), Item(0, 20, 20)], coalesce_gap_bytes=1000)
    assert (len(plan.spans), plan.span_bytes) == (0, 0)
    around = [Item(0, 0, 0), Item(0, 10, 20), Item(0, 25, 25), Item(0, 30, 40), Item(0, 45, 45), Item(1, 0, 0)]
    assert spans_of(plan_reads(around, coalesce_gap_bytes=10)) == [(0, 10, 40, 1, 3)]
    assert spans_of(plan_reads(around, coalesce_gap_bytes=9)) == [(0, 10, 20, 1, 1), (0, 30, 40, 3, 1)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9)), max_size=30),
    st.integers(0, 12),
)
def test_every_item_of_any_size_is_in_exactly_one_span(steps, gap):
    items, position, last_source = [], 0, 0
    for source_step, skip, size in steps:
        last_source += source_step == 2
        position += skip
        items.append(Item(last_source, position, position + size))
        position += size
    plan = plan_reads(items, gap)
    covered = [i for span in spans_of(plan) for i in range(span[3], span[3] + span[4])]
    assert sorted(covered) == sorted(set(covered))
    assert {i for i, item in enumerate(items) if item.end > item.begin} <= set(covered)
    for source, begin, end, first, count in spans_of(plan):
        inside = items[first : first + count]
        assert begin == inside[0].begin
        assert end == inside[-1].end
        assert {item.source for item in inside} == {source}
    only = plan_reads([item for item in items if item.end > item.begin], gap)
    assert [span[:3] for span in spans_of(plan)] == [span[:3] for span in spans_of(only)]
