from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.intervals import Intervals


@given(st.lists(st.integers(min_value=0, max_value=60)))
def test_it_is_a_set_of_integers(values: list[int]) -> None:
    found = Intervals()
    seen: set[int] = set()
    for value in values:
        assert found.add(value) == (value not in seen)
        seen.add(value)
    assert [value for value in range(70) if value in found] == sorted(seen)
    assert len(found) == len(seen)


def test_a_million_members_around_one_gap_take_one_interval() -> None:
    found = Intervals()
    for value in range(100_000):
        if value != 5:
            found.add(value)
    assert (found.low, found.pieces, len(found)) == (5, 1, 99_999)
    found.add(5)
    assert (found.low, found.pieces) == (100_000, 0)
