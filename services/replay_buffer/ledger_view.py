"""What the ledger says, folded to what the buffer needs: open groups, batches, what is trained, what may be deleted.

Pure: records in, in order, state out. A group is in exactly one place:

    issued -> open -> batched -> trained and retired -> expendable (covered by the oldest kept checkpoint)
                \\-> every sample dropped or dead -------^

Memory is bounded by what is in flight: an expendable group is one more number in an interval.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from services.replay_buffer.intervals import IntervalSet
from shared.wire.messages import (
    Batched,
    Dead,
    Dropped,
    Ending,
    EpochOpened,
    GaveUp,
    Issued,
    LedgerRecord,
    Retired,
    SampleKey,
    Trained,
)


class Inconsistent(Exception):
    """The ledger contradicts itself: the text names the record. Nothing may be decided on top of it."""


@dataclass
class OpenGroup:
    """An issued group that is neither batched nor wholly settled. `settled`: indices dropped or dead already."""

    number: int
    n: int
    version_step: int
    gave_up: dict[int, str] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)

    def unsettled(self) -> list[int]:
        return [index for index in range(self.n) if index not in self.settled]


class LedgerView:
    """The fold. `fold` is given every record once, in order."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.records = 0
        self.trainer_epoch = 0
        self.open: dict[int, OpenGroup] = {}
        self.batched: dict[int, dict[int, int]] = {}  # step -> group -> samples, while the group is not expendable
        self.step_of: dict[int, int] = {}  # group -> step, for the groups in `batched`
        self.expendable = IntervalSet()
        self.ending: int | None = None
        self.trained_to = 0
        self.retired_to = 0
        self.oldest_kept_step = 0
        self._sequences = array("q")  # the ledger sequence of each step's batch, from step 1

    @property
    def last_batched(self) -> int:
        return len(self._sequences)

    def batch_sequence(self, step: int) -> int | None:
        return self._sequences[step - 1] if 1 <= step <= self.last_batched else None

    def unsettled(self, number: int) -> list[int]:
        """The indices of an open or batched group that are neither dropped nor dead."""
        group = self.open.get(number)
        return group.unsettled() if group is not None else list(range(self.batched[self.step_of[number]][number]))

    def last_step(self, steps: int) -> int:
        """The job's last step: `steps` of the job file, or less when an early end was recorded."""
        return steps if self.ending is None else min(steps, self.ending)

    def fold(self, sequence: int, record: LedgerRecord) -> None:
        self.records += 1
        match record:
            case EpochOpened(role="trainer"):
                self.trainer_epoch = record.epoch
            case Issued():
                self._issue(sequence, record)
            case GaveUp():
                key = SampleKey.parse(record.sample)
                group = self.open.get(key.group) if key.eval_round is None else None
                if group is not None and key.index in group.unsettled():
                    group.gave_up[key.index] = record.error
            case Batched():
                self._batch(sequence, record)
            case Dropped():
                self._settle(sequence, record.samples, dead=False)
            case Dead():
                self._settle(sequence, record.samples, dead=True)
            case Trained():
                self.trained_to = max(self.trained_to, record.last)
                self.oldest_kept_step = record.oldest_kept_step
                self._cover()
            case Retired():
                self.retired_to = max(self.retired_to, record.last)
                self._cover()
            case Ending():
                self.ending = record.last_step if self.ending is None else min(self.ending, record.last_step)
            case _:
                pass

    def _issue(self, sequence: int, record: Issued) -> None:
        if record.group in self.open or record.group in self.step_of or record.group in self.expendable:
            raise Inconsistent(f"ledger record {sequence} of {self.job} issues group {record.group} a second time")
        self.open[record.group] = OpenGroup(record.group, record.n, record.version_step)

    def _batch(self, sequence: int, record: Batched) -> None:
        if record.step != self.last_batched + 1:
            raise Inconsistent(
                f"ledger record {sequence} of {self.job} is the batch of step {record.step}, "
                f"where step {self.last_batched + 1} comes next"
            )
        indices: dict[int, set[int]] = {}
        for sample in record.samples:
            key = SampleKey.parse(sample.sample)
            indices.setdefault(key.group, set()).add(key.index)
        for number, used in indices.items():
            group = self.open.get(number)
            if group is None or used != set(group.unsettled()):
                raise Inconsistent(f"ledger record {sequence} of {self.job} batches group {number}, which is not open")
            del self.open[number]
            self.step_of[number] = record.step
        self.batched[record.step] = {number: len(used) for number, used in indices.items()}
        self._sequences.append(sequence)

    def _settle(self, sequence: int, samples: list[str], *, dead: bool) -> None:
        groups: dict[int, list[int]] = {}
        for sample in samples:
            key = SampleKey.parse(sample)
            groups.setdefault(key.group, []).append(key.index)
        for number, indices in groups.items():
            group = self.open.get(number)
            if group is not None and len(set(indices) & set(group.unsettled())) == len(indices):
                group.settled.update(indices)
                for index in indices:
                    group.gave_up.pop(index, None)
                if len(group.settled) == group.n:
                    del self.open[number]
                    self.expendable.add(number)
            elif not dead and self.step_of.get(number, 0) > self.trained_to:
                self._unbatch(number)
            else:
                raise Inconsistent(f"ledger record {sequence} of {self.job} settles group {number}, not in flight")

    def _unbatch(self, number: int) -> None:
        """A batch that no checkpoint covers is dropped with its job."""
        step = self.step_of.pop(number)
        del self.batched[step][number]
        if not self.batched[step]:
            del self.batched[step]
        self.expendable.add(number)

    def _cover(self) -> None:
        covered = min(self.retired_to, self.oldest_kept_step)
        for step in [step for step in self.batched if step <= covered]:
            for number in self.batched.pop(step):
                del self.step_of[number]
                self.expendable.add(number)
