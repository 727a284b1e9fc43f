"""One job from its record to its end, with a real scheduler process and server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from shared.wire.bus import BusError
from shared.wire.messages import Batched, Dropped, Ending, Issued, SampleKey, Version


async def test_a_job_is_evaluated_trained_evaluated_and_completed(nats_server, start, new_world, beside) -> None:
    url = nats_server().url
    async with new_world(url, evaluation={"prompts": 3, "samples": 2}) as world:
        start(url)
        worker = world.worker("w")
        async with beside(worker.run(), world.reward(), world.learn()):
            await world.comes_to("completed")
        rounds = {event.body["round"]: event.body for event in await world.events("evaluation")}
        assert [(rounds[n]["version_step"], rounds[n]["mode"], rounds[n]["samples"]) for n in range(4)] == [
            (0, "greedy", 3), (0, "sampled", 6), (3, "greedy", 3), (3, "sampled", 6),
        ]  # fmt: skip
        assert all(body["solve_rate"] == 1.0 and body["missing"] == 0 for body in rounds.values())
        evaluated = [lease for lease in worker.leases if lease.sample_class == "eval"]
        assert Counter(lease.sampling.temperature for lease in evaluated) == {0.0: 6, 1.0: 12}
        for lease in evaluated:
            step = 0 if SampleKey.parse(lease.sample).eval_round < 2 else 3
            assert worker.versions[f"{lease.sample}/{lease.attempt}"] == f"{step}.1"
        issued = await world.records(Issued)
        assert [record.group for record in issued] == list(range(6))
        questions = {lease.row["question"] for lease in evaluated}
        assert questions.isdisjoint(lease.row["question"] for lease in worker.leases if lease.sample_class == "train")


async def test_evaluation_comes_first_and_what_it_leaves_free_is_filled_with_training(
    nats_server, start, new_world, until
) -> None:
    url = nats_server().url
    async with new_world(url, evaluation={"prompts": 3, "modes": ["greedy"]}) as world:
        start(url)
        worker = world.worker("w", slots=5, speed=None)

        await world.announce(Version(0, 1))

        async def leased() -> bool:
            with contextlib.suppress(BusError):  # while nobody serves yet
                await worker.ask()
            return len(worker.held) == 5

        await until(leased)
        assert [lease.sample_class for lease in worker.leases] == ["eval"] * 3 + ["train"] * 2
        assert worker.pins[-1] == "0.1"


@pytest.mark.parametrize("speeds", [(0,), (0, 3, 1)])
async def test_at_staleness_0_groups_rows_and_batches_do_not_depend_on_workers(
    nats_server, start, new_world, beside, speeds
) -> None:
    url = nats_server().url
    async with new_world(url, algorithm={"staleness": 0, "groups_per_step": 3}, seed=5) as world:
        start(url)
        workers = [world.worker(f"w{n}", slots=2, speed=speed) for n, speed in enumerate(speeds)]
        async with beside(*(worker.run() for worker in workers), world.reward(), world.learn()):
            await world.comes_to("completed")
        issued = await world.records(Issued)
        batches = [[SampleKey.parse(s.sample).group for s in b.samples] for b in await world.records(Batched)]
        assert batches == [[3 * step + g for g in range(3) for _ in range(2)] for step in range(3)]
        assert [record.version_step for record in issued] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        leases = {lease.sample: lease for worker in workers for lease in worker.leases}
        drawn = [(lease.sampling.seed, lease.row["question"]) for _, lease in sorted(leases.items())]
        assert [record.row for record in issued] == [25, 121, 101, 85, 129, 197, 173, 42, 74]
        assert len({seed for seed, _ in drawn}) == 18


async def test_the_data_ends_and_every_waiter_hears_of_it(nats_server, start, new_world, beside, tmp_path) -> None:
    file = tmp_path / "five.jsonl"
    file.write_text("".join(json.dumps({"question": f"q{n}", "answer": "a"}) + "\n" for n in range(5)))
    url = nats_server().url
    async with new_world(url, data={"jsonl": str(file), "epochs": 1}, algorithm={"steps": 50}) as world:
        start(url)
        async with beside(world.worker("w").run(), world.reward(), world.learn()):
            await world.comes_to("completed")
        assert [(e.last_step, e.reason) for e in await world.records(Ending)] == [(2, "the data ended after 1 passes")]
        assert sorted(record.row for record in await world.records(Issued)) == [0, 1, 2, 3, 4]
        assert [record.reason for record in await world.records(Dropped)] == ["job ended"]
        assert await world.reason() == "the data ended after 1 passes"


async def test_a_supervised_job_needs_no_worker_and_stops_at_its_goal(nats_server, start, new_world, beside) -> None:
    url = nats_server().url
    async with new_world(
        url,
        algorithm={"kind": "sft", "steps": 40, "stop_at": {"solve_rate": 0.9}},
        evaluation={"prompts": 4, "every": 2, "modes": ["sampled"]},
    ) as world:
        world.solves = lambda made: made.key.eval_round != 0
        start(url)
        async with beside(world.worker("w").run(), world.reward(), world.learn()):
            await world.comes_to("completed")
        (ending,) = await world.records(Ending)
        assert 2 <= ending.last_step < 40
        assert "has a solve rate of 1.000, the goal is 0.9" in ending.reason
        assert all(record.n == 1 for record in await world.records(Issued))


async def test_a_supervised_job_without_evaluation_needs_nobody(nats_server, start, new_world, beside) -> None:
    url = nats_server().url
    async with new_world(url, algorithm={"kind": "sft", "steps": 5}) as world:
        start(url)
        async with beside(world.reward(), world.learn()):
            await world.comes_to("completed")
        assert len(await world.records(Batched)) == 5


async def test_pause_waits_for_leases_and_resume_goes_on(nats_server, start, new_world, beside, until) -> None:
    url = nats_server().url
    async with new_world(url, algorithm={"steps": 4}) as world:
        start(url)
        worker = world.worker("w", speed=None)
        async with beside(worker.run(), world.reward(), world.learn()):
            await until(lambda: worker.held)
            await world.set_state("pausing")
            worker.speed = 0
            await world.comes_to("paused")
            leased = len(worker.leases)
            await until(lambda: not worker.held and not worker.ended)
            assert len(worker.leases) == leased
            await world.set_state("running")
            await world.comes_to("completed")


async def test_cancel_revokes_what_is_out_and_ends_when_the_rest_is_dropped(
    nats_server, start, new_world, beside, until
) -> None:
    url = nats_server().url
    async with new_world(url) as world:
        start(url)
        worker = world.worker("w", speed=None)
        async with beside(worker.run(), world.reward(), world.learn()):
            await until(lambda: len(worker.held) == 4)
            await world.set_state("cancelling")
            await world.comes_to("cancelled")
        dropped = [sample for record in await world.records(Dropped) for sample in record.samples]
        assert len(dropped) == len(set(dropped)) == 2 * len(await world.records(Issued))


async def test_delete_leaves_no_stream_subject_file_or_record(
    nats_server, start, new_world, beside, until, data_dir: Path
) -> None:
    url = nats_server().url
    async with new_world(url) as world:
        start(url)
        for folder in ("snapshots", "checkpoints"):
            (data_dir / folder / world.job / "1.1").mkdir(parents=True)
        worker = world.worker("w", speed=None)
        async with beside(worker.run(), world.reward()):
            await until(lambda: world.events("progress"))
            await world.set_state("deleting")
            await until(lambda: gone(world))
        assert await world.bus.stream_names() == ["events", "snapshots", "weights"]
        assert not [event for kind in ("progress", "state", "notice") for event in await world.events(kind)]
        assert not list(data_dir.glob(f"*/{world.job}"))
        assert not [key for key in await world.bus.bucket("locks").keys() if world.job in key]


async def gone(world) -> bool:
    return await world.state() == ""


async def test_a_job_that_nobody_works_on_says_so(nats_server, start, new_world, beside, until) -> None:
    url = nats_server().url
    async with new_world(url) as world:
        process = start(url, SLIPSTREAM_SCHEDULER_STALL_SECONDS="0.2", SLIPSTREAM_SCHEDULER_PROGRESS_SECONDS="0.1")
        await until(lambda: world.events("notice"))
        (notice, *_) = await world.events("notice")
        assert "8 samples wait and no rollout worker asks for work" in notice.body["text"]
        assert process.said("no rollout worker asks for work")


async def test_sigterm_ends_it_at_once(nats_server, start, new_world, beside, until) -> None:
    url = nats_server().url
    async with new_world(url) as world:
        process = start(url)
        async with beside(world.worker("w").run()):
            await until(lambda: world.events("progress"))
            assert await asyncio.to_thread(process.end, signal.SIGTERM) == 0
        assert process.said("stopped")
