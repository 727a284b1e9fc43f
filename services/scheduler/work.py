"""Where each sample of the open groups stands while it is not settled: waiting, leased or finished. Pure.

    opened ──► waiting ──lease──► leased ──finish──► finished (its trajectory is stored)
                  ▲                  │
                  └──── put_back ────┘

One instance holds the training groups, one more each evaluation round. A sample that may have been given out before is
*doubtful*: it is looked up in the streams before it is leased, so that nothing finished is generated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from services.scheduler.leasing import Candidate
from shared.wire.messages import SampleKey


@dataclass
class GroupWork:
    """One bit a sample."""

    n: int
    leased: int = 0
    finished: int = 0
    lost: int = 0  # given up for good
    doubtful: int = 0
    not_before: dict[int, float] = field(default_factory=dict)
    finished_at: dict[int, float] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        return ((1 << self.n) - 1) & ~(self.leased | self.finished | self.lost)


class Work:
    """`key(group, index)` makes the ids; groups come in ascending order and leave in any."""

    def __init__(self, key: Callable[[int, int], SampleKey]) -> None:
        self._key = key
        self.groups: dict[int, GroupWork] = {}

    def open(self, group: int, n: int, *, doubtful: bool = False, not_before: float = 0.0) -> None:
        work = GroupWork(n)
        if doubtful:
            work.doubtful = (1 << n) - 1
        if not_before:
            work.not_before = dict.fromkeys(range(n), not_before)
        self.groups[group] = work

    def close(self, group: int) -> None:
        self.groups.pop(group, None)

    def keep_only(self, groups: Iterable[int]) -> None:
        """Close every group that is not among `groups`."""
        for group in self.groups.keys() - set(groups):
            del self.groups[group]

    # --- what happens to a sample -----------------------------------------------------------------------------------

    def lease(self, key: SampleKey) -> None:
        work = self.groups[key.group]
        work.leased |= 1 << key.index
        work.doubtful |= 1 << key.index  # from now on it may be out there
        work.not_before.pop(key.index, None)

    def put_back(self, key: SampleKey, not_before: float = 0.0) -> None:
        """Its lease ended without a trajectory; it waits again."""
        work = self.groups.get(key.group)
        if work is not None:
            work.leased &= ~(1 << key.index)
            if not_before:
                work.not_before[key.index] = not_before

    def finish(self, key: SampleKey, now: float) -> bool:
        """Its trajectory is stored; False when that was known."""
        work = self.groups.get(key.group)
        bit = 1 << key.index
        if work is None or work.finished & bit:
            return False
        work.finished |= bit
        work.leased &= ~bit
        work.finished_at[key.index] = now
        return True

    def unfinish(self, key: SampleKey) -> None:
        """What was said to be stored is not there: it waits again."""
        work = self.groups.get(key.group)
        if work is not None:
            work.finished &= ~(1 << key.index)
            work.finished_at.pop(key.index, None)

    def lose(self, key: SampleKey) -> None:
        """Given up for good."""
        work = self.groups.get(key.group)
        if work is not None:
            work.leased &= ~(1 << key.index)
            work.lost |= 1 << key.index

    # --- questions --------------------------------------------------------------------------------------------------

    def wants(self, key: SampleKey) -> bool:
        """It is open and not finished, whether leased or not."""
        work = self.groups.get(key.group)
        return work is not None and key.index < work.n and not (work.finished | work.lost) >> key.index & 1

    def is_waiting(self, key: SampleKey) -> bool:
        work = self.groups.get(key.group)
        return work is not None and bool(work.waiting >> key.index & 1)

    def is_doubtful(self, key: SampleKey) -> bool:
        work = self.groups.get(key.group)
        return work is not None and bool(work.doubtful >> key.index & 1)

    def waiting(self) -> Iterator[Candidate]:
        """Oldest group first, index by index. The caller takes as many as it needs before anything changes."""
        for group, work in self.groups.items():
            for index in bits(work.waiting):
                yield Candidate(self._key(group, index), work.not_before.get(index, 0.0))

    def doubtful(self) -> list[SampleKey]:
        """What waits and has to be looked up before it is leased."""
        return [
            self._key(group, index)
            for group, work in self.groups.items()
            for index in bits(work.waiting & work.doubtful)
        ]

    def finished_before(self, moment: float) -> list[SampleKey]:
        """Finished longer ago than `moment` and still open."""
        return [
            self._key(group, index)
            for group, work in self.groups.items()
            for index, at in work.finished_at.items()
            if at < moment
        ]

    def confirm(self, key: SampleKey, now: float) -> None:
        """It was looked at again: what was said of it is still so."""
        work = self.groups.get(key.group)
        if work is not None and key.index in work.finished_at:
            work.finished_at[key.index] = now

    @property
    def num_waiting(self) -> int:
        return sum(work.waiting.bit_count() for work in self.groups.values())

    @property
    def num_leased(self) -> int:
        return sum(work.leased.bit_count() for work in self.groups.values())

    @property
    def num_finished(self) -> int:
        return sum(work.finished.bit_count() for work in self.groups.values())

    @property
    def num_lost(self) -> int:
        return sum(work.lost.bit_count() for work in self.groups.values())

    @property
    def num_left(self) -> int:
        """Waiting or leased."""
        return self.num_waiting + self.num_leased


def bits(value: int) -> Iterator[int]:
    """The places of the ones in `value`, lowest first."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
