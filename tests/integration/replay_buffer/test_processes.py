"""Real replay-buffer processes over a real server: killed, stopped, replaced."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from shared.wire.messages import Batched, Dropped, EpochOpened, Retired


async def test_killed_between_the_record_and_the_answer_the_next_process_hands_over_the_same_batch(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any]
) -> None:
    async with new_world(nats_url) as world:
        await world.issue(0, 1, 2, 3)
        await world.score_groups(1, 3)
        first = start(nats_url)
        await until(lambda: first.said("rebuilt from"))
        asking = asyncio.create_task(world.ask(1))

        async def recorded() -> list[Batched]:
            return [record for record in await world.records() if isinstance(record, Batched)]

        await until(recorded)
        first.end(signal.SIGKILL)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await world.score_groups(0, 2)  # lower groups, complete only now: the record stands

        second = start(nats_url)
        reply = await world.batch(1)
        stored = await world.bus.get(f"ledger-{world.job}", sequence=reply.sequence)
        assert reply.status == "ready" and stored.subject.endswith(".replay-buffer")
        batches = await recorded()
        assert [batch.step for batch in batches] == [1]
        assert [s.sample for s in batches[0].samples] == [f"{world.job}/{g}/{i}" for g in (1, 3) for i in (0, 1)]
        assert (await world.batch(2)).status == "ready"
        assert second.end(signal.SIGTERM) == 0


async def test_a_holder_that_was_stopped_and_woken_up_can_write_nothing_and_stands_by(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any]
) -> None:
    async with new_world(nats_url) as world:
        await world.issue(0, 1, 2, 3)
        first = start(nats_url)
        await until(lambda: first.said("rebuilt from"))
        second = start(nats_url)
        first.send(signal.SIGSTOP)
        await until(lambda: second.said("rebuilt from"))
        await world.score_groups(0, 1, 2, 3)
        assert (await world.batch(1)).status == "ready"
        first.send(signal.SIGCONT)
        await until(lambda: first.said("standing by"))
        assert (await world.batch(2)).status == "ready"

        records = await world.records()
        mine = [record for record in records if isinstance(record, EpochOpened) and record.role == "replay-buffer"]
        assert [record.epoch for record in mine] == [1, 2]
        assert [record.epoch for record in records if isinstance(record, Batched)] == [2, 2]

        second.end(signal.SIGKILL)
        assert first.alive
        await world.train(1, 2, 0)
        await until(lambda: first.said("steps 1..2 are trained and retired"))


async def test_messages_go_when_covered_also_those_that_come_back_after_a_restart(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any]
) -> None:
    async with new_world(nats_url, steps=2) as world:
        await world.issue(0, 1, 2, 3, 4)
        await world.score_groups(0, 1, 2, 3, 4)
        first = start(nats_url)
        await world.batch(1)
        await world.batch(2)
        await world.train(1, 1, 0)
        await world.train(2, 2, 1)
        covered = [f"{group}.{index}" for group in (2, 3) for index in (0, 1)]

        async def only_the_last_step_is_left() -> bool:
            return await world.stored() == covered

        await until(only_the_last_step_is_left)
        first.end(signal.SIGKILL)
        await world.score(0, 1, attempt=2)
        start(nats_url)
        await until(only_the_last_step_is_left)
        ends = [record for record in await world.records() if isinstance(record, Retired | Dropped)]
        assert sum(len(record.samples) for record in ends if isinstance(record, Dropped)) == 2
        assert max(record.last for record in ends if isinstance(record, Retired)) == 2


async def test_a_cancelled_job_is_settled_by_whoever_holds_it(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any]
) -> None:
    async with new_world(nats_url) as world:
        await world.issue(0, 1, 2)
        await world.score_groups(0)
        process = start(nats_url)
        await until(lambda: process.said("rebuilt from"))
        await world.set_state("cancelling")

        async def all_dropped() -> bool:
            dropped = [record for record in await world.records() if isinstance(record, Dropped)]
            return sum(len(record.samples) for record in dropped) == 6

        await until(all_dropped)
        await world.set_state("cancelled")
        assert process.end(signal.SIGTERM) == 0


async def test_a_broker_that_is_killed_and_comes_back_loses_no_batch(
    nats_server: Callable[[], Any], start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any]
) -> None:
    server = nats_server()
    async with new_world(server.url) as world:
        await world.issue(0, 1, 2, 3)
        process = start(server.url)
        await world.score_groups(0, 1)
        first = await world.batch(1)
        server.kill()
        server.restart()
        assert (await world.batch(1)).sequence == first.sequence
        await world.score_groups(2, 3)
        assert (await world.batch(2)).status == "ready"
        assert [r.step for r in await world.records() if isinstance(r, Batched)] == [1, 2]
        assert process.alive
