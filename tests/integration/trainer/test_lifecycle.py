"""Jobs come, pause, end and fail; people are told why."""

from __future__ import annotations

import os
import time

import pytest

from shared.wire.messages import Ending


async def test_two_jobs_train_at_once_and_a_third_waits_for_a_slot(
    world, nats_url, start_trainer, make_spec, wait_until
):
    spec = make_spec(steps=1)
    async with world("a", spec) as a, world("b", spec) as b, world("c", spec) as c:
        c.ready = 1
        trainer = start_trainer(nats_url, SLIPSTREAM_TRAINER_SLOTS="2")

        async def both_ask():
            return a.asked and b.asked

        await wait_until(both_ask, "the two oldest jobs asking")
        assert len(trainer.children()) == 2 and not c.asked
        a.ready = 1
        await c.trained_to(1)
        b.ready = 1
        await b.trained_to(1)


async def test_a_paused_job_is_saved_and_lets_go_of_its_process(world, nats_url, start_trainer, make_spec, wait_until):
    async with world("pause", make_spec(steps=3, checkpoint={"every": 3})) as w:
        w.ready = 1
        trainer = start_trainer(nats_url)
        await w.announced_step(1)
        await w.set_state("paused")
        await w.trained_to(1)

        async def gone():
            return not trainer.children()

        await wait_until(gone, "the process gone")
        w.ready = 3
        await w.set_state("running")
        await w.trained_to(3)
        assert [(r.first, r.last, r.checkpoint) for r in w.trained] == [(1, 1, "1.1"), (2, 3, "3.2")]


async def test_a_job_that_ends_early_is_recorded_up_to_its_last_batch(world, nats_url, start_trainer, make_spec):
    async with world("early", make_spec(steps=100, checkpoint={"every": 50})) as w:
        w.ready = 3
        start_trainer(nats_url)
        await w.announced_step(3)
        await w.ledger.append(lambda: Ending(epoch=0, last_step=3, reason="solve rate reached"))
        await w.trained_to(3)
        assert w.checkpoints() == ["3.1"]


async def test_a_cancelled_job_stops_and_nothing_more_is_recorded(
    world, nats_url, start_trainer, make_spec, wait_until
):
    async with world("cancel", make_spec(steps=5, checkpoint={"every": 5})) as w:
        w.ready = 2
        trainer = start_trainer(nats_url)
        await w.announced_step(2)
        await w.set_state("cancelling")

        async def gone():
            return not trainer.children()

        await wait_until(gone, "the process gone")
        assert w.trained == [] and w.checkpoints() == []


async def test_demonstrations_are_trained_like_any_batch(world, nats_url, start_trainer, make_spec):
    async with world("sft", make_spec(kind="sft", steps=2, groups_per_step=6, group_size=1)) as w:
        w.ready = 2
        start_trainer(nats_url)
        await w.trained_to(2)
        losses = [e.body["loss"] for e in await w.events("step")]
        assert len(losses) == 2 and all(loss > 1.0 for loss in losses)  # random answers of 259 words


async def test_an_ungraded_sample_is_masked_and_named(world, nats_url, start_trainer, make_spec):
    async with world("masked", make_spec(steps=1), answering=False) as w:
        await w.record(1, valid=False)
        start_trainer(nats_url)
        await w.trained_to(1)
        assert sorted(w.trained[0].masked) == sorted(f"{w.job}/{g}/{i}" for g in range(2) for i in range(4))


async def test_people_are_told_when_no_replay_buffer_answers_and_the_trainer_goes_on_waiting(
    world, nats_url, start_trainer, make_spec, wait_until
):
    async with world("alone", make_spec(steps=1), answering=False) as w:
        start_trainer(nats_url, SLIPSTREAM_TRAINER_NO_BUFFER_SECONDS="0.5")

        async def told():
            return [e.body["text"] for e in await w.events("notice")]

        texts = await wait_until(told, "a notice")
        assert len(texts) == 1 and "no replay buffer" in texts[0] and w.job in texts[0]
        w.ready = 1
        stop = await w.serve()
        await w.trained_to(1)
        await stop()


async def test_a_job_that_fails_every_time_is_failed_with_its_reason(
    world, nats_url, start_trainer, make_spec, wait_until, monkeypatch
):
    async with world("gone", make_spec(steps=1), answering=False) as w:
        await w.record(1)
        await w.bus.purge(f"scored-{w.job}", f"scored.{w.job}.0.0")
        start_trainer(nats_url)

        async def failed():
            record = await w.state()
            return record if record.state == "failed" else None

        record = await wait_until(failed, "the job failed", seconds=150)
        assert f"{w.job}/0/0 is gone from scored-{w.job}" in record.reason and "\n" not in record.reason


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_no_process_outlives_the_service(world, nats_url, start_trainer, make_spec, wait_until, how):
    async with world("outlive", make_spec()) as w:
        trainer = start_trainer(nats_url)

        async def asks():
            return w.asked

        await wait_until(asks, "the job's process asking")
        (child,) = trainer.children()
        began = time.monotonic()
        if how == "terminate":
            assert trainer.stop() == 0
            assert time.monotonic() - began < 10
        else:
            trainer.kill()

        async def dead():
            try:
                os.kill(child, 0)
            except ProcessLookupError:
                return True
            return False

        await wait_until(dead, "the job's process dead", seconds=10)
