"""What a bus promises about durable consumers."""

from __future__ import annotations

import asyncio

import pytest

from shared.wire.bus.api import NotFound
from shared.wire.topics import Consumer, Stream


def work(job: str, **options: object) -> Stream:
    return Stream(job, (f"{job}.>",), retention="workqueue", consumers=(Consumer("work", **options),))


async def ended(task: asyncio.Task) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_each_message_is_handled_once_and_then_gone(buses, job, eventually):
    async with buses() as (bus, other):
        await bus.declare([work(job)])
        for number in range(50):
            await bus.publish(f"{job}.{number}", str(number).encode())
        handled = []

        async def handle(stored):
            handled.append(stored.data)

        consuming = asyncio.create_task(other.consume(job, "work", handle))
        await eventually(lambda: len(handled) == 50)
        await bus.publish(f"{job}.late", b"late")
        await eventually(lambda: len(handled) == 51)
        assert sorted(handled) == sorted([str(n).encode() for n in range(50)] + [b"late"])
        while [s async for s in bus.follow(job, live=False)]:
            await asyncio.sleep(0.01)
        await ended(consuming)


async def test_a_handler_that_raises_gets_the_message_again(buses, job, eventually):
    async with buses() as (bus, _):
        await bus.declare([work(job)])
        await bus.publish(f"{job}.a", b"x")
        seen = []

        async def handle(stored):
            seen.append(stored.deliveries)
            if len(seen) < 3:
                raise ValueError("not yet")

        consuming = asyncio.create_task(bus.consume(job, "work", handle))
        await eventually(lambda: len(seen) == 3)
        assert seen == [1, 2, 3]
        await ended(consuming)


async def test_one_failing_message_does_not_hold_back_the_others(buses, job, eventually):
    async with buses() as (bus, _):
        await bus.declare([work(job)])
        handled = []

        async def handle(stored):
            if stored.data == b"bad":
                raise ValueError("bad")
            handled.append(stored.data)

        await bus.publish(f"{job}.a", b"bad")
        for number in range(10):
            await bus.publish(f"{job}.{number}", b"good")
        consuming = asyncio.create_task(bus.consume(job, "work", handle, concurrency=1))
        await eventually(lambda: len(handled) == 10)
        await ended(consuming)


async def test_no_more_handlers_run_than_asked_for_and_they_do_run_together(buses, job, eventually):
    async with buses() as (bus, _):
        await bus.declare([work(job)])
        for number in range(30):
            await bus.publish(f"{job}.{number}", b"x")
        running, most, done = 0, 0, 0

        async def handle(stored):
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            done += 1

        consuming = asyncio.create_task(bus.consume(job, "work", handle, concurrency=4))
        await eventually(lambda: done == 30)
        assert most == 4
        await ended(consuming)


async def test_an_idle_consumer_leaves_work_to_the_others(buses, job, eventually):
    async with buses() as (bus, other):
        await bus.declare([work(job)])
        hold, busy, free = asyncio.Event(), [], []

        async def slow(stored):
            busy.append(stored.data)
            await hold.wait()

        async def quick(stored):
            free.append(stored.data)

        first = asyncio.create_task(bus.consume(job, "work", slow, concurrency=1))
        await bus.publish(f"{job}.first", b"x")
        await eventually(lambda: busy)
        second = asyncio.create_task(other.consume(job, "work", quick, concurrency=1))
        for number in range(10):
            await bus.publish(f"{job}.{number}", b"x")
        await eventually(lambda: len(free) == 10)
        assert len(busy) == 1
        hold.set()
        await ended(first)
        await ended(second)


async def test_a_cancelled_consumer_acknowledges_nothing_that_it_did_not_finish(buses, job, eventually):
    async with buses() as (bus, other):
        await bus.declare([work(job)])
        await bus.publish(f"{job}.a", b"x")
        started, finished = asyncio.Event(), []

        async def stuck(stored):
            started.set()
            await asyncio.Event().wait()

        async def handle(stored):
            finished.append(stored.data)

        consuming = asyncio.create_task(bus.consume(job, "work", stuck))
        await asyncio.wait_for(started.wait(), 10)
        await ended(consuming)
        again = asyncio.create_task(other.consume(job, "work", handle))
        await eventually(lambda: finished == [b"x"])
        await ended(again)


async def test_a_handler_slower_than_the_acknowledgement_time_is_not_given_the_message_twice(buses, job, eventually):
    async with buses() as (bus, other):
        await bus.declare([work(job, ack_wait_seconds=1.0)])
        deliveries, done = [], []

        async def handle(stored):
            deliveries.append(stored.deliveries)
            await asyncio.sleep(3.0)  # three times the consumer's patience: the point of the test
            done.append(stored.data)

        tasks = [asyncio.create_task(b.consume(job, "work", handle)) for b in (bus, other)]
        await bus.publish(f"{job}.a", b"x")
        await eventually(lambda: done)
        assert deliveries == [1]
        for task in tasks:
            await ended(task)


async def test_a_body_over_the_inline_limit_reaches_the_handler_whole(buses, job, eventually):
    from shared.wire.topics import job_streams

    async with buses() as (bus, _):
        await bus.declare(job_streams(job))
        body = b"0123456789" * 300_000
        await bus.publish(f"trajectory.{job}.0.0", body)
        handled = []

        async def handle(stored):
            handled.append(stored.data)

        consuming = asyncio.create_task(bus.consume(f"trajectory-{job}", "reward", handle))
        await eventually(lambda: handled)
        assert handled == [body]
        await ended(consuming)


async def test_it_ends_with_not_found_when_the_stream_is_deleted(buses, job):
    async with buses() as (bus, other):
        await bus.declare([work(job)])

        async def handle(stored):
            pass

        consuming = asyncio.create_task(bus.consume(job, "work", handle))
        await asyncio.sleep(0.05)
        await other.delete_stream(job)
        with pytest.raises(NotFound):
            await asyncio.wait_for(consuming, 20)


async def test_a_consumer_that_never_was_is_not_found(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",))])

        async def handle(stored):
            pass

        with pytest.raises(NotFound):
            await bus.consume(job, "work", handle)
