"""What is killed, hung, broken or taken away under a rollout worker: no sample is lost, none is made up."""

import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from shared.wire import topics
from shared.wire.jobs import change_job, delete_job
from shared.wire.messages import Event, Version, decode

Eventually = Callable[..., Awaitable[None]]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_killed_engine_is_an_error_of_its_samples_and_is_started_again(
    rollouts: Any, played: Any, eventually: Eventually
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.offer(4, max_tokens=240)
        more = scheduler.offer(2000, group=1, max_tokens=240)
        process = started.start()
        await eventually(lambda: any(held.tokens for ask in scheduler.asks for held in ask.held))
        (engine,) = started.engines(process)
        engine.send_signal(signal.SIGKILL)
        await eventually(lambda: any(ended.error for ended in scheduler.ended.values()))
        failed = {sample: ended for sample, ended in scheduler.ended.items() if ended.error}
        assert {ended.error for ended in failed.values()} == {"engine died"}
        assert 1 <= len(failed) <= 2 * 4  # what it held, and what took the freed slots before the death was seen
        seen = len(scheduler.asks)
        before = len(scheduler.ended)
        await eventually(lambda: len(scheduler.ended) > before + 4)
        scheduler.queue.clear()
        await eventually(lambda: not scheduler.leased)
        since = scheduler.asks[seen:]
        unproved = next((i for i, ask in enumerate(since) if not ask.version), 0)
        assert all(not ask.free_slots for ask in since if not ask.version), "asked for work before it was proved again"
        assert any(ask.version == "0.1" for ask in since[unproved:])
        found = await scheduler.trajectories()
        assert not set(found) & set(failed), "a dead engine's answer became a sample"
        assert set(found) == set(scheduler.ended) - set(failed) and set(found) & set(more)
        events = [decode(Event, s.data) async for s in scheduler.bus.follow(topics.EVENTS.name, live=False)]
        assert any("SIGKILL" in event.body["text"] for event in events if event.event == "notice")


async def test_sigterm_gives_back_what_is_held_and_leaves_no_process(
    rollouts: Any, played: Any, eventually: Eventually
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.offer(2000, max_tokens=240)
        process = started.start()
        await eventually(lambda: len(scheduler.leased) == 4)
        (engine,) = started.engines(process)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await _ended(process, eventually) == 0
        assert time.monotonic() - began < 10
        assert gone(engine.pid)
        assert not scheduler.leased, "a lease was neither finished nor given back"
        returned = [ended for ended in scheduler.ended.values() if ended.error]
        assert returned and all(ended.error == "worker drains" and not ended.counts for ended in returned)
        last = scheduler.asks[-1]
        assert last.draining and not last.held
        found = await scheduler.trajectories()
        assert set(found) == {sample for sample, ended in scheduler.ended.items() if not ended.error}
        assert "Traceback" not in started.log()
        assert not (started.folder / "data" / "rollout-cache").exists() or not list(
            (started.folder / "data" / "rollout-cache").iterdir()
        )


async def test_sigterm_is_quick_without_a_scheduler_and_while_the_engine_starts(
    rollouts: Any, played: Any, eventually: Eventually
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        process = started.start()
        await eventually(lambda: started.engines(process))
        scheduler.silent = True
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await _ended(process, eventually) == 0
        assert time.monotonic() - began < 10


async def test_a_killed_worker_takes_its_engine_with_it(rollouts: Any, played: Any, eventually: Eventually) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.offer(2000, max_tokens=240)
        process = started.start()
        await eventually(lambda: any(ask.held for ask in scheduler.asks))
        (engine,) = started.engines(process)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        await eventually(lambda: gone(engine.pid))


async def test_an_engine_that_hangs_is_killed_and_replaced(rollouts: Any, played: Any, eventually: Eventually) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.offer(2000, max_tokens=240)
        process = started.start(SLIPSTREAM_ROLLOUT_ENGINE_SILENT_SECONDS="2")
        await eventually(lambda: any(held.tokens for ask in scheduler.asks for held in ask.held))
        (engine,) = started.engines(process)
        engine.send_signal(signal.SIGSTOP)
        await eventually(lambda: any(ended.error == "engine died" for ended in scheduler.ended.values()))
        await eventually(lambda: gone(engine.pid))
        before = len(scheduler.ended)
        await eventually(lambda: len(scheduler.ended) > before)


async def test_a_broker_that_goes_away_costs_no_finished_sample(
    rollouts: Any, played: Any, eventually: Eventually
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.offer(40, max_tokens=100)
        started.start()
        await eventually(lambda: len(scheduler.leased) == 4)
        server.kill()
        server.restart()
        await eventually(lambda: len(scheduler.ended) == 40, 90)
        assert not [ended.error for ended in scheduler.ended.values() if ended.error]
        assert len(await scheduler.trajectories()) == 40


async def test_a_scheduler_that_is_away_is_asked_again_and_what_is_held_goes_on(
    rollouts: Any, played: Any, eventually: Eventually
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.offer(8, max_tokens=200)
        started.start()
        await eventually(lambda: len(scheduler.leased) == 4)
        scheduler.silent = True

        async def four_are_stored() -> bool:
            return len(await scheduler.trajectories()) >= 4

        await eventually(four_are_stored)
        scheduler.silent = False
        await eventually(lambda: len(scheduler.ended) == 8)


async def test_weights_that_are_not_what_was_announced_are_never_loaded(
    rollouts: Any, played: Any, eventually: Eventually, tmp_path: Path, models: Path
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        started.start()
        await eventually(lambda: scheduler.asks and scheduler.asks[-1].version == "0.1")
        broken = await scheduler.announce(tmp_path, "tiny", Version(1, 1), models, flip=True)
        await eventually(lambda: "cannot be" in started.log() or "no url is announced" in started.log())
        wanted = scheduler.offer(2)
        await eventually(lambda: all(sample in scheduler.ended for sample in wanted))
        assert scheduler.asks[-1].version == "0.1", "the old weights go on working"
        assert broken.is_dir()
        await scheduler.announce(tmp_path, "tiny", Version(2, 1), models)
        await eventually(lambda: scheduler.asks[-1].version == "2.1")


async def test_a_job_that_is_deleted_lets_its_worker_go(rollouts: Any, played: Any, eventually: Eventually) -> None:
    started, server = rollouts
    async with played(server.url, "tiny", "tiny") as (first, second):
        first.offer(2000, max_tokens=240)
        process = started.start(SLIPSTREAM_ROLLOUT_QUANTUM_SECONDS="600")
        await eventually(lambda: any(ask.held for ask in first.asks))
        await change_job(first.bus, first.job, lambda r: msgspec.structs.replace(r, state="deleting"))
        for stream in topics.job_streams(first.job):
            await first.bus.delete_stream(stream.name)
        await delete_job(first.bus, first.job)
        second.offer(4)
        await eventually(lambda: len(second.ended) == 4)
        assert process.poll() is None


async def test_a_model_that_the_engine_cannot_load_is_told_and_the_next_job_gets_the_worker(
    rollouts: Any, played: Any, eventually: Eventually, tmp_path: Path, models: Path
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny", "tiny") as (broken, good):
        await broken.announce(tmp_path, "tiny", Version(1, 1), models, empty_weights=True)
        good.offer(4)
        broken.offer(4)
        started.start(SLIPSTREAM_ROLLOUT_QUANTUM_SECONDS="1")
        await eventually(lambda: len(good.ended) == 4)

        async def told() -> bool:
            events = [decode(Event, s.data) async for s in broken.bus.follow(topics.EVENTS.name, live=False)]
            return any(event.job == broken.job and event.event == "notice" for event in events)

        await eventually(told)
        assert not broken.ended


async def _ended(process: Any, eventually: Eventually) -> int:
    await eventually(lambda: process.poll() is not None, 12)
    return int(process.returncode)
