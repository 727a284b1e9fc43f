"""The fold of a job's ledger to what the scheduler decides by. Pure: records in, facts out.

    issued ──► open groups ──┬─ batched(step) ── trained ── retired ──► settled
                             └─ dropped, dead ────────────────────────► settled ("gone": its place is free again)

A group is open while one of its samples may still have to be generated or settled. Batched groups are kept by step
until they are retired; settled groups are intervals. So memory follows what is in flight, not what has been.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.scheduler.intervals import Intervals
from shared.wire.messages import (
    Batched,
    Dead,
    Dropped,
    Ending,
    EpochOpened,
    GaveUp,
    Issued,
    LedgerRecord,
    Requeued,
    Retired,
    Trained,
)

UNCOUNTED_RETURNS = 10  # returns that blame the worker; one more of the same sample blames the sample
HISTORY = 20


class BadLedger(ValueError):
    """Records that contradict each other; names the sequence and what does not fit."""


@dataclass
class SampleHistory:
    """What failed before, newest last; only samples that failed have one."""

    failures: int = 0
    returns: int = 0
    tries: list[str] = field(default_factory=list)
    gave_up: bool = False


@dataclass
class OpenGroup:
    """An issued group that is neither batched nor wholly settled. `settled` has a bit for each sample."""

    group: int
    row: int
    row_digest: str
    n: int
    settled: int = 0
    died: bool = False
    histories: dict[int, SampleHistory] = field(default_factory=dict)

    @property
    def unsettled(self) -> int:
        """Bits of the samples that may still have to be generated."""
        gave_up = sum(1 << index for index, history in self.histories.items() if history.gave_up)
        return ((1 << self.n) - 1) & ~(self.settled | gave_up)


def place(sample: str) -> tuple[int, int]:
    """(group, index) of a training sample's id."""
    _, group, index = sample.rsplit("/", 2)
    return int(group), int(index)


class LedgerView:
    """Apply every record once, in order."""

    def __init__(self) -> None:
        self.open: dict[int, OpenGroup] = {}
        self.issued = 0
        self.gone = 0  # groups settled without being batched
        self.died = 0  # groups that lost a sample for good
        self.settled = Intervals()
        self.batched_step = 0
        self.trained_step = 0
        self.applied_floor = 0  # newest step known to have been applied by a worker when something was issued
        self.ending: Ending | None = None
        self.newest_error = ""
        self.records = 0
        self._batched_before = array("q", [0])  # [s]: groups batched in steps 1..s
        self._batched_groups: dict[int, OpenGroup] = {}  # batched, not settled
        self._by_step: dict[int, list[int]] = {}  # their groups, by step, until the step is retired

    # --- questions --------------------------------------------------------------------------------------------------

    def batched_groups(self, up_to_step: int | None = None) -> int:
        """How many groups stand in the batches of steps 1..`up_to_step` (all when None)."""
        last = len(self._batched_before) - 1
        return self._batched_before[last if up_to_step is None else max(0, min(up_to_step, last))]

    def in_system(self, applied_step: int) -> int:
        """Design section 6: issued, not dropped, not dead, not in a batch that an applied version was made from."""
        return self.issued - self.gone - self.batched_groups(applied_step)

    @property
    def unsettled_groups(self) -> int:
        return self.issued - len(self.settled)

    @property
    def unfinished_groups(self) -> int:
        """Groups neither settled nor covered by a checkpoint: what still has to be trained or dropped."""
        trained = sum(
            group in self._batched_groups
            for step, groups in self._by_step.items()
            if step <= self.trained_step
            for group in groups
        )
        return self.issued - len(self.settled) - trained

    def dead_rate(self) -> float:
        """The share of the issued groups that lost a sample for good."""
        return self.died / self.issued if self.issued else 0.0

    def wants(self, group: int, index: int) -> bool:
        """Whether this sample may still have to be generated."""
        found = self.open.get(group)
        return found is not None and bool(found.unsettled >> index & 1)

    def history(self, group: int, index: int) -> SampleHistory:
        found = self.open.get(group)
        return (found.histories.get(index) if found is not None else None) or SampleHistory()

    # --- the fold ---------------------------------------------------------------------------------------------------

    def apply(self, sequence: int, record: LedgerRecord) -> None:
        self.records += 1
        match record:
            case Issued():
                self._issued(sequence, record)
            case Batched():
                self._batched(sequence, record)
            case Requeued():
                self._requeued(record)
            case GaveUp():
                self._gave_up(record)
            case Dropped():
                self._settle(sequence, record.samples)
            case Dead():
                self._dead(sequence, record)
            case Trained():
                self.trained_step = max(self.trained_step, record.last)
            case Retired():
                self._retired(record)
            case Ending():
                self.ending = record
            case EpochOpened():
                pass

    def _issued(self, sequence: int, record: Issued) -> None:
        if record.group != self.issued:
            raise BadLedger(f"record {sequence} issues group {record.group}, the next group is {self.issued}")
        self.issued += 1
        self.applied_floor = max(self.applied_floor, record.version_step)
        self.open[record.group] = OpenGroup(record.group, record.row, record.row_digest, record.n)

    def _batched(self, sequence: int, record: Batched) -> None:
        if record.step != self.batched_step + 1:
            raise BadLedger(f"record {sequence} batches step {record.step}, the next step is {self.batched_step + 1}")
        groups: list[int] = []
        for sample in record.samples:
            group, _ = place(sample.sample)
            found = self.open.pop(group, None)
            if found is not None:
                groups.append(group)
                self._batched_groups[group] = found
        self.batched_step = record.step
        self._batched_before.append(self._batched_before[-1] + len(groups))
        self._by_step[record.step] = groups

    def _requeued(self, record: Requeued) -> None:
        history = self._history(record.sample)
        if history is None:
            return
        if record.counts:
            history.failures += 1
        else:
            history.returns += 1
        history.tries = [*history.tries, f"{record.attempt}: {record.reason}"][-HISTORY:]

    def _gave_up(self, record: GaveUp) -> None:
        self.newest_error = record.error
        history = self._history(record.sample)
        if history is not None:
            history.gave_up = True

    def _dead(self, sequence: int, record: Dead) -> None:
        if record.errors:
            self.newest_error = record.errors[-1]
        for group in {place(sample)[0] for sample in record.samples}:
            found = self.open.get(group)
            if found is not None and not found.died:
                found.died = True
                self.died += 1
        self._settle(sequence, record.samples)

    def _settle(self, sequence: int, samples: Iterable[str]) -> None:
        for sample in samples:
            group, index = place(sample)
            if group >= self.issued:
                raise BadLedger(f"record {sequence} settles {sample}, which was never issued")
            found = self.open.get(group) or self._batched_groups.get(group)
            if found is None:
                continue
            found.settled |= 1 << index
            if found.settled == (1 << found.n) - 1:
                self.settled.add(group)
                if self.open.pop(group, None) is not None:
                    self.gone += 1
                self._batched_groups.pop(group, None)

    def _retired(self, record: Retired) -> None:
        for step in range(record.first, record.last + 1):
            for group in self._by_step.pop(step, ()):
                self._batched_groups.pop(group, None)
                self.settled.add(group)

    def _history(self, sample: str) -> SampleHistory | None:
        group, index = place(sample)
        found = self.open.get(group)
        return None if found is None else found.histories.setdefault(index, SampleHistory())
