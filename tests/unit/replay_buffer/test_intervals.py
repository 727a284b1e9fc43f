"""Settled groups as intervals: a set of integers that stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.replay_buffer.intervals import IntervalSet


@given(st.lists(st.integers(0, 60)))
def test_it_holds_exactly_what_was_added_in_as_few_intervals_as_possible(numbers: list[int]) -> None:
    intervals = IntervalSet()
    for number in numbers:
        intervals.add(number)
    assert [n for n in range(62) if n in intervals] == sorted(set(numbers))
    assert len(intervals) == len(set(numbers))
    for (_, end), (start, _) in zip(intervals.intervals, intervals.intervals[1:], strict=False):
        assert end < start


def test_a_hundred_thousand_groups_settled_out_of_order_are_one_interval() -> None:
    intervals = IntervalSet()
    for low in range(0, 100_000, 10):
        for number in (3, 1, 0, 2, 9, 7, 8, 5, 4, 6):
            intervals.add(low + number)
    assert intervals.intervals == [(0, 100_000)]
