"""The pure parts together, driven by a random world: workers that come, die, lie about nothing but forget everything.

Whatever happens: no sample is leased twice at once, the staleness rule is never broken, every id is settled once, and
the job comes to its end.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.admission import Plan, admissible, last_step
from services.scheduler.leases import LeaseTable
from services.scheduler.leasing import Waiting, decide
from services.scheduler.ledger_view import LedgerView
from services.scheduler.verdicts import verdict
from services.scheduler.versions import Versions
from services.scheduler.work import Work
from shared.wire.messages import (
    AskLeases,
    Attempt,
    Batched,
    BatchedSample,
    Dead,
    Dropped,
    Ended,
    Held,
    Issued,
    LedgerRecord,
    Retired,
    SampleKey,
    Trained,
    Version,
)

N = 2  # samples a group


class World:
    """A broker, a buffer, a trainer and some workers, one event at a time."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.random = random.Random(seed)
        self.plan = plan
        self.records: list[LedgerRecord] = []
        self.finished: set[SampleKey] = set()
        self.settled: list[str] = []
        self.steps: dict[str, int] = {}
        self.held: dict[str, dict[SampleKey, Attempt]] = {"a": {}, "b": {}}
        self.ended: dict[str, list[Ended]] = {"a": [], "b": []}
        self.announced = 0
        self.trained = 0
        self.now = 0.0
        self.epoch = 0
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """As after a kill: everything from the ledger, what is finished from the streams."""
        self.epoch += 1
        self.view, self.versions = LedgerView(), Versions()
        for number, record in enumerate(self.records, 1):
            self.view.apply(number, record)
        self.table = LeaseTable(self.epoch, lease_seconds=20.0, silent_seconds=3.0)
        self.work = Work(lambda group, index: SampleKey("j", group, index))
        for group in self.view.open:
            self.work.open(group, N, doubtful=True, not_before=self.now + 3.0)
            for index in range(N):
                key = SampleKey("j", group, index)
                if key in self.finished:
                    self.work.finish(key, self.now)
                elif not self.view.wants(group, index):
                    self.work.lose(key)

    def write(self, record: LedgerRecord) -> None:
        self.records.append(record)
        self.view.apply(len(self.records), record)
        if isinstance(record, Issued):
            assert self.view.in_system(self.applied) <= self.plan.groups_at_once

    @property
    def applied(self) -> int:
        return self.versions.applied_step(self.view.applied_floor)

    def wants(self, key: SampleKey) -> bool:
        return self.view.wants(key.group, key.index) and self.work.wants(key)

    # --- the scheduler ----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        self.versions.report(worker.version for worker in self.table.workers.values())
        self.work.keep_only(self.view.open)
        self.table.revoke(lambda key: not self.wants(key))
        while admissible(self.view, self.plan, self.applied):
            group = self.view.issued
            self.write(Issued(epoch=1, group=group, row=0, row_digest="", n=N, version_step=self.applied))
            self.work.open(group, N)

    def take_back(self, returned) -> None:
        for each in returned:
            if not self.wants(each.key):
                continue
            if each.key in self.finished:
                self.work.finish(each.key, self.now)
                continue
            self.write(verdict(self.view.history(each.key.group, each.key.index), each, max_attempts=3))
            if self.view.wants(each.key.group, each.key.index):
                self.work.put_back(each.key)
            else:
                self.work.lose(each.key)

    def ask(self, name: str) -> None:
        """A worker's ask, and its answer, which is sometimes lost."""
        held = [Held(sample=key.id, attempt=attempt, tokens=int(self.now)) for key, attempt in self.held[name].items()]
        version = str(Version(self.random.randint(max(0, self.announced - 1), self.announced), 1))
        ask = AskLeases(
            worker=name, job="j", version=version, slots=4, free_slots=4 - len(held), held=held, ended=self.ended[name]
        )
        self.ended[name] = []
        report = self.table.report(ask, self.now, self.wants)
        for key in report.adopted:
            self.work.lease(key)
        for key in report.finished:
            self.work.finish(key, self.now)
        self.take_back(report.returned)
        self.advance()
        waiting = Waiting(self.work.waiting(), oldest_step=self.announced - self.plan.staleness)
        grants = decide(self.table.views(name, ask.free_slots), waiting, self.now)
        assert len(grants) <= ask.free_slots
        for held_back in report.revoked:
            self.held[name].pop(SampleKey.parse(held_back.sample), None)
        for grant in grants:
            assert self.wants(grant.key)
            if grant.key in self.finished:
                assert self.work.is_doubtful(grant.key)
                self.work.finish(grant.key, self.now)
                continue
            attempt = self.table.grant(grant.key, name, self.now)
            self.work.lease(grant.key)
            if self.random.random() < 0.9:
                self.held[name][grant.key] = attempt
        leased = {key.id for key in map(SampleKey.parse, self.table.leases)}
        assert len(leased) == len(self.table.leases) == self.work.num_leased

    # --- the others -------------------------------------------------------------------------------------------------

    def generate(self, name: str) -> None:
        """One of a worker's samples ends, well or not."""
        if not self.held[name]:
            return
        key = self.random.choice(list(self.held[name]))
        attempt = self.held[name].pop(key)
        failed = self.random.random() < 0.15
        if not failed:
            self.finished.add(key)
        self.ended[name].append(Ended(sample=key.id, attempt=attempt, error="engine died" if failed else ""))

    def die(self, name: str) -> None:
        self.held[name], self.ended[name] = {}, []

    def settle(self, samples: list[str]) -> None:
        self.settled += samples

    def buffer(self) -> None:
        """Dead groups go; then, if B groups are complete, the next batch."""
        for group, found in list(self.view.open.items()):
            lost = [i for i, history in found.histories.items() if history.gave_up]
            if lost:
                ids = [SampleKey("j", group, index).id for index in range(N)]
                dead = [ids[index] for index in lost]
                rest = [i for i in ids if i not in dead]
                self.write(Dead(epoch=1, samples=dead, errors=["x"] * len(dead)))
                if rest:
                    self.write(Dropped(epoch=1, samples=rest, reason="sibling dead"))
                self.settle(ids)
        step = self.view.batched_step + 1
        complete = [g for g in self.view.open if all(SampleKey("j", g, i) in self.finished for i in range(N))]
        if (
            step > last_step(self.view, self.plan)
            or step > self.announced + 1
            or len(complete) < self.plan.groups_per_step
        ):
            return
        chosen = [
            BatchedSample(sample=SampleKey("j", g, i).id, attempt=Attempt(1, 1), sequence=1, digest="", reward=0.0)
            for g in sorted(complete)[: self.plan.groups_per_step]
            for i in range(N)
        ]
        self.write(Batched(epoch=1, step=step, trainer_epoch=1, samples=chosen))

    def train(self) -> None:
        if self.view.batched_step > self.announced:
            self.announced = self.view.batched_step
        elif self.view.batched_step > self.trained:
            first, self.trained = self.trained + 1, self.view.batched_step
            self.write(Trained(epoch=1, first=first, last=self.trained, digest="", checkpoint="", oldest_kept_step=0))
            self.write(Retired(epoch=1, first=first, last=self.trained))
            for record in self.records:
                if isinstance(record, Batched) and first <= record.step <= self.trained:
                    self.settle([sample.sample for sample in record.samples])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    staleness=st.integers(0, 3),
    groups_per_step=st.integers(1, 3),
    trouble=st.booleans(),
)
def test_whatever_happens_the_books_balance_and_the_job_ends(
    seed: int, staleness: int, groups_per_step: int, trouble: bool
) -> None:
    world = World(Plan(groups_per_step, staleness, steps=4), seed)
    for _ in range(6000):
        world.now += 0.25
        event = world.random.random()
        name = world.random.choice("ab")
        if trouble and event < 0.01:
            world.start_scheduler()
        elif trouble and event < 0.02:
            world.die(name)
        elif event < 0.5:
            world.ask(name)
        elif event < 0.8:
            world.generate(name)
        elif event < 0.9:
            world.buffer()
        else:
            world.train()
        world.take_back(world.table.expire(world.now))
        world.advance()
        if world.trained == 4:
            break
    assert world.trained == 4, "the job did not come to its end"
    assert len(world.settled) == len(set(world.settled)), "an id was settled twice"
    assert world.view.issued - world.view.gone == 4 * groups_per_step
    assert world.view.unsettled_groups == 0
    replayed = LedgerView()
    for number, record in enumerate(world.records, 1):
        replayed.apply(number, record)
    assert (replayed.issued, replayed.gone, replayed.died) == (world.view.issued, world.view.gone, world.view.died)
