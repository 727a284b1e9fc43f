"""A growing set of integers as intervals above a low-water mark: what settles in rough order stays small.

Everything below `low` is in. Above it lie disjoint intervals, so a million settled groups around one open group take
two numbers, not a million.
"""

from __future__ import annotations

from bisect import bisect_right


class Intervals:
    """Members are added once and never leave."""

    def __init__(self) -> None:
        self.low = 0
        self._starts: list[int] = []
        self._ends: list[int] = []  # exclusive; parallel to _starts, ascending, never adjacent

    def __contains__(self, value: int) -> bool:
        if value < self.low:
            return True
        at = bisect_right(self._starts, value) - 1
        return at >= 0 and value < self._ends[at]

    def __len__(self) -> int:
        return self.low + sum(end - start for start, end in zip(self._starts, self._ends, strict=True))

    @property
    def pieces(self) -> int:
        """How many intervals lie above the low-water mark."""
        return len(self._starts)

    def add(self, value: int) -> bool:
        """Adds `value`; False when it was in already."""
        if value < self.low:
            return False
        at = bisect_right(self._starts, value)
        if at and value < self._ends[at - 1]:
            return False
        joins_left = at > 0 and self._ends[at - 1] == value
        joins_right = at < len(self._starts) and self._starts[at] == value + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            self._starts.pop(at)
        elif joins_left:
            self._ends[at - 1] = value + 1
        elif joins_right:
            self._starts[at] = value
        else:
            self._starts.insert(at, value)
            self._ends.insert(at, value + 1)
        if self._starts[0] <= self.low:
            self.low = self._ends.pop(0)
            self._starts.pop(0)
        return True
