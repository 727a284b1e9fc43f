"""What a bus promises about requests, broadcasts, keys and locks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from shared.wire.bus.api import Conflict, NoResponders, NotFound, TimedOut
from shared.wire.topics import LOCKS, Bucket


async def test_a_request_gets_its_answer(buses, job):
    async with buses() as (bus, other):

        async def reply(data):
            return data[::-1]

        stop = await bus.serve(f"echo.{job}", reply)
        assert await other.request(f"echo.{job}", b"abc") == b"cba"
        assert await asyncio.gather(*(other.request(f"echo.{job}", b"%d" % n) for n in range(10, 40))) == [
            (b"%d" % n)[::-1] for n in range(10, 40)
        ]
        await stop()
        with pytest.raises(NoResponders):
            await other.request(f"echo.{job}", b"abc")


async def test_a_slow_answer_does_not_hold_back_a_quick_one(buses, job):
    async with buses() as (bus, other):
        hold = asyncio.Event()

        async def reply(data):
            if data == b"slow":
                await hold.wait()
            return data

        await bus.serve(f"echo.{job}", reply)
        slow = asyncio.create_task(other.request(f"echo.{job}", b"slow"))
        assert await other.request(f"echo.{job}", b"quick") == b"quick"
        hold.set()
        assert await slow == b"slow"


async def test_no_answer_in_time_and_no_server_are_different_errors(buses, job):
    async with buses() as (bus, other):

        async def reply(data):
            await asyncio.Event().wait()

        await bus.serve(f"stuck.{job}", reply)
        with pytest.raises(TimedOut, match=f"stuck.{job}"):
            await other.request(f"stuck.{job}", b"", timeout_seconds=0.2)
        with pytest.raises(NoResponders, match=f"nobody.{job}"):
            await other.request(f"nobody.{job}", b"")


async def test_a_handler_that_raises_answers_nothing_and_serves_on(buses, job):
    async with buses() as (bus, other):

        async def reply(data):
            if data == b"bad":
                raise ValueError("bad")
            return data

        await bus.serve(f"echo.{job}", reply)
        with pytest.raises(TimedOut):
            await other.request(f"echo.{job}", b"bad", timeout_seconds=0.2)
        assert await other.request(f"echo.{job}", b"good") == b"good"


async def test_one_of_a_queue_group_answers(buses, job):
    async with buses() as (bus, other):
        calls = []

        def server(name):
            async def reply(data):
                calls.append(name)
                return name

            return reply

        await bus.serve(f"work.{job}", server(b"a"), queue="workers")
        await other.serve(f"work.{job}", server(b"b"), queue="workers")
        for _ in range(20):
            await bus.request(f"work.{job}", b"")
        assert len(calls) == 20


async def test_a_broadcast_reaches_whoever_listens_now(buses, job, eventually):
    async with buses() as (bus, other):
        heard = []

        async def hear(stored):
            heard.append((stored.subject, stored.data))

        stop = await bus.listen(f"presence.*.{job}", hear)
        await asyncio.sleep(0.05)
        await other.broadcast(f"presence.reward.{job}", b"1")
        await other.broadcast(f"presence.reward.x.{job}", b"no")
        await other.broadcast(f"presence.rollout.{job}", b"2")
        await eventually(lambda: len(heard) == 2)
        assert heard == [(f"presence.reward.{job}", b"1"), (f"presence.rollout.{job}", b"2")]
        await stop()


async def test_keys_are_created_updated_and_deleted_by_compare_and_set(buses, job):
    async with buses() as (bus, other):
        await bus.declare(buckets=[Bucket(job, history=4)])
        mine, theirs = bus.bucket(job), other.bucket(job)
        assert await mine.get("a") is None
        first = await mine.create("a", b"1")
        with pytest.raises(Conflict):
            await theirs.create("a", b"1")
        second = await theirs.update("a", b"2", first)
        with pytest.raises(Conflict):
            await mine.update("a", b"3", first)
        entry = await mine.get("a")
        assert entry is not None and (entry.data, entry.revision) == (b"2", second)
        await mine.create("b", b"1")
        assert await theirs.keys() == ["a", "b"]
        with pytest.raises(Conflict):
            await mine.delete("a", first)
        await mine.delete("a", second)
        assert await theirs.get("a") is None
        assert await theirs.keys() == ["b"]
        assert await mine.create("a", b"again") > second


async def test_a_bucket_that_never_was_is_not_found(buses, job):
    async with buses() as (bus, _):
        with pytest.raises(NotFound):
            await bus.bucket(job).get("a")
        with pytest.raises(NotFound):
            await bus.bucket(job).create("a", b"1")
        with pytest.raises(NotFound):
            await anext(bus.bucket(job).watch())


async def test_a_watch_gives_what_is_there_then_none_then_each_change(buses, job):
    async with buses() as (bus, other):
        await bus.declare(buckets=[Bucket(job)])
        keys = other.bucket(job)
        await keys.create("a", b"1")
        gone = await keys.create("b", b"1")
        await keys.delete("b", gone)
        async with aclosing(bus.bucket(job).watch()) as watching:
            first = await anext(watching)
            assert first is not None and (first.key, first.data) == ("a", b"1")
            assert await anext(watching) is None
            revision = await keys.create("c", b"2")
            changed = await asyncio.wait_for(anext(watching), 10)
            assert changed is not None and (changed.key, changed.data, changed.revision) == ("c", b"2", revision)
            await keys.delete("a")
            deleted = await asyncio.wait_for(anext(watching), 10)
            assert deleted is not None and (deleted.key, deleted.data) == ("a", None)


async def test_a_watch_of_an_empty_bucket_says_so_at_once(buses, job):
    async with buses() as (bus, _):
        await bus.declare(buckets=[Bucket(job)])
        async with aclosing(bus.bucket(job).watch()) as watching:
            assert await asyncio.wait_for(anext(watching), 10) is None


async def test_one_holder_has_the_lock_until_it_lets_go(buses, job):
    async with buses() as (bus, other):
        name = f"scheduler.{job}"
        lock = await bus.try_lock(name, "one")
        assert lock is not None and not lock.lost and lock.name == name
        assert await other.try_lock(name, "two") is None
        await lock.release()
        assert lock.lost
        second = await other.try_lock(name, "two")
        assert second is not None
        await second.release()


async def test_a_held_lock_is_renewed_past_its_time(buses, job):
    async with buses() as (bus, other):
        lock = await bus.try_lock(f"a.{job}", "one")
        assert lock is not None
        await asyncio.sleep(LOCKS.ttl_seconds + 1)  # longer than it lives without renewal: the point of the test
        assert not lock.lost
        assert await other.try_lock(f"a.{job}", "two") is None
        await lock.release()


async def test_a_lock_whose_holder_is_gone_is_free_when_its_time_has_run_out(buses, job, eventually):
    async with buses() as (bus, other):
        lock = await bus.try_lock(f"a.{job}", "one")
        assert lock is not None
        lock._renewing.cancel()  # as a killed process would
        found = []

        async def take():
            while not found:
                lock = await other.try_lock(f"a.{job}", "two")
                if lock is not None:
                    found.append(lock)
                await asyncio.sleep(0.05)

        taking = asyncio.create_task(take())
        await eventually(lambda: found, seconds=10)
        await taking
        await found[0].release()


async def test_closing_gives_locks_back(buses, job):
    async with buses() as (bus, other):
        assert await bus.try_lock(f"a.{job}", "one") is not None
        await bus.close()
        lock = await other.try_lock(f"a.{job}", "two")
        assert lock is not None
        await lock.release()
