from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.data.order import Order, permutation


@given(st.integers(0, 2**31 - 1), st.integers(1, 300))
def test_every_pass_takes_every_row_once(seed: int, n: int) -> None:
    order = Order(seed, n, shuffle=True)
    for first in (0, n):
        assert sorted(order.place(group) for group in range(first, first + n)) == list(range(n))


def test_the_order_is_fixed_for_ever() -> None:
    assert permutation(1, 8).tolist() == [6, 5, 4, 7, 1, 3, 2, 0]


def test_the_order_does_not_depend_on_what_was_asked_before() -> None:
    forward, again = Order(7, 50, shuffle=True), Order(7, 50, shuffle=True)
    expected = [forward.place(group) for group in range(150)]
    assert [again.place(group) for group in reversed(range(150))] == expected[::-1]


def test_passes_and_seeds_differ() -> None:
    order = Order(7, 50, shuffle=True)
    first, second = [order.place(g) for g in range(50)], [order.place(g) for g in range(50, 100)]
    assert first != second
    assert first != [Order(8, 50, shuffle=True).place(g) for g in range(50)]


def test_without_shuffle_rows_come_as_they_stand() -> None:
    order = Order(7, 3, shuffle=False)
    assert [order.place(group) for group in range(6)] == [0, 1, 2, 0, 1, 2]


def test_places_are_drawn_evenly() -> None:
    first = np.array([int(permutation(seed, 10)[0]) for seed in range(2000)])
    counts = np.bincount(first, minlength=10)
    assert counts.min() > 140
    assert counts.max() < 260
