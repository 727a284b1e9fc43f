"""A set of integers kept as intervals: settled groups are dense, so a million of them take a few bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Intervals:
    """Grows only. `starts[i]..ends[i]` (both inclusive) are sorted and never touch each other."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._count = 0

    def add(self, number: int) -> bool:
        """Whether `number` was new."""
        at = bisect_right(self._starts, number)
        if at and number <= self._ends[at - 1]:
            return False
        joins_left = at > 0 and self._ends[at - 1] == number - 1
        joins_right = at < len(self._starts) and self._starts[at] == number + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            self._starts.pop(at)
        elif joins_left:
            self._ends[at - 1] = number
        elif joins_right:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number)
        self._count += 1
        return True

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number)
        return at > 0 and number <= self._ends[at - 1]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals, both ends inclusive."""
        return iter(zip(self._starts, self._ends, strict=True))
