"""Plain records and scored samples."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from services.replay_buffer.buffer import Buffer, ScoredSample
from services.replay_buffer.selection import Form, Policy, batch, choose
from services.replay_buffer.settlement import settlement
from shared.wire.messages import (
    Attempt,
    Batched,
    Dead,
    Dropped,
    EpochOpened,
    GaveUp,
    Issued,
    LedgerRecord,
    Retired,
    SampleKey,
    Trained,
)

JOB = "sums-1a2b3c"


@dataclass
class Log:
    """A ledger and a scored stream in memory, and a buffer that reads both."""

    n: int = 2
    groups_per_step: int = 2
    staleness: int = 1
    steps: int = 100
    records: list[LedgerRecord] = field(default_factory=list)
    scored: list[ScoredSample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffer = Buffer(JOB, self.staleness)
        self.write(EpochOpened(epoch=1, role="trainer", holder="t"))

    @property
    def policy(self) -> Policy:
        return Policy(self.groups_per_step, self.staleness, self.steps, pace_seconds=30.0)

    def write(self, record: LedgerRecord) -> int:
        self.records.append(record)
        self.buffer.read(len(self.records), record)
        return len(self.records)

    def issue(self, *groups: int, version: int = 0) -> None:
        for group in groups:
            self.write(Issued(epoch=1, group=group, row=group, row_digest="r", n=self.n, version_step=version))

    def score(self, group: int, *indices: int, oldest: int = 0, valid: bool = True, attempt: int = 1) -> None:
        for index in indices or range(self.n):
            sample = ScoredSample(
                group=group,
                index=index,
                sequence=len(self.scored) + 1,
                attempt=Attempt(1, attempt),
                valid=valid,
                reward=0.5,
                digest=f"d{len(self.scored)}",
                oldest_step=oldest,
                tokens=3,
                error="" if valid else "bad",
            )
            self.scored.append(sample)
            self.buffer.add(sample)

    def give_up(self, group: int, index: int) -> None:
        self.write(GaveUp(epoch=1, sample=SampleKey(JOB, group, index).id, error="engine died", attempts=["1.1"]))

    def train(self, last: int, oldest_kept: int = 0) -> None:
        self.write(
            Trained(
                epoch=1,
                first=self.buffer.view.trained_to + 1,
                last=last,
                digest="",
                checkpoint=f"{last}.1",
                oldest_kept_step=oldest_kept,
            )
        )

    def form(self, waited_seconds: float = 0.0) -> tuple[int, ...] | str:
        """The groups of the next batch, recorded; or the reason why there is none."""
        answer = choose(self.buffer, self.policy, waited_seconds)
        if isinstance(answer, Form):
            self.write(batch(self.buffer, answer.groups, 1))
            return answer.groups
        return answer.reason

    def settle(self, cancelling: bool = False) -> list[Dead | Dropped | Retired]:
        """Everything that the buffer writes by itself now."""
        written: list[Dead | Dropped | Retired] = []
        while (record := settlement(self.buffer, self.policy, cancelling=cancelling)) is not None:
            self.write(record)
            written.append(record)
        return written

    def rebuilt(self) -> Buffer:
        """A new process: everything is read again."""
        buffer = Buffer(JOB, self.staleness)
        for sequence, record in enumerate(self.records, 1):
            buffer.read(sequence, record)
        for sample in self.scored:
            buffer.add(sample)
        return buffer

    def last_batch(self) -> list[str]:
        found = [record for record in self.records if isinstance(record, Batched)]
        return [sample.sample for sample in found[-1].samples]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def make_log() -> type[Log]:
    return Log
