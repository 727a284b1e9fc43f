"""Jobs by compare-and-set, one task a job, one holder a role."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest

from shared.wire import jobs
from shared.wire.bus.api import Conflict, NotFound
from shared.wire.bus.memory import MemoryBus
from shared.wire.jobs import (
    DELETED,
    change_job,
    create_job,
    delete_job,
    get_job,
    hold_role,
    list_jobs,
    supervise_jobs,
    watch_jobs,
)
from shared.wire.ledger import Fenced
from shared.wire.messages import Event, JobRecord, decode
from shared.wire.service import CommonSettings, Service
from shared.wire.topics import BUCKETS, EVENTS, JOBS, SHARED_STREAMS


def record(id: str, state: str = "running", at: float = 1.0) -> JobRecord:
    return JobRecord(id=id, name=id, spec={}, digest="", state=state, created_at=at, updated_at=at)


def to(state: str):
    return lambda record: msgspec.structs.replace(record, state=state)


async def made() -> MemoryBus:
    bus = MemoryBus()
    await bus.declare(buckets=BUCKETS)
    return bus


async def until(condition, seconds=10):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(coroutine):
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def service(bus) -> Service:
    return Service(bus, asyncio.TaskGroup(), asyncio.Event(), "test", CommonSettings())


async def test_a_job_is_created_once_and_changed_by_all_who_try():
    bus = await made()
    await create_job(bus, record("a"))
    with pytest.raises(Conflict):
        await create_job(bus, record("a"))

    def more(record):
        return msgspec.structs.replace(record, facts={"n": record.facts.get("n", 0) + 1})

    await asyncio.gather(*(change_job(bus, "a", more) for _ in range(10)))
    found = await get_job(bus, "a")
    assert found is not None and found.facts["n"] == 10 and found.updated_at > found.created_at


async def test_a_change_may_be_declined():
    bus = await made()
    await create_job(bus, record("a"))
    assert (await change_job(bus, "a", lambda record: None)).state == "running"
    assert (await bus.bucket(JOBS.name).get("a")).revision == 1


async def test_a_job_that_is_not_there_is_not_found():
    bus = await made()
    assert await get_job(bus, "a") is None
    with pytest.raises(NotFound, match="no job a"):
        await change_job(bus, "a", to("paused"))


async def test_jobs_are_listed_oldest_first_and_a_broken_record_hides_no_other():
    bus = await made()
    for id, at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        await create_job(bus, record(id, at=at))
    await bus.bucket(JOBS.name).create("broken", b"\xff")
    assert [r.id for r in await list_jobs(bus)] == ["a", "b", "c"]


async def test_a_watch_gives_jobs_changes_and_the_end():
    bus = await made()
    await create_job(bus, record("a"))
    async with aclosing(watch_jobs(bus)) as watching:
        assert (await anext(watching)).state == "running"
        await change_job(bus, "a", to("paused"))
        assert (await asyncio.wait_for(anext(watching), 5)).state == "paused"
        await delete_job(bus, "a")
        assert (await asyncio.wait_for(anext(watching), 5)).state == DELETED


async def test_each_wanted_job_has_one_task_and_none_when_it_leaves():
    bus = await made()
    at_work: list[str] = []

    async def work(record):
        at_work.append(record.id)
        try:
            await asyncio.Event().wait()
        finally:
            at_work.remove(record.id)

    await create_job(bus, record("a"))
    await create_job(bus, record("done", state="completed"))
    async with running(supervise_jobs(await service(bus), work)):
        await until(lambda: at_work == ["a"])
        await create_job(bus, record("b"))
        await until(lambda: sorted(at_work) == ["a", "b"])
        await change_job(bus, "a", lambda r: msgspec.structs.replace(r, facts={"x": 1}))
        await change_job(bus, "a", to("cancelling"))
        await until(lambda: at_work == ["b"])
        await change_job(bus, "a", to("running"))
        await until(lambda: sorted(at_work) == ["a", "b"])
        await delete_job(bus, "b")
        await until(lambda: at_work == ["a"])
    assert at_work == []


async def test_people_are_told_once_when_a_task_fails_again_and_again(monkeypatch):
    monkeypatch.setattr(jobs, "FIRST_BACKOFF_SECONDS", 0.001)
    bus = await made()
    await bus.declare(SHARED_STREAMS)
    tries = 0

    async def work(record):
        nonlocal tries
        tries += 1
        raise ValueError("broken for good")

    await create_job(bus, record("bad"))
    async with running(supervise_jobs(await service(bus), work)):
        await until(lambda: tries > jobs.TELL_AFTER_FAILURES + 1)
    told = [stored async for stored in bus.follow(EVENTS.name, subject="events.bad.notice", live=False)]
    assert [decode(Event, stored.data).body["level"] for stored in told] == ["error"]
    assert "broken for good" in decode(Event, told[0].data).body["text"]


async def test_a_task_that_raised_starts_again_and_one_that_returned_does_not(monkeypatch):
    monkeypatch.setattr(jobs, "FIRST_BACKOFF_SECONDS", 0.01)
    bus = await made()
    tries: dict[str, int] = {"bad": 0, "good": 0}

    async def work(record):
        tries[record.id] += 1
        if record.id == "bad" and tries["bad"] < 3:
            raise ExceptionGroup("several", [ValueError("broken")])

    for id in tries:
        await create_job(bus, record(id))
    async with running(supervise_jobs(await service(bus), work)):
        await until(lambda: tries["bad"] == 3)
        await change_job(bus, "good", lambda r: msgspec.structs.replace(r, facts={"x": 1}))
        tries["later"] = 0
        await create_job(bus, record("later"))  # seen after the change, since jobs are watched in order
        await until(lambda: tries["later"] == 1)
        assert tries == {"bad": 3, "good": 1, "later": 1}


async def test_one_holder_works_and_the_next_takes_over_when_it_ends():
    bus = await made()
    other = bus.another()
    at_work = []

    def work(name):
        async def run():
            at_work.append(name)
            await asyncio.Event().wait()

        return run

    async with running(hold_role(bus, "j", "scheduler", "one", work("one"), 0.02)) as first:
        await until(lambda: at_work == ["one"])
        async with running(hold_role(other, "j", "scheduler", "two", work("two"), 0.02)):
            await asyncio.sleep(0.1)
            assert at_work == ["one"]
            first.cancel()
            await until(lambda: at_work == ["one", "two"])


async def test_a_fenced_holder_stands_by_and_tries_again():
    bus = await made()
    tries = []

    async def work():
        tries.append(1)
        if len(tries) == 1:
            raise ExceptionGroup("tasks", [Fenced("fenced")])

    await asyncio.wait_for(hold_role(bus, "j", "trainer", "one", work, 0.01), 10)
    assert len(tries) == 2


async def test_a_lost_lock_ends_the_work_of_its_holder():
    bus = await made()
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async with running(hold_role(bus, "j", "trainer", "one", work, 0.01)):
        await until(lambda: bus._broker.bucket("locks").live("trainer.j") is not None)
        bus._broker.bucket("locks").put("trainer.j", b"somebody else", None)
        await until(lambda: ended)


async def test_the_work_s_own_error_reaches_the_caller():
    async def work():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await hold_role(await made(), "j", "trainer", "one", work)
