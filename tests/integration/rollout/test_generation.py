"""The real rollout process with the built-in engine: leases in, trajectories out, weights changed on the way."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shared.wire.jobs import change_job
from shared.wire.messages import Version, array

Eventually = Callable[..., Awaitable[None]]


async def test_leases_become_trajectories(rollouts: Any, played: Any, eventually: Eventually) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        wanted = scheduler.offer(10, max_tokens=8) + scheduler.offer(2, group=1, max_tokens=8, top_p=0.8)
        started.start()
        await eventually(lambda: len(scheduler.ended) == 12)
        assert not [ended.error for ended in scheduler.ended.values() if ended.error]
        found = await scheduler.trajectories()
        assert sorted(found) == sorted(wanted)
        for made in found.values():
            prompt, answer = made.segments
            assert not any(prompt.mask) and all(answer.mask)
            assert 1 <= answer.length <= 8
            assert [(s.start, s.end, s.version) for s in answer.spans] == [(0, answer.length, "0.1")]
            raw, behaviour = (array(answer.columns[name], "<f4") for name in ("raw", "behaviour"))
            assert np.isfinite(raw).all() and (raw <= 0).all()
            if made.key.group == 1:
                assert (behaviour >= raw - 1e-5).all() and (behaviour > raw + 1e-3).any(), "top-p renormalises"
            else:
                assert (raw == behaviour).all()
            assert made.finish_reason in ("stop", "length") and made.row == {"answer": "tac"}
        first = scheduler.asks[0]
        assert (first.version, first.free_slots) == ("", 0), "nothing is asked for before a version is proved"
        assert {ask.version for ask in scheduler.asks if ask.free_slots} == {"0.1"}
        assert all(len(ask.held) + ask.free_slots <= 4 for ask in scheduler.asks)


async def test_an_idle_worker_runs_no_engine(rollouts: Any, played: Any, eventually: Eventually) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        await change_job(scheduler.bus, scheduler.job, lambda r: msgspec.structs.replace(r, state="paused"))
        process = started.start(SLIPSTREAM_ROLLOUT_ENGINE_IDLE_SECONDS="1")
        await eventually(lambda: "ready as" in started.log())
        assert not started.engines(process)
        scheduler.offer(1)
        await change_job(scheduler.bus, scheduler.job, lambda r: msgspec.structs.replace(r, state="running"))
        await eventually(lambda: len(scheduler.ended) == 1)
        assert len(started.engines(process)) == 1
        await change_job(scheduler.bus, scheduler.job, lambda r: msgspec.structs.replace(r, state="completed"))
        await eventually(lambda: not started.engines(process))


async def test_weights_change_between_two_tokens_and_every_token_says_which(
    rollouts: Any, played: Any, eventually: Eventually, tmp_path: Path, models: Path
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.offer(2000, max_tokens=200)
        started.start()
        await eventually(lambda: any(held.tokens for ask in scheduler.asks for held in ask.held))
        for step in (1, 2, 3):
            await scheduler.announce(tmp_path, "tiny", Version(step, 1), models)
            await eventually(lambda version=f"{step}.1": any(ask.version == version for ask in scheduler.asks))
        scheduler.queue.clear()
        await eventually(lambda: not scheduler.leased)
        assert not [ended.error for ended in scheduler.ended.values() if ended.error]
        found = await scheduler.trajectories()
        assert sorted(found) == sorted(scheduler.ended)
        answers = [made.segments[-1] for made in found.values()]
        for answer in answers:
            edges = [0, *(span.end for span in answer.spans)]
            assert [span.start for span in answer.spans] == edges[:-1] and edges[-1] == answer.length
            steps = [Version.parse(span.version).step for span in answer.spans]
            assert steps == sorted(steps)
        assert any(len(answer.spans) > 1 for answer in answers), "no answer saw a change of weights"
        asked = [ask.version for ask in scheduler.asks if ask.version]
        assert asked == sorted(asked), "a worker never goes back"


async def test_nothing_changes_under_evaluation_samples(
    rollouts: Any, played: Any, eventually: Eventually, tmp_path: Path, models: Path
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.only_to_version = "0.1"
        scheduler.terms = msgspec.structs.replace(scheduler.terms, pin_version="0.1")
        scheduler.offer(24, sample_class="eval", eval_round=0, max_tokens=200, temperature=0.0)
        started.start()
        await eventually(lambda: any(ask.held for ask in scheduler.asks))
        await scheduler.announce(tmp_path, "tiny", Version(1, 1), models)
        await eventually(lambda: len(scheduler.ended) == 24, 90)
        for made in (await scheduler.trajectories()).values():
            assert made.sample_class == "eval"
            assert [span.version for span in made.segments[-1].spans] == ["0.1"]
        assert {ask.version for ask in scheduler.asks if ask.version} == {"0.1"}
        scheduler.terms = msgspec.structs.replace(scheduler.terms, pin_version="")
        await eventually(lambda: scheduler.asks[-1].version == "1.1")


async def test_a_pin_goes_back_to_an_older_version_that_is_still_kept(
    rollouts: Any, played: Any, eventually: Eventually, tmp_path: Path, models: Path
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        await scheduler.announce(tmp_path, "tiny", Version(1, 1), models)
        started.start()
        await eventually(lambda: scheduler.asks and scheduler.asks[-1].version == "1.1")
        scheduler.terms = msgspec.structs.replace(scheduler.terms, pin_version="0.1")
        await eventually(lambda: scheduler.asks[-1].version == "0.1")


async def test_a_prompt_that_the_engine_refuses_is_an_error_and_the_others_go_on(
    rollouts: Any, played: Any, eventually: Eventually
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        (bad,) = scheduler.offer(1, max_tokens=100_000)
        good = scheduler.offer(3, group=1)
        started.start()
        await eventually(lambda: len(scheduler.ended) == 4)
        assert scheduler.ended[bad].error and scheduler.ended[bad].counts
        assert "\n" not in scheduler.ended[bad].error
        assert sorted(await scheduler.trajectories()) == sorted(good)


async def test_a_revoked_sample_is_aborted_and_its_slot_used_again(
    rollouts: Any, played: Any, eventually: Eventually
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        scheduler.offer(400, max_tokens=240)
        started.start()
        await eventually(lambda: any(ask.held for ask in scheduler.asks))
        scheduler.queue.clear()
        gone = scheduler.asks[-1].held or next(ask.held for ask in reversed(scheduler.asks) if ask.held)
        scheduler.revoked = list(gone)
        await eventually(lambda: not scheduler.asks[-1].held)
        more = scheduler.offer(4, group=9)
        await eventually(lambda: all(sample in scheduler.ended for sample in more))
        await asyncio.sleep(0)
        assert not [ended for ended in scheduler.ended.values() if ended.error]


async def test_two_jobs_with_different_models_take_turns(rollouts: Any, played: Any, eventually: Eventually) -> None:
    started, server = rollouts
    async with played(server.url, "tiny", "tiny-qwen2") as (llama, qwen):
        started.start(SLIPSTREAM_ROLLOUT_QUANTUM_SECONDS="1")
        for group in range(2):
            llama.offer(4, group=group)
            qwen.offer(4, group=group)
            await eventually(lambda n=4 * group + 4: len(llama.ended) >= n and len(qwen.ended) >= n, 60)
        for scheduler in (llama, qwen):
            assert not [ended.error for ended in scheduler.ended.values() if ended.error]
            assert len(await scheduler.trajectories()) == 8


async def test_a_job_that_keeps_a_worker_busy_gives_it_up_after_its_quantum(
    rollouts: Any, played: Any, eventually: Eventually
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny", "tiny") as (greedy, modest):
        greedy.offer(20_000, max_tokens=200)
        started.start(SLIPSTREAM_ROLLOUT_QUANTUM_SECONDS="1")
        await eventually(lambda: greedy.ended)
        modest.offer(4)
        await eventually(lambda: len(modest.ended) == 4, 60)
        before = len(greedy.ended)
        await eventually(lambda: len(greedy.ended) > before, 60)
        assert not [e.error for s in (greedy, modest) for e in s.ended.values() if e.error], "a switch costs no sample"
