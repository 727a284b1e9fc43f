"""Whatever happens in whatever order, and wherever the process is killed: one place a sample, no age over the bound."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.replay_buffer.buffer import Buffer, ScoredSample
from services.replay_buffer.selection import Form, Policy, Ready, Wait, answer, batch, choose
from services.replay_buffer.settlement import ended, settlement
from shared.wire.messages import (
    Attempt,
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

JOB = "sums-1a2b3c"
N = 2


def rebuilt(records: list[LedgerRecord], scored: list[ScoredSample], staleness: int) -> Buffer:
    buffer = Buffer(JOB, staleness)
    for sequence, record in enumerate(records, 1):
        buffer.read(sequence, record)
    for sample in scored:
        buffer.add(sample)
    return buffer


def places(records: list[LedgerRecord]) -> dict[str, list[str]]:
    """Where the ledger puts each issued sample, computed from the records alone."""
    found: dict[str, list[str]] = {}
    batches: dict[int, list[str]] = {}
    for record in records:
        match record:
            case Issued():
                for index in range(record.n):
                    found[SampleKey(JOB, record.group, index).id] = []
            case Batched():
                batches[record.step] = [sample.sample for sample in record.samples]
            case Retired():
                for step in range(record.first, record.last + 1):
                    for sample in batches.get(step, []):
                        found[sample].append("trained")
            case Dropped():
                for sample in record.samples:
                    found[sample].append(record.reason)
            case Dead():
                for sample in record.samples:
                    found[sample].append("dead")
    return found


class Job(RuleBasedStateMachine):
    """A scheduler, workers, a trainer and a buffer that may be killed between any two of their steps."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[LedgerRecord] = [EpochOpened(epoch=1, role="trainer", holder="t")]
        self.scored: list[ScoredSample] = []
        self.policy = Policy(groups_per_step=2, staleness=1, steps=6)
        self.cancelling = False
        self.buffer = rebuilt(self.records, [], 1)

    def write(self, record: LedgerRecord) -> None:
        self.records.append(record)
        self.buffer.read(len(self.records), record)

    def issued(self) -> int:
        return sum(isinstance(record, Issued) for record in self.records)

    def version(self) -> int:
        return self.buffer.view.last_batched

    @rule(count=st.integers(1, 3))
    def issue(self, count: int) -> None:
        for _ in range(count):
            self.write(
                Issued(epoch=1, group=self.issued(), row=0, row_digest="", n=N, version_step=max(0, self.version() - 1))
            )

    @rule(back=st.integers(0, 8), index=st.integers(0, N - 1), age=st.integers(0, 3), valid=st.integers(0, 9))
    def score(self, back: int, index: int, age: int, valid: int) -> None:
        group = self.issued() - back
        if group >= 0:  # also one that is not issued yet: the streams are read side by side
            sample = ScoredSample(
                group=group,
                index=index,
                sequence=len(self.scored) + 1,
                attempt=Attempt(1, len(self.scored)),
                valid=valid > 0,
                oldest_step=max(0, self.version() - age),
                tokens=1,
            )
            self.scored.append(sample)
            self.buffer.add(sample)

    @rule(back=st.integers(1, 6))
    def score_all(self, back: int) -> None:
        for index in range(N):
            self.score(back, index, 0, 1)

    @rule(back=st.integers(1, 8), index=st.integers(0, N - 1))
    def give_up(self, back: int, index: int) -> None:
        if self.issued() >= back:
            sample = SampleKey(JOB, self.issued() - back, index).id
            self.write(GaveUp(epoch=1, sample=sample, error="x", attempts=[]))

    @rule(waited=st.sampled_from([0.0, 60.0]))
    def ask(self, waited: float) -> None:
        step = self.buffer.next_step
        said = answer(
            self.buffer, self.policy, trainer_epoch=1, step=step, waited_seconds=waited, cancelling=self.cancelling
        )
        if isinstance(said, Form):
            self.write(batch(self.buffer, said.groups, 1))
            again = answer(self.buffer, self.policy, trainer_epoch=1, step=step, waited_seconds=0.0)
            assert again == Ready(len(self.records))

    @rule()
    def settle_one(self) -> None:
        record = settlement(self.buffer, self.policy, cancelling=self.cancelling)
        if record is not None:
            self.write(record)

    @rule(steps=st.integers(1, 2), keep=st.integers(0, 2))
    def train(self, steps: int, keep: int) -> None:
        view = self.buffer.view
        last = min(view.trained_to + steps, view.last_batched)
        alive = all(len(view.batched.get(step, {})) == 2 for step in range(view.trained_to + 1, last + 1))
        if last > view.trained_to and alive:  # a trainer does not report a batch that was dropped with its job
            self.write(
                Trained(
                    epoch=1,
                    first=view.trained_to + 1,
                    last=last,
                    digest="",
                    checkpoint="",
                    oldest_kept_step=max(0, last - keep),
                )
            )

    @rule()
    def end_early(self) -> None:
        if self.buffer.view.last_batched > 3:
            self.write(Ending(epoch=1, last_step=self.buffer.view.last_batched, reason="solved"))

    @rule(really=st.integers(0, 9))
    def cancel(self, really: int) -> None:
        self.cancelling |= really == 0

    @rule()
    def kill(self) -> None:
        self.buffer = rebuilt(self.records, self.scored, 1)

    @rule()
    def purge(self) -> None:
        for number in self.buffer.deletable():
            self.scored = [sample for sample in self.scored if sample.group != number]
            self.buffer.deleted(number)

    @invariant()
    def no_sample_is_in_two_places(self) -> None:
        assert all(len(where) <= 1 for where in places(self.records).values())

    @invariant()
    def no_sample_is_batched_twice_and_none_over_age(self) -> None:
        uses: Counter[str] = Counter()
        for record in self.records:
            if isinstance(record, Batched):
                assert len(record.samples) == 2 * N
                keys = [SampleKey.parse(sample.sample) for sample in record.samples]
                assert keys == sorted(keys)
                uses.update(sample.sample for sample in record.samples)
                assert all(record.step - 1 - sample.oldest_step <= 1 for sample in record.samples)
        assert all(count == 1 for count in uses.values())

    @invariant()
    def a_process_that_reads_everything_again_decides_the_same(self) -> None:
        again = rebuilt(self.records, self.scored, 1)
        assert (again.complete, again.troubled, again.stale) == (
            self.buffer.complete,
            self.buffer.troubled,
            self.buffer.stale,
        )
        assert again.deletable() == self.buffer.deletable()
        assert settlement(again, self.policy, cancelling=self.cancelling) == settlement(
            self.buffer, self.policy, cancelling=self.cancelling
        )

    def teardown(self) -> None:
        """From every prefix of the ledger, with the scores of now, a new process settles all when it is cancelled."""
        for length in range(1, len(self.records) + 1):
            records = self.records[:length]
            buffer = rebuilt(records, self.scored, 1)
            while (record := settlement(buffer, self.policy, cancelling=True)) is not None:
                records.append(record)
                buffer.read(len(records), record)
            assert all(len(where) == 1 for where in places(records).values())
            issued = {record.group for record in records if isinstance(record, Issued)}
            assert not buffer.view.open and not buffer.complete and not buffer.scored.keys() & issued


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@given(data=st.data(), staleness=st.sampled_from([0, 1, 2]), wanted=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_the_batch_does_not_depend_on_the_order_of_arrival(data: Any, staleness: int, wanted: int) -> None:
    groups = data.draw(st.integers(1, 6))
    arrived = data.draw(st.sets(st.tuples(st.integers(0, groups - 1), st.integers(0, N - 1))))
    samples = [
        ScoredSample(group=group, index=index, sequence=at, attempt=Attempt(1, at), oldest_step=0)
        for at, (group, index) in enumerate(sorted(arrived), 1)
    ]
    samples += [  # copies, later in the stream
        ScoredSample(group=s.group, index=s.index, sequence=100 + s.sequence, attempt=Attempt(2, s.sequence))
        for s in data.draw(st.lists(st.sampled_from(samples), max_size=3, unique=True) if samples else st.just([]))
    ]
    issued: list[LedgerRecord] = [
        Issued(epoch=1, group=group, row=0, row_digest="", n=N, version_step=0) for group in range(groups)
    ]
    policy = Policy(groups_per_step=wanted, staleness=staleness, steps=9)
    outcomes = []
    for events in (issued + samples, data.draw(st.permutations(issued + samples))):
        buffer, sequence = Buffer(JOB, staleness), 0
        for event in events:
            if isinstance(event, ScoredSample):
                buffer.add(event)
            else:
                sequence += 1
                buffer.read(sequence, event)
        outcomes.append(choose(buffer, policy, 0.0))
        if isinstance(outcomes[-1], Form):
            outcomes[-1] = batch(buffer, outcomes[-1].groups, 1)
    assert outcomes[0] == outcomes[1]
    complete = {g for g in range(groups) if all((g, i) in arrived for i in range(N))}
    in_order = set(range(wanted)) <= complete and groups >= wanted
    assert isinstance(outcomes[0], Batched) == (in_order if staleness == 0 else len(complete) >= wanted)


@pytest.mark.parametrize("cancelling", [True, False])
def test_an_empty_job_has_nothing_to_settle(cancelling: bool) -> None:
    buffer = Buffer(JOB, 1)
    policy = Policy(groups_per_step=2, staleness=1, steps=6)
    assert settlement(buffer, policy, cancelling=cancelling) is None
    assert ended(buffer, policy, cancelling=cancelling) == cancelling
    assert isinstance(choose(buffer, policy, 0.0), Wait)
