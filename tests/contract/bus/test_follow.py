"""What a bus promises about following a stream."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from shared.wire.bus.api import BusError, NotFound
from shared.wire.topics import Stream


async def take(messages, count):
    found = []
    async with aclosing(messages):
        async for stored in messages:
            found.append(stored)
            if len(found) == count:
                break
    return found


async def test_it_yields_what_is_there_and_then_what_comes(buses, job):
    async with buses() as (bus, other):
        await bus.declare([Stream(job, (f"{job}.>",))])
        for number in range(5):
            await bus.publish(f"{job}.a", str(number).encode())
        reading = asyncio.create_task(take(other.follow(job), 8))
        for number in range(5, 8):
            await bus.publish(f"{job}.a", str(number).encode())
        found = await asyncio.wait_for(reading, 15)
        assert [s.data for s in found] == [str(n).encode() for n in range(8)]
        assert [s.sequence for s in found] == list(range(1, 9))


async def test_it_starts_at_a_sequence_and_filters_by_subject(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",))])
        for number in range(10):
            await bus.publish(f"{job}.{number % 2}.x", b"x")
        found = [s.sequence async for s in bus.follow(job, subject=f"{job}.1.*", from_sequence=5, live=False)]
        assert found == [6, 8, 10]


async def test_without_live_it_ends_when_caught_up(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",))])
        assert [s async for s in bus.follow(job, live=False)] == []
        await bus.publish(f"{job}.a", b"x")
        assert [s.pending async for s in bus.follow(job, live=False)] == [0]
        assert [s async for s in bus.follow(job, subject=f"{job}.b", live=False)] == []
        assert [s async for s in bus.follow(job, from_sequence=2, live=False)] == []


async def test_pending_counts_down_to_caught_up(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",))])
        for _ in range(4):
            await bus.publish(f"{job}.a", b"x")
        assert [s.pending async for s in bus.follow(job, live=False)] == [3, 2, 1, 0]


async def test_headers_only_leaves_the_body_out(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",))])
        await bus.publish(f"{job}.a", b"body", headers={"Tokens": "3"})
        found = [s async for s in bus.follow(job, headers_only=True, live=False)]
        assert [(s.data, s.headers["Tokens"]) for s in found] == [(b"", "3")]


async def test_thousands_of_messages_come_in_order_past_any_batch(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",))])
        for start in range(0, 3000, 250):
            await asyncio.gather(*(bus.publish(f"{job}.{n}", b"x" * 100) for n in range(start, start + 250)))
        assert [s.sequence async for s in bus.follow(job, live=False)] == list(range(1, 3001))
        assert [s.sequence for s in await take(bus.follow(job), 3000)] == list(range(1, 3001))


async def test_purged_messages_are_skipped_and_nothing_else(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",))])
        for number in range(20):
            await bus.publish(f"{job}.{number % 4}", b"x")
        await bus.purge(job, f"{job}.2")
        found = [s.sequence async for s in bus.follow(job, live=False)]
        assert found == [n for n in range(1, 21) if (n - 1) % 4 != 2]


async def test_a_deleted_stream_ends_it_with_not_found(buses, job):
    async with buses() as (bus, other):
        await bus.declare([Stream(job, (f"{job}.>",))])
        await bus.publish(f"{job}.a", b"x")
        seen = asyncio.Event()

        async def read():
            async for _ in other.follow(job):
                seen.set()

        reading = asyncio.create_task(read())
        await asyncio.wait_for(seen.wait(), 10)
        await bus.delete_stream(job)
        with pytest.raises(NotFound):
            await asyncio.wait_for(reading, 20)


async def test_a_stream_that_never_was_is_not_found(buses, job):
    async with buses() as (bus, _):
        with pytest.raises(NotFound, match=job):
            async for _ in bus.follow(job):
                pass


async def test_a_slow_reader_gets_everything(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",))])
        reading = bus.follow(job)
        found = []
        async with aclosing(reading):
            for number in range(40):
                await bus.publish(f"{job}.a", b"x" * 100_000)
                if number % 4 == 0:
                    found.append((await anext(reading)).sequence)
            while len(found) < 40:
                found.append((await anext(reading)).sequence)
        assert found == list(range(1, 41))


async def test_a_work_queue_can_be_looked_through_but_not_followed(buses, job):
    async with buses() as (bus, _):
        await bus.declare([Stream(job, (f"{job}.>",), retention="workqueue")])
        for number in range(5):
            await bus.publish(f"{job}.{number % 2}", b"x", headers={"Tokens": "3"})
        found = [(s.sequence, s.data) async for s in bus.follow(job, subject=f"{job}.1", live=False)]
        assert found == [(2, b"x"), (4, b"x")]
        headers = [(s.data, s.headers["Tokens"]) async for s in bus.follow(job, live=False, headers_only=True)]
        assert headers == [(b"", "3")] * 5
        with pytest.raises(BusError, match="work queue"):
            async for _ in bus.follow(job):
                pass
