"""The server dies, stalls and comes back: nothing is lost, nothing is doubled, and everything ends in time."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing, asynccontextmanager

import pytest

from shared.wire.bus.api import Conflict, NotFound, Unreachable
from shared.wire.bus.nats import NatsBus
from shared.wire.topics import LOCKS, Bucket, Consumer, Stream, job_streams


@asynccontextmanager
async def connected(server, count=1):
    buses = [await NatsBus.connect(server.url, name=f"faults {n}") for n in range(count)]
    try:
        yield buses[0] if count == 1 else buses
    finally:
        for bus in buses:
            await bus.close()


async def crash(server, seconds=0.3):
    server.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.restart)


async def test_publishes_survive_a_kill_and_are_stored_once(nats_server):
    server = nats_server()
    async with connected(server) as bus:
        await bus.declare([Stream("s", ("s.>",))])
        stored = []

        async def publish(number):
            stored.append((await bus.publish(f"s.{number}", b"x" * 2000, message_id=f"m{number}")).sequence)

        publishing = asyncio.gather(*(publish(number) for number in range(2000)))
        while len(stored) < 300:
            await asyncio.sleep(0.005)
        await crash(server)
        await asyncio.wait_for(publishing, 60)
        found = [s.subject async for s in bus.follow("s", live=False, headers_only=True)]
        assert sorted(found) == sorted(f"s.{number}" for number in range(2000))
        assert sorted(stored) == list(range(1, 2001))


async def test_a_follower_sees_no_gap_and_no_repeat_through_kills(nats_server):
    server = nats_server()
    async with connected(server, 2) as (writer, reader):
        await writer.declare([Stream("s", ("s.>",))])
        seen = []

        async def follow():
            async with aclosing(reader.follow("s")) as messages:
                async for stored in messages:
                    seen.append(stored.sequence)
                    if len(seen) == 900:
                        return

        following = asyncio.create_task(follow())
        for part in range(3):
            await asyncio.gather(*(writer.publish("s.a", b"x" * 500) for _ in range(300)))
            if part < 2:
                await crash(server, 0.1)
        await asyncio.wait_for(following, 60)
        assert seen == list(range(1, 901))


async def test_a_consumer_handles_everything_through_a_kill(nats_server):
    server = nats_server()
    async with connected(server, 2) as (writer, reader):
        stream = Stream("s", ("s.>",), retention="workqueue", consumers=(Consumer("work", ack_wait_seconds=2.0),))
        await writer.declare([stream])
        await asyncio.gather(*(writer.publish(f"s.{n}", b"x") for n in range(600)))
        handled: dict[str, int] = {}

        async def handle(stored):
            handled[stored.subject] = handled.get(stored.subject, 0) + 1

        consuming = asyncio.create_task(reader.consume("s", "work", handle, concurrency=16))
        while len(handled) < 250:
            await asyncio.sleep(0.002)
        await crash(server)
        deadline = time.monotonic() + 60
        while [s async for s in writer.follow("s", live=False, headers_only=True)]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert len(handled) == 600
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)


async def test_a_compare_and_set_that_was_stored_before_the_answer_got_lost_is_recognised(nats_server):
    server = nats_server()
    async with connected(server) as bus:
        await bus.declare([Stream("s", ("s.>",))], [Bucket("k")])
        keys = bus.bucket("k")
        lost = 0
        call = bus._data.call

        async def without_answer(subject, *arguments, **options):
            nonlocal lost
            answer = await call(subject, *arguments, **options)
            if subject.startswith("s.") and lost == 0:
                lost += 1
                from shared.wire.bus.link import Away

                raise Away("the answer got lost")
            return answer

        bus._data.call = without_answer
        ack = await bus.publish("s.a", b"x", expected_last_sequence=0)
        assert (ack.sequence, lost) == (1, 1)
        lost = 0
        assert (await bus.publish("s.a", b"y", expected_last_subject_sequence=1)).sequence == 2
        with pytest.raises(Conflict):
            await bus.publish("s.a", b"z", expected_last_subject_sequence=1)
        assert await keys.create("a", b"1") == 1


async def test_a_stalled_server_with_unsent_data_is_given_up_and_comes_back(nats_server, caplog):
    caplog.set_level(logging.WARNING)
    server = nats_server()
    async with connected(server) as bus:
        await bus.declare([Stream("s", ("s.>",))])
        await bus.publish("s.0", b"x")
        server.pause()
        try:
            publishing = [asyncio.create_task(bus.publish(f"s.{n}", b"x" * 900_000)) for n in range(1, 31)]
            deadline = time.monotonic() + 30
            while bus._data.connected:
                assert time.monotonic() < deadline, "the silent connection was never given up"
                await asyncio.sleep(0.05)
            victim = publishing.pop()
            victim.cancel()
            began = time.monotonic()
            await asyncio.gather(victim, return_exceptions=True)
            assert time.monotonic() - began < 1
        finally:
            server.resume()
        acks = await asyncio.wait_for(asyncio.gather(*publishing), 60)
        assert len({ack.sequence for ack in acks}) == 29
        assert "does not answer" in caplog.text


async def test_a_publish_into_a_stalled_server_can_be_cancelled_and_the_bus_closes_in_time(nats_server):
    server = nats_server()
    bus = await NatsBus.connect(server.url, name="stalled")
    await bus.declare([Stream("s", ("s.>",))])
    server.pause()
    try:
        publishing = [asyncio.create_task(bus.publish(f"s.{n}", b"x" * 900_000)) for n in range(60)]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
        assert time.monotonic() - began < 1
        began = time.monotonic()
        await bus.close()
        assert time.monotonic() - began < 2
    finally:
        server.resume()


async def test_a_publish_without_an_answer_ends_with_its_patience(nats_server):
    server = nats_server()
    async with connected(server) as bus:
        await bus.declare([Stream("s", ("s.>",))])
        server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(Unreachable, match=r"publish to s\.a"):
                await bus.publish("s.a", b"x", patience_seconds=1.0)
            assert time.monotonic() - began < 4
        finally:
            server.resume()


async def test_idle_readers_do_not_delay_the_close(nats_server):
    server = nats_server()
    bus = await NatsBus.connect(server.url, name="idle")
    await bus.declare([Stream("s", ("s.>",), consumers=(Consumer("work"),)), Stream("t", ("t.>",))], [Bucket("k")])

    async def ignore(stored):
        pass

    async def drain(messages):
        async with aclosing(messages):
            async for _ in messages:
                pass

    tasks = [
        asyncio.create_task(bus.consume("s", "work", ignore)),
        asyncio.create_task(drain(bus.follow("t"))),
        asyncio.create_task(drain(bus.bucket("k").watch())),
    ]
    await asyncio.sleep(0.5)
    began = time.monotonic()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await bus.close()
    assert time.monotonic() - began < 2


async def test_closing_while_the_server_is_dead_takes_less_than_two_seconds(nats_server):
    server = nats_server()
    bus = await NatsBus.connect(server.url, name="orphan")
    assert await bus.try_lock("a.b", "one") is not None
    server.kill()
    await asyncio.sleep(0.5)
    began = time.monotonic()
    await bus.close()
    assert time.monotonic() - began < 2


async def test_large_messages_never_cut_the_connection(nats_server):
    server = nats_server()
    async with connected(server, 2) as (writer, reader):
        stream = Stream("s", ("s.>",), retention="workqueue", consumers=(Consumer("work"),))
        await writer.declare([stream, Stream("f", ("f.>",))])
        body = b"x" * 1_000_000
        for start in range(0, 80, 10):
            await asyncio.gather(*(writer.publish(f"s.{n}", body) for n in range(start, start + 10)))
            await asyncio.gather(*(writer.publish(f"f.{n}", body) for n in range(start, start + 10)))
        handled = 0

        async def handle(stored):
            nonlocal handled
            handled += len(stored.data) == len(body)

        consuming = asyncio.create_task(reader.consume("s", "work", handle, concurrency=256))
        assert len([s.sequence async for s in reader.follow("f", live=False)]) == 80
        deadline = time.monotonic() + 60
        while handled < 80:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert reader._data.returns == 0
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)


async def test_a_watch_sees_changes_soon_after_a_restart(nats_server):
    server = nats_server()
    async with connected(server, 2) as (writer, reader):
        await writer.declare(buckets=[Bucket("k")])
        keys = writer.bucket("k")
        await keys.create("a", b"1")
        async with aclosing(reader.bucket("k").watch()) as watching:
            assert (await anext(watching)).key == "a"
            assert await anext(watching) is None
            await crash(server)
            began = time.monotonic()
            await keys.create("b", b"2")
            assert (await asyncio.wait_for(anext(watching), 8)).key == "b"
            assert time.monotonic() - began < 8
            await keys.create("c", b"3")
            assert (await asyncio.wait_for(anext(watching), 5)).key == "c"


async def test_a_lock_has_one_holder_soon_after_the_broker_forgot_it(nats_server):
    server = nats_server()
    async with connected(server, 2) as (bus, other):
        lock = await bus.try_lock("scheduler.j", "one")
        assert lock is not None
        await crash(server, 0.1)
        taken = await other.try_lock("scheduler.j", "two")  # it may win this race, but then the first must learn it
        assert taken is not None
        deadline = time.monotonic() + LOCKS.ttl_seconds + 1
        while not lock.lost:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert not taken.lost
        await taken.release()


async def test_a_held_lock_is_made_again_by_its_holder_when_the_broker_forgot_it(nats_server):
    server = nats_server()
    async with connected(server, 2) as (bus, other):
        lock = await bus.try_lock("scheduler.j", "one")
        assert lock is not None
        await crash(server, 0.1)
        deadline = time.monotonic() + LOCKS.ttl_seconds
        while await held_by(bus, "scheduler.j") is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert not lock.lost
        assert await other.try_lock("scheduler.j", "two") is None
        await lock.release()


async def test_a_lock_is_not_lost_while_the_broker_is_away(nats_server):
    server = nats_server()
    async with connected(server) as bus:
        lock = await bus.try_lock("scheduler.j", "one")
        assert lock is not None
        await crash(server, LOCKS.ttl_seconds + 1)
        deadline = time.monotonic() + LOCKS.ttl_seconds
        while await held_by(bus, "scheduler.j") is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert not lock.lost
        await lock.release()


async def held_by(bus, name):
    try:
        return await bus.bucket(LOCKS.name).get(name)
    except NotFound:
        return None


async def test_requests_are_served_again_after_a_restart(nats_server):
    server = nats_server()
    async with connected(server, 2) as (bus, other):

        async def reply(data):
            return data

        await bus.serve("echo", reply)
        assert await other.request("echo", b"1") == b"1"
        await crash(server)
        deadline = time.monotonic() + 20
        while True:
            try:
                assert await other.request("echo", b"2", timeout_seconds=1) == b"2"
                break
            except Exception:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)


async def test_readers_leave_no_consumer_behind(nats_server):
    server = nats_server()
    async with connected(server) as bus:
        await bus.declare([Stream("s", ("s.>",))])
        await bus.publish("s.a", b"x")
        for _ in range(20):
            async with aclosing(bus.follow("s")) as messages:
                await anext(messages)
        await bus.last_sequence("s")
        deadline = time.monotonic() + 10
        while (await bus._api.stream_info("s"))["state"]["consumer_count"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_a_sweep_removes_only_old_objects_that_nothing_points_to(nats_server):
    server = nats_server()
    async with connected(server) as bus:
        await bus.declare(job_streams("j"))
        pointed, orphan = b"a" * 1_500_000, b"b" * 1_500_000
        await bus.publish("trajectory.j.0.0", pointed)
        ack = await bus.publish("scored.j.0.0", orphan)
        await bus.purge("scored-j", "scored.j.0.0")
        assert await bus.sweep_objects("j", older_than_seconds=60) == 0
        assert await bus.sweep_objects("j", older_than_seconds=0) == 1
        assert await bus.sweep_objects("j", older_than_seconds=0) == 0
        found = await bus.get("trajectory-j", subject="trajectory.j.0.0")
        assert found is not None and found.data == pointed
        assert ack.sequence == 1
