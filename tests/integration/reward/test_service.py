"""The real reward process over a real nats-server: what goes in comes out scored, once, whatever is killed."""

import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shared.job.spec import JobSpec
from shared.wire import topics
from shared.wire.bus.api import Stored
from shared.wire.jobs import change_job
from shared.wire.messages import CheckJob, CheckReply, Event, Scored, Trajectory, decode, digest, encode

EXACT = {"name": "right", "kind": "exact", "extract": "last_number"}
Eventually = Callable[..., Awaitable[None]]
ReadScore = Callable[[Stored], Scored]


def python(folder: Path, body: str, **fields: Any) -> dict[str, Any]:
    path = folder / "mine.py"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    path.write_text(f"import os, time\n\ndef reward(answer_text, row):\n{lines}\n")
    return {"name": "mine", "kind": "python", "function": f"{path}:reward", "timeout_seconds": 1.0, **fields}


async def test_each_trajectory_comes_out_scored_with_headers_and_unchanged(
    services: Any, jobs: Any, eventually: Eventually, read_score: ReadScore
) -> None:
    started, server = services
    started.start()
    async with jobs(server.url, [EXACT]) as (job,):
        for index in range(20):
            await job.publish("it is 12" if index % 2 else "it is 13", index=index)
        found = await job.scored(20)

        async def nothing_left() -> bool:
            return await job.left() == 0

        await eventually(nothing_left)
        for stored in found:
            scored = read_score(stored)
            trajectory = decode(Trajectory, scored.trajectory)
            right = trajectory.key.index % 2 == 1
            assert scored.score.valid and scored.score.total == float(right)
            assert stored.headers["Reward"] == repr(float(right))
            assert stored.headers["Sample"] == trajectory.sample and stored.headers["Valid"] == "1"
            assert stored.headers["Digest"] == digest(stored.data)
            assert stored.subject == topics.scored_subject(trajectory.key)


async def test_what_cannot_be_graded_is_invalid_and_says_why(
    services: Any, jobs: Any, tmp_path: Path, read_score: ReadScore
) -> None:
    started, server = services
    started.start()
    body = "return {'raises': lambda: 1 / 0, 'nan': lambda: float('nan'), 'text': lambda: 'x',\n"
    body += "  'hangs': lambda: time.sleep(60), 'dies': lambda: os._exit(9), 'fine': lambda: 2}[answer_text]()"
    async with jobs(server.url, [python(tmp_path, body)]) as (job,):
        says = {
            "raises": "ZeroDivisionError", "nan": "returned nan", "text": "(str), which is no number",
            "hangs": "longer than 1 seconds", "dies": "ended with code 9",
        }  # fmt: skip
        for index, text in enumerate([*says, "fine"]):
            await job.publish(text, index=index)
        scores = {
            decode(Trajectory, scored.trajectory).text: scored.score for scored in map(read_score, await job.scored(6))
        }
        for text, expected in says.items():
            score = scores[text]
            assert not score.valid and score.total == 0.0, text
            assert expected in score.error and "2 attempts" in score.error and "\n" not in score.error
        assert scores["fine"].valid and scores["fine"].total == 2.0 and len(scores["fine"].code_digest) == 64
        sequences = [s.headers["Valid"] for s in await job.scored(6)]
        assert sorted(sequences) == ["0"] * 5 + ["1"]


async def test_a_demonstration_is_passed_on_ungraded(services: Any, jobs: Any, read_score: ReadScore) -> None:
    started, server = services
    started.start()
    async with jobs(server.url, [EXACT]) as (job,):
        await job.publish("", finish_reason="demonstration", row={})
        score = read_score((await job.scored(1))[0]).score
        assert score.valid and score.total == 0.0 and score.components == {}


async def test_killed_in_the_middle_each_sample_is_scored_once_in_effect(
    services: Any, jobs: Any, tmp_path: Path, eventually: Eventually
) -> None:
    """The lowest sequence of a sample is its score; a second copy may exist, and must never come first or differ."""
    started, server = services
    slow = python(tmp_path, "time.sleep(0.02)\nreturn float(answer_text)")
    async with jobs(server.url, [slow]) as (job,):
        first = started.start()
        for index in range(60):
            await job.publish(str(index), index=index)
        await job.scored(10)
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        assert await job.count() < 60, "it had finished before it was killed"
        started.start()

        async def all_scored() -> bool:
            found = [s async for s in job.bus.follow(topics.scored(job.id).name, live=False)]
            return len({s.headers["Sample"] for s in found}) == 60 and await job.left() == 0

        await eventually(all_scored, 60)
        lowest: dict[str, Stored] = {}
        async for stored in job.bus.follow(topics.scored(job.id).name, live=False):
            lowest.setdefault(stored.headers["Sample"], stored)
        assert {sample: float(s.headers["Reward"]) for sample, s in lowest.items()} == {
            f"{job.id}/0/{index}": float(index) for index in range(60)
        }


async def test_a_message_that_nobody_can_read_is_set_aside_and_told(
    services: Any, jobs: Any, eventually: Eventually
) -> None:
    started, server = services
    started.start()
    async with jobs(server.url, [EXACT]) as (job,):
        await job.bus.publish(f"trajectory.{job.id}.7.0", b"\xc1 not a trajectory", message_id="bad")
        await job.publish("it is 12", index=1)
        assert (await job.scored(1))[0].headers["Sample"] == f"{job.id}/0/1"

        async def told() -> bool:
            events = [decode(Event, s.data) async for s in job.bus.follow(topics.EVENTS.name, live=False)]
            return any(f"trajectory.{job.id}.7.0" in e.body.get("text", "") for e in events if e.event == "notice")

        async def nothing_left() -> bool:
            return await job.left() == 0

        await eventually(told)
        await eventually(nothing_left)
        assert "set aside" in started.log()


async def test_one_jobs_hanging_reward_does_not_hold_up_another_job(services: Any, jobs: Any, tmp_path: Path) -> None:
    started, server = services
    started.start()
    hangs = python(tmp_path, "time.sleep(600)", timeout_seconds=30.0)
    async with jobs(server.url, [hangs], [EXACT]) as (stuck, other):
        for index in range(8):
            await stuck.publish("x", index=index)
        began = time.monotonic()
        for index in range(20):
            await other.publish("12", index=index)
        await other.scored(20)
        assert time.monotonic() - began < 20
        assert await stuck.count() == 0


async def test_a_paused_or_cancelling_job_is_scored_too_and_an_ended_one_is_left_alone(
    services: Any, jobs: Any, eventually: Eventually
) -> None:
    started, server = services
    states = ("paused", "cancelling", "cancelled")
    async with jobs(server.url, [EXACT], [EXACT], [EXACT], states=states) as made:
        for job in made:
            await job.publish("it is 12")
        started.start()
        for job in made[:2]:
            await job.scored(1)
        assert await made[2].count() == 0 and await made[2].left() == 1
        await change_job(made[2].bus, made[2].id, lambda record: _running(record))
        await made[2].scored(1)


def _running(record: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(record, state="running")


async def test_sigterm_ends_it_within_ten_seconds_and_what_was_graded_then_is_graded_again(
    services: Any, jobs: Any, tmp_path: Path
) -> None:
    started, server = services
    hangs = python(tmp_path, "time.sleep(600)", timeout_seconds=300.0)
    async with jobs(server.url, [hangs], [EXACT]) as (stuck, other):
        process = started.start()
        await stuck.publish("x")
        await other.publish("12")
        await other.scored(1)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 10
        assert await stuck.left() == 1
        assert "Traceback" not in started.log()


async def test_a_job_is_checked_before_it_is_accepted(services: Any, jobs: Any, tmp_path: Path) -> None:
    started, server = services
    started.start()
    (tmp_path / "rows.jsonl").write_text('{"question": "7 + 5 =", "answer": 12}\n')

    def spec(*rewards: dict[str, Any], **data: Any) -> dict[str, Any]:
        data = data or {"jsonl": str(tmp_path / "rows.jsonl")}
        job = {"name": "job", "model": "tiny", "data": data, "reward": list(rewards)}
        return JobSpec.model_validate(job).model_dump(mode="json")

    async with jobs(server.url, [EXACT]) as (job,):
        await job.publish("it is 12")
        await job.scored(1)

        async def check(**fields: Any) -> CheckReply:
            request = encode(CheckJob(**fields))
            return decode(CheckReply, await job.bus.request(topics.CHECK_REWARD, request, timeout_seconds=60))

        good = await check(spec=spec(EXACT, python(tmp_path, "return float(row['answer'] == 12)")))
        assert good.problems == []
        assert good.facts == {"reward_of_right_answer": {"right": 1.0, "mine": 1.0}}

        raises = await check(spec=spec(EXACT, python(tmp_path, "return row['no such column']")))
        assert [p.path for p in raises.problems] == ["reward.1.function"]
        assert "mine.py:4: KeyError" in raises.problems[0].message

        gone = await check(spec=spec({"name": "mine", "kind": "python", "function": "/nowhere/mine.py:reward"}))
        assert gone.problems[0].message == "no file /nowhere/mine.py"

        task = await check(spec=spec({"name": "sum", "kind": "reasoning_gym"}, reasoning_gym="chain_summ"))
        assert task.problems[0].path == "data.reasoning_gym" and "chain_summ" in task.problems[0].message

        fits = await check(spec=spec({"name": "sum", "kind": "reasoning_gym"}, reasoning_gym="chain_sum"))
        assert fits.problems == [] and fits.facts == {"reward_of_right_answer": {"sum": 1.0}}
