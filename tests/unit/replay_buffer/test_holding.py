"""One holding over a bus: what it writes, answers and deletes, and in which order; killed at every step of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.replay_buffer.holding import Holding
from services.replay_buffer.selection import Policy
from shared.wire import topics
from shared.wire.bus.api import Ack, BusError
from shared.wire.bus.memory import MemoryBus
from shared.wire.ledger import read_ledger
from shared.wire.messages import (
    AskBatch,
    Attempt,
    Batched,
    BatchReply,
    Dead,
    Dropped,
    EpochOpened,
    GaveUp,
    Issued,
    LedgerRecord,
    Retired,
    SampleKey,
    Score,
    Scored,
    Trained,
    decode,
    encode,
    message_id,
    score_headers,
)

JOB = "sums-1a2b3c"
POLICY = Policy(groups_per_step=2, staleness=1, steps=2)


class MortalBus(MemoryBus):
    """A connection of a process that is killed at its n-th write, before or after it reached the broker."""

    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self.dies(-1, False)

    def dies(self, at: int, after: bool) -> MortalBus:
        self.left, self.after = at, after
        self.dead = asyncio.Event()
        return self

    async def _die(self) -> None:
        self.dead.set()
        await asyncio.get_running_loop().create_future()

    async def publish(self, subject: str, data: bytes, **more: Any) -> Ack:
        self.left -= 1
        if self.left == 0 and not self.after:
            await self._die()
        ack = await super().publish(subject, data, **more)
        if self.left == 0:
            await self._die()
        return ack

    async def purge(self, stream: str, subject: str) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            await self._die()
        await super().purge(stream, subject)
        if self.left == 0:
            await self._die()

    def another(self) -> MortalBus:
        return MortalBus(self._broker, self._core)


class World:
    """What the other services do, over their own connection."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.notices: list[str] = []

    async def write(self, record: LedgerRecord) -> None:
        await self.bus.publish(topics.ledger_subject(JOB, "scheduler"), encode(record))

    async def issue(self, *groups: int, version: int = 0) -> None:
        for group in groups:
            await self.write(Issued(epoch=1, group=group, row=0, row_digest="", n=2, version_step=version))

    async def score(
        self, group: int, index: int, attempt: int = 1, score: Score | None = None, oldest: int = 0
    ) -> None:
        key, tried = SampleKey(JOB, group, index), Attempt(1, attempt)
        score = score or Score(total=0.5)
        body = encode(Scored(trajectory=b"", score=score))
        headers = {
            "Sample": key.id, "Attempt": str(tried), "Sample-Class": "train", "Oldest-Step": str(oldest),
            "Tokens": "3", "Worker": "w", **score_headers(score, body),
        }  # fmt: skip
        await self.bus.publish(topics.scored_subject(key), body, message_id=message_id(key.id, tried), headers=headers)

    async def score_groups(self, *groups: int) -> None:
        for group in groups:
            await self.score(group, 0)
            await self.score(group, 1)

    async def train(self, last: int, oldest_kept: int = 0) -> None:
        await self.write(
            Trained(epoch=1, first=last, last=last, digest="", checkpoint="", oldest_kept_step=oldest_kept)
        )

    async def ask(self, step: int, epoch: int = 1) -> BatchReply:
        ask = AskBatch(trainer_epoch=epoch, step=step)
        return decode(BatchReply, await self.bus.request(topics.batch_subject(JOB), encode(ask), timeout_seconds=0.5))

    async def records(self) -> list[LedgerRecord]:
        return [record async for _, _, record in read_ledger(self.bus, JOB)]

    async def stored(self) -> list[str]:
        found = self.bus.follow(topics.scored(JOB).name, headers_only=True, live=False)
        return [message.subject.split(".", 2)[2] async for message in found]

    async def notice(self, level: str, text: str) -> None:
        self.notices.append(f"{level}: {text}")


async def world() -> World:
    bus = MortalBus()
    await bus.declare(topics.job_streams(JOB))
    made = World(bus)
    await made.write(EpochOpened(epoch=1, role="trainer", holder="t"))
    return made


@asynccontextmanager
async def holding(on: World, bus: MemoryBus | None = None, **more: Any) -> AsyncIterator[Holding]:
    options: dict[str, Any] = {"retain": False, "cancelling": lambda: False, "long_poll_seconds": 0.05} | more
    held = Holding(bus or on.bus.another(), JOB, "me", POLICY, notice=on.notice, **options)
    task = asyncio.create_task(held.run())
    try:
        yield held
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait until `true()` (or what it returns, awaited) holds."""
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.002)


async def answered(on: World, step: int) -> BatchReply:
    """Ask until somebody answers."""
    async with asyncio.timeout(5):
        while True:
            try:
                return await on.ask(step)
            except BusError:  # nobody serves yet
                await asyncio.sleep(0.002)


async def ready(on: World, step: int) -> BatchReply:
    """Ask until there is no need to wait any more, as the trainer does."""
    async with asyncio.timeout(5):
        while (reply := await answered(on, step)).status == "wait":
            pass
        return reply


async def test_the_record_stands_in_the_ledger_when_the_answer_comes_and_the_same_question_gets_the_same_one() -> None:
    on = await world()
    await on.issue(0, 1)
    await on.score_groups(1, 0)
    async with holding(on):
        reply = await ready(on, 1)
        stored = await on.bus.get(topics.ledger(JOB).name, sequence=reply.sequence)
        assert reply.status == "ready" and stored is not None and stored.subject == f"ledger.{JOB}.replay-buffer"
        assert await on.ask(1) == reply
    async with holding(on):
        assert (await ready(on, 1)).sequence == reply.sequence
    batches = [record for record in await on.records() if isinstance(record, Batched)]
    assert len(batches) == 1
    assert [s.sample for s in batches[0].samples] == [f"{JOB}/{g}/{i}" for g in (0, 1) for i in (0, 1)]


async def test_two_questions_at_once_form_one_batch() -> None:
    on = await world()
    await on.issue(0, 1)
    async with holding(on, long_poll_seconds=0.3):
        await on.score(0, 0)
        asked = [asyncio.create_task(ready(on, 1)) for _ in range(5)]
        await on.score(0, 1)
        await on.score_groups(1)
        replies = await asyncio.gather(*asked)
    assert len({reply.sequence for reply in replies}) == 1
    assert sum(isinstance(record, Batched) for record in await on.records()) == 1


async def test_a_batch_is_handed_over_as_soon_as_it_is_complete() -> None:
    on = await world()
    await on.issue(0, 1)
    await on.score_groups(0)
    async with holding(on, long_poll_seconds=0.4):
        asked = asyncio.create_task(ready(on, 1))
        await on.score_groups(1)
        async with asyncio.timeout(1.0):
            assert (await asked).status == "ready"


async def test_a_wait_says_what_is_missing() -> None:
    on = await world()
    await on.issue(0, 1)
    await on.score_groups(0)
    async with holding(on) as held:
        await until(lambda: held.buffer.complete)
        reply = await answered(on, 1)
    assert reply == BatchReply(
        status="wait",
        reason="1 of 2 groups are complete; group 1 (issued at version 0) has 0 of 2 samples scored",
        complete_groups=1,
    )


async def test_a_fenced_trainer_is_refused() -> None:
    on = await world()
    await on.write(EpochOpened(epoch=2, role="trainer", holder="t2"))
    async with holding(on) as held:
        await until(lambda: held.buffer.view.trainer_epoch == 2)
        assert (await ready(on, 1)).reason == "trainer epoch 1 is over: epoch 2 has begun"


async def test_an_invalid_score_ends_its_sample_with_the_graders_words_and_frees_the_place() -> None:
    on = await world()
    await on.issue(0)
    async with holding(on):
        await on.score(0, 0)
        await on.score(0, 1, score=Score(valid=False, error="grader ran out of time"))
        await until(lambda: on.notices)

        async def gone() -> bool:
            return await on.stored() == []

        await until(gone)
        await on.score(0, 0, attempt=2)  # a redo that was on its way
        await until(gone)
    assert [record for record in await on.records() if isinstance(record, Dead | Dropped)] == [
        Dead(epoch=1, at=any_time(), samples=[f"{JOB}/0/1"], errors=["grader ran out of time"]),
        Dropped(epoch=1, at=any_time(), samples=[f"{JOB}/0/0"], reason="sibling dead"),
    ]
    assert on.notices == [f"warning: sample {JOB}/0/1 is dead: grader ran out of time"]


class any_time(float):
    """Equal to every clock reading."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float)

    __hash__ = float.__hash__


async def test_trained_samples_are_deleted_only_when_no_kept_checkpoint_needs_them() -> None:
    on = await world()
    await on.issue(0, 1, 2, 3)
    await on.score_groups(0, 1, 2, 3)
    async with holding(on) as held:
        await ready(on, 1)
        await ready(on, 2)
        await on.train(1, oldest_kept=0)
        await until(lambda: held.buffer.view.retired_to == 1)
        assert len(await on.stored()) == 8
        await on.train(2, oldest_kept=1)

        async def first_step_gone() -> bool:
            return await on.stored() == [f"{g}.{i}" for g in (2, 3) for i in (0, 1)]

        await until(first_step_gone)
        assert held.buffer.view.retired_to == 2


async def test_with_retain_nothing_is_deleted() -> None:
    on = await world()
    await on.issue(0, 1, 2)
    await on.score_groups(0, 1)
    await on.score(2, 0, score=Score(valid=False, error="x"))
    async with holding(on, retain=True) as held:
        await ready(on, 1)
        await on.train(1, oldest_kept=1)
        await until(lambda: held.buffer.view.retired_to == 1 and 2 in held.buffer.view.expendable)
    assert len(await on.stored()) == 5


async def test_a_cancelled_job_is_settled_whole_once_it_is_known() -> None:
    on = await world()
    await on.issue(0, 1, 2)
    await on.score_groups(0)
    cancelled = False
    async with holding(on, cancelling=lambda: cancelled) as held:
        await until(lambda: held.buffer.complete)
        cancelled = True
        held.changed.notify()
        await until(lambda: not held.buffer.view.open)
        assert (await answered(on, 1)).reason == "the job is being cancelled"
    dropped = [record for record in await on.records() if isinstance(record, Dropped)]
    assert [(len(record.samples), record.reason) for record in dropped] == [(6, "job ended")]


async def test_a_silence_while_the_trainer_waits_is_told_once() -> None:
    on = await world()
    await on.issue(0, 1)
    async with holding(on, quiet_seconds=0.05) as held:
        await until(lambda: held.buffer.view.open)
        async with asyncio.timeout(5):
            while not on.notices:
                await answered(on, 1)
        for _ in range(5):
            await answered(on, 1)
    assert len(on.notices) == 1
    assert "the trainer waits: 0 of 2 groups are complete; group 0" in on.notices[0]


async def test_a_holder_that_was_replaced_can_write_nothing_more() -> None:
    on = await world()
    await on.issue(0, 1)
    bus = on.bus.another()
    first = Holding(
        bus, JOB, "first", POLICY, retain=False, cancelling=lambda: False, notice=on.notice, long_poll_seconds=0.05
    )
    running = asyncio.create_task(first.run())
    await until(lambda: first.buffer.view.open)
    async with holding(on) as second:
        await until(lambda: second.buffer.view.open)
        await on.score_groups(0, 1)
        reply = await ready(on, 1)
        with pytest.raises(BaseExceptionGroup, match="TaskGroup") as raised:
            await running
        said = decode(BatchReply, await first.on_ask(encode(AskBatch(trainer_epoch=1, step=2))))
    assert "epoch 1 is fenced by epoch 2" in str(raised.value.exceptions)
    assert (reply.status, said.status) == ("ready", "wait")
    assert "this holder is being replaced" in said.reason
    writers = [record.epoch for record in await on.records() if isinstance(record, Batched)]
    assert writers == [2]


async def test_killed_before_and_after_every_write_the_next_process_ends_with_each_sample_in_one_place() -> None:
    deaths = 0
    for after in (False, True):
        for at in range(1, 40):
            on = await world()
            bus = on.bus.another().dies(at, after)
            script = asyncio.create_task(play(on))
            async with holding(on, bus):
                dead = asyncio.create_task(bus.dead.wait())
                await asyncio.wait({script, dead}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
                dead.cancel()
            died = bus.dead.is_set()
            deaths += died
            async with holding(on) as second:
                async with asyncio.timeout(10):
                    await script
                await until(lambda second=second: not second.buffer.view.open and second.buffer.view.retired_to == 2)

                async def settled_messages_gone(on: World = on) -> bool:
                    return await on.stored() == [f"{g}.{i}" for g in (3, 4) for i in (0, 1)]

                await until(settled_messages_gone)
            check(await on.records())
            if not died:
                break
    assert deaths > 10


async def play(on: World) -> None:
    """A short job: two steps, a sample that gives up, leftovers."""
    await on.issue(0, 1, 2)
    await on.score_groups(0)
    await on.score(1, 0)
    await on.write(GaveUp(epoch=1, sample=f"{JOB}/1/1", error="engine died", attempts=["1.1"]))
    await on.score_groups(2)
    await ready(on, 1)
    await on.issue(3, 4, 5, version=1)
    await on.score_groups(3, 4)
    await ready(on, 2)
    await on.score(5, 0)
    await on.train(1)
    await on.train(2, oldest_kept=1)


def check(records: list[LedgerRecord]) -> None:
    batches = {record.step: [s.sample for s in record.samples] for record in records if isinstance(record, Batched)}
    assert len(batches) == sum(isinstance(record, Batched) for record in records) == 2
    ends: list[str] = []
    for record in records:
        match record:
            case Retired():
                ends += [sample for step in range(record.first, record.last + 1) for sample in batches[step]]
            case Dropped() | Dead():
                ends += record.samples
            case _:
                pass
    assert sorted(ends) == [f"{JOB}/{g}/{i}" for g in range(6) for i in (0, 1)]
