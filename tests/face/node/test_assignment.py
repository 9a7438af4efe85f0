"""The book of a meeting, as a function of events: who reads which block, and who hears where it lies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.core.node.assignment import Book
from streamer.core.node.grid import Grid, WantedBytes, without

WHOLE = (0, 10)


def messages(letters: list[Any], kind: str) -> dict[int, list[int]]:
    """Return the block numbers in the letters of one kind, by member."""
    found: dict[int, list[int]] = {}
    for member, each, content in letters:
        if each == kind:
            found.setdefault(member, []).extend(row if isinstance(row, int) else row[0] for row in content)
    return found


def book_of(slots: int, batch_blocks: int) -> Book:
    return Book(slots, batch_blocks, 1, lambda _: WHOLE)


def joined(book: Book, *members: int, blocks: int) -> None:
    for member in members:
        book.join(member, dict.fromkeys(range(blocks), WHOLE))


def test_each_block_is_lent_to_one_member():
    book = book_of(slots=16, batch_blocks=2)
    joined(book, 0, 1, blocks=4)
    lent = [messages(book.ask(member), "grant")[member] for member in (0, 1)]
    assert lent == [[0, 1], [2, 3]]
    assert not book.ask(0)


def test_a_block_is_ready_for_all_members_that_want_it_and_its_slot_is_reused_afterwards():
    book = book_of(slots=1, batch_blocks=1)
    joined(book, 0, 1, blocks=2)
    assert messages(book.ask(0), "grant") == {0: [0]}
    assert messages(book.read(0, [(0, 0)]), "ready") == {0: [0], 1: [0]}
    assert not book.ask(1)
    assert not book.take(0, [0])
    assert messages(book.take(1, [0]), "grant") == {1: [1]}
    assert book.generations == [2]


def test_only_what_is_wanted_of_a_block_is_read():
    book = book_of(slots=4, batch_blocks=1)
    book.join(0, {0: (2, 4)})
    book.join(1, {0: (6, 8)})
    assert book.ask(0) == [(0, "grant", [(0, 0, 2, 8)])]


def test_a_member_reads_only_what_it_wants():
    book = book_of(slots=8, batch_blocks=8)
    book.join(0, {0: WHOLE})
    book.join(1, {5: WHOLE})
    assert messages(book.ask(1), "grant") == {1: [5]}


def test_a_late_member_gets_the_blocks_that_are_still_in_slots():
    book = book_of(slots=4, batch_blocks=1)
    joined(book, 0, blocks=1)
    book.ask(0)
    book.read(0, [(0, 0)])
    book.take(0, [0])
    assert messages(book.join(1, {0: WHOLE}), "ready") == {1: [0]}


def test_a_member_that_wants_more_of_a_block_has_it_read_again():
    book = book_of(slots=4, batch_blocks=1)
    book.join(0, {0: (2, 4)})
    book.ask(0)
    book.read(0, [(0, 0)])
    book.take(0, [0])
    book.join(1, {0: WHOLE})
    assert book.ask(1) == [(1, "grant", [(0, 0, *WHOLE)])]


def test_blocks_of_a_member_that_leaves_are_lent_to_others():
    book = book_of(slots=8, batch_blocks=2)
    joined(book, 0, 1, blocks=1)
    book.ask(0)
    book.ask(1)
    assert messages(book.leave(0), "grant") == {1: [0]}


def test_the_slot_of_a_silent_member_is_not_reused_before_it_has_written():
    book = book_of(slots=2, batch_blocks=1)
    joined(book, 0, 1, blocks=3)
    assert book.ask(0) == [(0, "grant", [(0, 0, *WHOLE)])]
    book.ask(1)
    book.read(1, [(1, 1)])
    book.take(1, [1])
    book.ask(1)
    letters = book.silent(0)
    assert messages(letters, "grant") == {1: [0]}
    assert [row[1] for _, kind, rows in letters if kind == "grant" for row in rows] == [1]  # not its slot 0
    book.read(1, [(0, 1)])
    book.take(1, [0])
    book.heard(0)
    assert messages(book.read(0, [(0, 0)]), "ready") == {}  # the slot is free, and the block was read by another
    assert messages(book.ask(1), "grant") == {1: [2]}


def test_blocks_of_a_silent_member_are_used_if_no_other_member_reads_them():
    book = book_of(slots=4, batch_blocks=1)
    joined(book, 0, 1, blocks=1)
    book.ask(0)
    book.silent(0)
    book.heard(0)
    assert messages(book.read(0, [(0, 0)]), "ready") == {0: [0], 1: [0]}


def test_a_member_that_takes_nothing_loses_its_blocks_to_one_in_need():
    book = book_of(slots=1, batch_blocks=1)
    joined(book, 0, 1, blocks=3)
    book.ask(0)
    book.read(0, [(0, 0)])
    book.take(0, [0])
    book.ask(0)
    letters = book.need(0, 1)
    assert messages(letters, "dropped") == {1: [0]}
    assert messages(letters, "grant") == {0: [1]}
    book.read(0, [(1, 0)])
    book.take(0, [1])
    letters = book.ask(0)  # from now on, its blocks keep no slot
    assert messages(letters, "dropped") == {1: [1]}
    assert messages(letters, "grant") == {0: [2]}


def test_a_member_whose_own_blocks_fill_all_slots_reads_past_the_meeting():
    book = book_of(slots=1, batch_blocks=1)
    joined(book, 0, blocks=2)
    book.ask(0)
    book.read(0, [(0, 0)])
    book.ask(0)
    assert messages(book.need(0, 1), "dropped") == {0: [1]}


def test_a_member_that_is_behind_reads_all_up_to_the_next_ready_block_past_the_meeting_regression():
    book = book_of(slots=2, batch_blocks=2)
    book.join(0, dict.fromkeys(range(5, 8), WHOLE))
    book.ask(0)
    book.read(0, [(5, 0)])
    assert messages(book.ask(0), "grant") == {0: [6]}
    book.read(0, [(6, 1)])
    joined(book, 1, blocks=8)
    assert not book.ask(1)
    assert messages(book.need(1, 0), "dropped") == {1: [0, 1, 2, 3, 4]}


def test_a_member_waits_for_a_block_that_another_reads():
    book = book_of(slots=4, batch_blocks=1)
    joined(book, 0, 1, blocks=1)
    book.ask(0)
    assert not book.need(1, 0)


def test_after_a_failure_others_read_the_block():
    book = book_of(slots=4, batch_blocks=1)
    joined(book, 0, 1, blocks=1)
    book.ask(0)
    book.ask(1)
    assert messages(book.fail(0, [(0, 0)]), "grant") == {1: [0]}


def test_taken_blocks_are_kept_for_members_that_are_to_come():
    book = book_of(slots=1, batch_blocks=1)
    book.await_others(True)
    joined(book, 0, blocks=2)
    book.ask(0)
    book.read(0, [(0, 0)])
    book.take(0, [0])
    assert not book.ask(0)
    assert messages(book.await_others(False), "grant") == {0: [1]}


def test_a_part_of_a_block_is_not_read_before_all_members_are_there():
    book = book_of(slots=4, batch_blocks=1)
    book.await_others(True)
    book.join(0, {0: (0, 4)}, takes_parts=True)
    assert not book.ask(0)
    assert not book.need(0, 0)
    assert book.join(1, {0: (4, 10)}, takes_parts=True) == [(0, "grant", [(0, 0, *WHOLE)])]


def test_a_member_that_was_stopped_may_be_lent_the_same_block_again_regression():
    """Its first slot was taken for its second one, which was not written yet."""
    book = book_of(slots=2, batch_blocks=1)
    joined(book, 0, blocks=1)
    book.ask(0)
    book.silent(0)
    book.heard(0)
    assert book.ask(0) == [(0, "grant", [(0, 1, *WHOLE)])]
    assert not book.read(0, [(0, 0)])
    assert book.read(0, [(0, 1)]) == [(0, "ready", [(0, 1, *WHOLE, 1)])]


@given(st.data())
def test_each_member_gets_each_block_or_the_order_to_read_it(data):
    blocks, members = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    book = book_of(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)))
    run = Run(book, members, blocks)
    for _ in range(data.draw(st.integers(0, 60))):
        run.step(data.draw)
    run.finish()


class Run:
    """Members that do as the book says, at random, and check what they are reported."""

    def __init__(self, book: Book, members: int, blocks: int) -> None:
        self.book = book
        self.open = {member: set(range(blocks)) for member in range(members)}  # neither taken nor dropped
        self.ready: dict[int, dict[int, tuple[int, int]]] = {member: {} for member in range(members)}
        self.lent: dict[int, tuple[int, int]] = {}  # slot to the member and the block that may be written there
        self.holds: dict[int, int] = {}  # by slot, the block that was read into it
        self.idle = Counter(dict.fromkeys(range(members), 2))
        self.stopped: set[int] = set()
        for member in range(members):
            self.note(book.join(member, dict.fromkeys(range(blocks), WHOLE)))

    def note(self, letters: list[Any]) -> None:
        for member, kind, content in letters:
            for row in content:
                if kind == "grant":
                    assert row[1] not in self.lent  # nobody else may write there
                    self.lent[row[1]] = member, row[0]
                elif kind == "ready":
                    assert row[1] not in self.lent
                    assert self.holds[row[1]] == row[0]
                    self.ready[member][row[0]] = row[1], row[4]
                elif member in self.open:
                    self.open[member].discard(row)
            if kind == "grant":
                assert member not in self.stopped
                self.idle[member] += 1

    def step(self, draw: Any) -> None:
        member = draw(st.sampled_from(sorted(self.open))) if self.open else None
        if member is None:
            return
        act = draw(st.sampled_from(["ask", "read", "take", "need", "stop", "go", "leave", "fail"]))
        if act == "leave" and len(self.open) > 1:
            self.drop_out(member)
        elif act == "stop" and any(each == member for each, _ in self.lent.values()):
            self.stopped.add(member)
            self.note(self.book.silent(member))
        elif act == "go" or member not in self.stopped:
            if member in self.stopped:
                self.stopped.discard(member)
                self.book.heard(member)
            self.act(member, act)

    def act(self, member: int, act: str) -> None:
        mine = sorted((block, slot) for slot, (each, block) in self.lent.items() if each == member)
        if act == "ask" and self.idle[member]:
            self.idle[member] -= 1
            self.note(self.book.ask(member))
        elif act == "read" and mine:
            del self.lent[mine[0][1]]
            self.holds[mine[0][1]] = mine[0][0]
            self.note(self.book.read(member, mine[:1]))
        elif act == "fail" and mine:
            del self.lent[mine[0][1]]
            self.open[member].discard(mine[0][0])
            self.note(self.book.fail(member, mine[:1]))
        elif act == "take":
            self.take(member)
        elif act == "need" and self.open[member]:
            self.note(self.book.need(member, min(self.open[member])))

    def take(self, member: int) -> None:
        for block, (slot, generation) in list(self.ready[member].items()):
            del self.ready[member][block]
            if block in self.open[member]:
                self.open[member].discard(block)
                is_valid = self.book.generations[slot] == generation
                assert is_valid, "it was dropped without a word"
                self.note(self.book.take(member, [block]))

    def drop_out(self, member: int) -> None:
        del self.open[member], self.ready[member], self.idle[member]
        self.stopped.discard(member)
        self.lent = {slot: lent for slot, lent in self.lent.items() if lent[0] != member}
        self.note(self.book.leave(member))

    def finish(self) -> None:
        """Let all members work: every block comes, or is dropped."""
        for _ in range(200):
            for member in sorted(self.open):
                self.stopped.discard(member)
                self.book.heard(member)
                for act in ("ask", "read", "take", "need"):
                    self.act(member, act)
        assert not any(self.open.values())


def test_blocks_are_numbered_over_all_objects():
    grid = Grid([25, 0, 10], 10)
    assert len(grid) == 4
    assert [grid.place(block) for block in range(4)] == [(0, 0, 10), (0, 10, 20), (0, 20, 25), (2, 0, 10)]
    assert [grid.block(0, 24), grid.block(2, 0)] == [2, 3]
    pieces = [(0, (0, 5, 10)), (1, (0, 10, 12)), (3, (2, 3, 4))]
    assert list(grid.pieces([(0, 5, 12), (1, 0, 0), (2, 3, 4)])) == pieces


def bytes_of(ranges: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(source, at) for source, begin, end in ranges for at in range(begin, end)}


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 30))))
def test_what_is_left_of_ranges_is_what_was_not_removed(pairs):
    whole = [(0, 0, 30), (1, 5, 25)]
    removed = [(source, min(pair), max(pair)) for source, *pair in pairs]
    left = without(whole, removed)
    assert bytes_of(left) == bytes_of(whole) - bytes_of(removed)
    assert sum(end - begin for _, begin, end in left) == len(bytes_of(left))


@pytest.mark.parametrize(("begin", "end", "size"), [(0, 100, 30), (0, 15, 5), (12, 45, 13), (20, 40, 0), (95, 100, 0)])
def test_gaps_between_ranges_do_not_count(begin, end, size):
    wanted = WantedBytes([(0, 40, 60), (0, 10, 20)])
    assert wanted.bytes_in(0, begin, end) == size
    assert wanted.bytes_in(1, begin, end) == 0


def test_a_load_requests_no_byte_twice():
    wanted = WantedBytes([(0, 40, 60), (0, 10, 20)])
    wanted.have(0, 10, 15)
    wanted.have(0, 15, 20)
    wanted.have(0, 45, 50)
    assert wanted.missing() == [(0, 40, 45), (0, 50, 60)]
