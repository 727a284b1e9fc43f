"""Sets of group numbers that stay small: a dense run costs one interval, however long the job is.

Group numbers are dense and settle roughly in order, so the set is one long interval from 0 (the low-water mark) and a
few short ones above it.
"""

from __future__ import annotations

from bisect import bisect_right


class IntervalSet:
    """A set of non-negative integers, kept as sorted, disjoint, non-touching intervals (end exclusive)."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __len__(self) -> int:
        return sum(end - start for start, end in zip(self._starts, self._ends, strict=True))

    @property
    def intervals(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def add(self, number: int) -> None:
        at = bisect_right(self._starts, number)
        if at and number < self._ends[at - 1]:
            return
        joins_left = at > 0 and self._ends[at - 1] == number
        joins_right = at < len(self._starts) and self._starts[at] == number + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif joins_left:
            self._ends[at - 1] = number + 1
        elif joins_right:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
