"""A set of integers kept as intervals."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.intervals import Intervals


@given(st.lists(st.integers(0, 60)))
def test_it_holds_exactly_what_was_added(numbers):
    intervals, plain = Intervals(), set()
    for number in numbers:
        assert intervals.add(number) == (number not in plain)
        plain.add(number)
    assert len(intervals) == len(plain)
    assert [n for n in range(61) if n in intervals] == sorted(plain)
    assert [n for start, end in intervals for n in range(start, end + 1)] == sorted(plain)


def test_a_dense_set_is_one_interval_whatever_the_order():
    intervals = Intervals()
    for number in [*range(0, 10_000, 2), *range(9_999, 0, -2)]:
        intervals.add(number)
    assert list(intervals) == [(0, 9_999)]
