"""Workers that die, hang and fail, and a scheduler that is killed while it holds leases."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from shared.wire.ledger import read_ledger
from shared.wire.messages import (
    Batched,
    Dead,
    Dropped,
    EpochOpened,
    GaveUp,
    Held,
    Issued,
    Lease,
    Requeued,
    SampleKey,
    message_id,
)


def settled_once(records: list[Any]) -> bool:
    """Every issued sample is in exactly one batch or drop or death."""
    places: Counter[str] = Counter()
    issued: set[str] = set()
    for record in records:
        if isinstance(record, Batched):
            places.update(sample.sample for sample in record.samples)
        elif isinstance(record, Dropped | Dead):
            places.update(record.samples)
        elif isinstance(record, Issued):
            issued |= {f"{record.group}/{index}" for index in range(record.n)}
    assert set(places.values()) <= {1}
    return {id.split("/", 1)[1] for id in places} == issued


async def test_a_dead_workers_leases_go_to_another_without_blame(nats_server, start, new_world, beside, until) -> None:
    url = nats_server().url
    async with new_world(url) as world:
        start(url)
        dead, alive = world.worker("dead", speed=None), world.worker("alive")
        async with beside(world.reward(), world.learn()):
            async with beside(dead.run()):
                await until(lambda: len(dead.held) == 4)
            async with beside(alive.run()):
                await world.comes_to("completed")
        requeued = await world.records(Requeued)
        assert {(r.reason, r.counts, r.worker) for r in requeued} == {("worker silent", False, "dead")}
        assert {r.sample for r in requeued} == {lease.sample for lease in dead.leases}
        assert settled_once(await world.records())


async def test_a_trajectory_whose_worker_died_before_it_said_so_is_not_made_again(
    nats_server, start, new_world, beside, until
) -> None:
    url = nats_server().url
    async with new_world(url) as world:
        start(url)
        mute, alive = world.worker("mute", slots=3), world.worker("alive")
        mute.forgets = True
        async with beside(world.learn()):  # nothing is graded yet: the trajectories stay where they are
            async with beside(mute.run()):
                await until(lambda: len(mute.leases) >= 3)
                mute.slots = 0
                await until(lambda: not mute.held)
            async with beside(alive.run(), world.reward()):
                await world.comes_to("completed")
        again = {lease.sample for lease in alive.leases} & {lease.sample for lease in mute.leases}
        assert not again
        assert settled_once(await world.records())


async def test_a_lease_without_progress_goes_to_another_and_counts(
    nats_server, start, new_world, beside, until
) -> None:
    url = nats_server().url
    async with new_world(url, limits={"lease_seconds": 1.0}) as world:
        start(url)
        hung, well = world.worker("hung", slots=1, speed=None), world.worker("well")
        hung.tokens = lambda id: 7
        async with beside(hung.run(), world.reward(), world.learn()):
            await until(lambda: hung.held)
            hung.slots = 0  # it asks for no more
            async with beside(well.run()):
                await world.comes_to("completed")
        failed = [r for r in await world.records(Requeued) if r.worker == "hung"]
        assert failed
        assert all(r.counts and r.reason == "no progress for 1 s after 7 tokens" for r in failed)
        assert hung.revoked
        assert settled_once(await world.records())


async def test_a_sample_that_always_fails_is_given_up_and_its_group_replaced(
    nats_server, start, new_world, beside
) -> None:
    url = nats_server().url
    async with new_world(url, limits={"max_attempts": 2}) as world:
        start(url)
        worker = world.worker("w")
        worker.fails = lambda lease: "engine died" if lease.sample.endswith("/1/0") else ""
        async with beside(worker.run(), world.reward(), world.learn()):
            await world.comes_to("completed")
        (gave_up,) = await world.records(GaveUp)
        assert (gave_up.sample, gave_up.error) == (f"{world.job}/1/0", "engine died")
        tried = [str(lease.attempt) for lease in worker.leases if lease.sample == gave_up.sample]
        assert gave_up.attempts == [f"{attempt}: engine died" for attempt in tried]
        assert len(tried) == 2
        assert len(await world.records(Issued)) == 7
        assert settled_once(await world.records())


async def test_a_job_whose_samples_die_fails_with_the_newest_error(nats_server, start, new_world, beside) -> None:
    url = nats_server().url
    async with new_world(url, limits={"max_attempts": 1}) as world:
        start(url)
        worker = world.worker("w")
        worker.fails = lambda lease: "the engine has no memory left"
        async with beside(worker.run(), world.reward(), world.learn()):
            await world.comes_to("failed")
        assert "limits.max_dead_rate is 0.5" in await world.reason()
        assert (await world.reason()).endswith("the newest error: the engine has no memory left")


async def test_a_killed_scheduler_is_replaced_and_nothing_finished_is_leased_again(
    nats_server, start, new_world, beside, until
) -> None:
    url = nats_server().url
    async with new_world(url, algorithm={"steps": 4, "groups_per_step": 4, "group_size": 4}) as world:
        world.trains = False
        first = start(url)
        worker = world.worker("w", slots=8)
        done, lost = set(), set()
        async with beside(world.reward(), world.learn()):
            async with beside(worker.run()):
                await until(lambda: len(worker.leases) >= 12)
                worker.speed = None  # from now on it holds what it has
                await until(lambda: len(worker.held) == 8)
            first.end()
            done = {lease.sample for lease in worker.leases} - {lease.sample for lease in worker.held.values()}
            lost = {lease.sample for lease in worker.held.values()}
            second = start(url)
            other = world.worker("other", slots=8)
            world.trains = True
            async with beside(other.run()):
                await world.comes_to("completed")
        assert second.said("samples of open groups are finished already")
        assert done
        assert not done & {lease.sample for lease in other.leases}
        assert lost <= {lease.sample for lease in other.leases}
        assert {lease.attempt.epoch for lease in worker.leases} == {1}
        assert {lease.attempt.epoch for lease in other.leases} == {2}
        opened = [r for r in await world.records(EpochOpened) if r.role == "scheduler"]
        assert [r.epoch for r in opened] == [1, 2]
        assert settled_once(await world.records())


async def test_a_worker_that_outlives_the_scheduler_keeps_what_it_holds(
    nats_server, start, new_world, beside, until
) -> None:
    url = nats_server().url
    async with new_world(url, algorithm={"steps": 1, "groups_per_step": 3, "group_size": 2, "staleness": 0}) as world:
        first = start(url)
        worker = world.worker("w", slots=6, speed=None)
        async with beside(worker.run(), world.reward(), world.learn()):
            await until(lambda: len(worker.held) == 6)
            first.end()
            second = start(url)
            await until(lambda: second.said("epoch 2"))
            worker.speed = 0
            await world.comes_to("completed")
        assert len(worker.leases) == 6
        assert not worker.revoked
        assert not await world.records(Requeued)
        assert settled_once(await world.records())


async def test_a_second_scheduler_stands_by_and_takes_over(nats_server, start, new_world, beside, until) -> None:
    url = nats_server().url
    async with new_world(url, algorithm={"steps": 6}) as world:
        first = start(url)
        await until(lambda: first.said("epoch 1"))
        second = start(url)
        worker = world.worker("w", speed=1)
        async with beside(worker.run(), world.reward(), world.learn()):
            await until(lambda: len(worker.leases) >= 4)
            assert not second.said("epoch")
            first.end()
            await world.comes_to("completed")
        assert second.said("epoch 2")
        assert settled_once(await world.records())


async def test_an_evaluation_survives_a_killed_scheduler(nats_server, start, new_world, beside, until) -> None:
    url = nats_server().url
    async with new_world(url, evaluation={"prompts": 12, "modes": ["greedy", "sampled"]}) as world:
        first = start(url)
        worker = world.worker("w", slots=2)
        async with beside(worker.run(), world.reward(), world.learn()):

            async def halfway() -> bool:
                return len(await world.events("evaluation")) == 0 and len(worker.leases) >= 6

            await until(halfway)
            first.end()
            start(url)
            await world.comes_to("completed")
        rounds = Counter(event.body["round"] for event in await world.events("evaluation"))
        assert rounds == {0: 1, 1: 1, 2: 1, 3: 1}
        assert all(event.body["missing"] == 0 for event in await world.events("evaluation"))
        attempts: dict[str, list[Lease]] = {}
        for lease in worker.leases:
            if SampleKey.parse(lease.sample).eval_round is not None:
                attempts.setdefault(lease.sample, []).append(lease)
        assert sum(len(each) - 1 for each in attempts.values()) <= 2, "more was done again than was held at the kill"


async def test_recorded_rounds_are_not_run_again_after_a_restart(nats_server, start, new_world, beside, until) -> None:
    url = nats_server().url
    async with new_world(url, evaluation={"prompts": 2, "modes": ["greedy"]}) as world:
        world.trains = False
        first = start(url)
        worker = world.worker("w")
        async with beside(worker.run(), world.reward(), world.learn()):
            await until(lambda: world.events("evaluation"))
            first.end()
            world.trains = True
            start(url)
            await world.comes_to("completed")
        assert [event.body["round"] for event in await world.events("evaluation")] == [0, 1]
        evaluated = [lease.sample for lease in worker.leases if lease.sample_class == "eval"]
        assert len(evaluated) == len(set(evaluated)) == 4


async def test_reports_of_an_attempt_that_is_not_theirs_change_nothing(
    nats_server, start, new_world, until, beside
) -> None:
    url = nats_server().url
    async with new_world(url) as world:
        start(url)
        worker, liar = world.worker("w", speed=None), world.worker("liar", slots=0)
        async with beside(worker.run(), world.learn()):
            await until(lambda: len(worker.held) == 4)
            held = next(iter(worker.held.values()))
            claim = Held(sample=held.sample, attempt=held.attempt, tokens=99)
            reply = await liar.ask(held=[claim])
            assert reply.revoked == [claim]
            await worker.ask()
            assert message_id(held.sample, held.attempt) in worker.held

            async def counted() -> bool:
                return (await world.events("progress"))[-1].body["stale_reports"] >= 1

            await until(counted)


async def test_a_changed_data_file_fails_the_job_with_the_line(
    nats_server, start, new_world, beside, until, tmp_path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"question": f"q{n}", "answer": "a"}) + "\n" for n in range(8)))
    url = nats_server().url
    async with new_world(url, data={"jsonl": str(file)}) as world:
        first = start(url)
        worker = world.worker("w", speed=None)
        async with beside(world.reward(), world.learn()):
            async with beside(worker.run()):
                await until(lambda: len(worker.held) == 4)
            first.end()
            file.write_text(file.read_text().replace('"a"', '"b"'))
            start(url)
            async with beside(world.worker("other").run()):
                await world.comes_to("failed")
        reason = await world.reason()
        assert str(file) in reason
        assert "the data set was changed under the job" in reason


async def test_a_model_that_is_gone_fails_the_job_in_one_line(nats_server, start, new_world) -> None:
    url = nats_server().url
    async with new_world(url, model="/nowhere") as world:
        start(url)
        await world.comes_to("failed")
        assert await world.reason() == "model folder /nowhere does not exist"


async def test_a_broker_that_is_killed_costs_no_sample(nats_server, start, new_world, beside, until) -> None:
    server = nats_server()
    async with new_world(server.url, algorithm={"steps": 4}) as world:
        process = start(server.url)
        worker = world.worker("w", speed=1)
        async with beside(worker.run(), world.reward(), world.learn()):
            await until(lambda: len(worker.leases) >= 6)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            await world.comes_to("completed", 60.0)
        assert settled_once(await world.records())
        assert process.said("completed")


async def test_nothing_is_generated_before_its_group_is_recorded(nats_server, start, new_world, beside) -> None:
    url = nats_server().url
    async with new_world(url) as world:
        start(url)
        worker = world.worker("w")
        async with beside(worker.run(), world.reward(), world.learn()):
            await world.comes_to("completed")
        issued = {r.group: at async for _, at, r in read_ledger(world.bus, world.job) if isinstance(r, Issued)}
        for lease in worker.leases:
            assert SampleKey.parse(lease.sample).group in issued
