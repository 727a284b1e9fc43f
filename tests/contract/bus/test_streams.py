"""What a bus promises about stored messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shared.wire.bus.api import BusError, Conflict, Drift, NotFound, StreamFull
from shared.wire.topics import Consumer, Stream, job_streams


def plain(name: str, **options: object) -> Stream:
    return replace(Stream(name, (f"{name}.>",)), **options)


async def test_a_published_message_is_read_back_whole(buses, job):
    async with buses() as (bus, other):
        await bus.declare([plain(job)])
        ack = await bus.publish(f"{job}.a.b", b"body", message_id="one", headers={"Tokens": "12"})
        assert (ack.sequence, ack.duplicate) == (1, False)
        stored = await other.get(job, sequence=1)
        assert stored is not None
        assert (stored.subject, stored.data, stored.headers["Tokens"]) == (f"{job}.a.b", b"body", "12")
        assert stored.headers["Nats-Msg-Id"] == "one"
        assert stored.at > 1.6e9


async def test_a_repeated_message_id_is_stored_once(buses, job):
    async with buses() as (bus, other):
        await bus.declare([plain(job)])
        first = await bus.publish(f"{job}.a", b"x", message_id="same")
        second = await other.publish(f"{job}.a", b"x", message_id="same")
        assert (second.sequence, second.duplicate) == (first.sequence, True)
        assert await bus.last_sequence(job) == 1


async def test_the_same_id_is_a_repeat_even_after_the_message_was_purged(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job)])
        await bus.publish(f"{job}.a", b"x", message_id="same")
        await bus.purge(job, f"{job}.a")
        assert (await bus.publish(f"{job}.a", b"x", message_id="same")).duplicate


async def test_an_expected_last_sequence_lets_one_of_two_writers_through(buses, job):
    async with buses() as (bus, other):
        await bus.declare([plain(job)])
        writers = [b.publish(f"{job}.a", b"x", expected_last_sequence=0) for b in (bus, other)]
        results = await asyncio.gather(*writers, return_exceptions=True)
        conflicts = [r for r in results if isinstance(r, Conflict)]
        assert len(conflicts) == 1 and conflicts[0].last_sequence == 1
        assert await bus.last_sequence(job) == 1


async def test_the_expected_sequence_is_checked_before_repeats_are_recognised(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job)])
        await bus.publish(f"{job}.a", b"x", message_id="mine", expected_last_sequence=0)
        with pytest.raises(Conflict) as caught:
            await bus.publish(f"{job}.a", b"x", message_id="mine", expected_last_sequence=0)
        assert caught.value.last_sequence == 1 and "\n" not in str(caught.value)


async def test_an_expected_sequence_may_be_of_the_subject_alone(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job)])
        await bus.publish(f"{job}.a", b"x", expected_last_subject_sequence=0)
        await bus.publish(f"{job}.b", b"x", expected_last_subject_sequence=0)
        await bus.publish(f"{job}.a", b"y", expected_last_subject_sequence=1)
        with pytest.raises(Conflict) as caught:
            await bus.publish(f"{job}.a", b"z", expected_last_subject_sequence=1)
        assert caught.value.last_sequence == 3


async def test_a_subject_without_a_stream_is_not_found(buses, job):
    async with buses() as (bus, _):
        with pytest.raises(NotFound, match=f"nowhere-{job}"):
            await bus.publish(f"nowhere-{job}.a", b"x")


async def test_a_full_stream_refuses_and_takes_again_when_there_is_room(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job, max_bytes=4096)])
        with pytest.raises(StreamFull) as caught:
            for number in range(10):
                await bus.publish(f"{job}.{number}", b"x" * 1000)
        assert "\n" not in str(caught.value)
        await bus.purge(job, f"{job}.0")
        await bus.publish(f"{job}.again", b"x" * 900)


async def test_a_stream_that_discards_old_messages_never_is_full(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job, max_bytes=4096, discard_new=False)])
        for number in range(10):
            await bus.publish(f"{job}.{number}", b"x" * 1000)
        assert await bus.get(job, sequence=1) is None
        assert await bus.last_sequence(job) == 10
        assert await bus.stream_bytes(job) <= 4096


async def test_a_last_value_stream_keeps_one_message_a_subject(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job, max_messages_per_subject=1, discard_new=False)])
        for text in (b"1", b"2", b"3"):
            await bus.publish(f"{job}.a", text)
        last = await bus.get(job, subject=f"{job}.a")
        assert last is not None and last.data == b"3"
        assert await bus.get(job, sequence=1) is None


async def test_what_is_not_there_reads_as_none(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job)])
        assert await bus.get(job, sequence=7) is None
        assert await bus.get(job, subject=f"{job}.a") is None
        with pytest.raises(NotFound):
            await bus.get(f"no-{job}", sequence=1)
        with pytest.raises(NotFound):
            await bus.last_sequence(f"no-{job}")


async def test_many_are_read_in_the_order_asked_for(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job)])
        for number in range(60):
            await bus.publish(f"{job}.{number}", str(number).encode())
        await bus.purge(job, f"{job}.3")
        wanted = [60, 4, 1, 99, *range(10, 50)]
        found = await bus.get_many(job, wanted)
        assert [None if s is None else s.sequence for s in found] == [60, None, 1, None, *range(10, 50)]
        assert found[0] is not None and found[0].data == b"59"


async def test_purge_takes_wildcards_and_only_what_matches(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job)])
        for subject in ("a.1", "a.2", "b.1"):
            await bus.publish(f"{job}.{subject}", b"x")
        await bus.purge(job, f"{job}.a.*")
        left = [s.subject async for s in bus.follow(job, live=False)]
        assert left == [f"{job}.b.1"]


async def test_a_ledger_stream_refuses_to_be_purged(buses, job):
    async with buses() as (bus, _):
        await bus.declare([plain(job, deny_delete=True)])
        await bus.publish(f"{job}.a", b"x")
        with pytest.raises(BusError):
            await bus.purge(job, f"{job}.a")
        assert await bus.get(job, sequence=1) is not None


async def test_declaring_twice_is_declaring_once(buses, job):
    async with buses() as (bus, other):
        await bus.declare(job_streams(job, 10_000_000))
        await bus.publish(f"scored.{job}.0.0", b"x")
        await other.declare(job_streams(job, 10_000_000))
        assert await bus.last_sequence(f"scored-{job}") == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_bytes": 5000}, "max_bytes: have 4096, want 5000"),
        ({"retention": "workqueue"}, "retention: have 'limits', want 'workqueue'"),
        ({"deny_delete": True}, "deny_delete: have False, want True"),
    ],
)
async def test_drift_names_the_stream_and_the_field(buses, job, change, says):
    async with buses() as (bus, other):
        await bus.declare([plain(job, max_bytes=4096)])
        with pytest.raises(Drift) as caught:
            await other.declare([plain(job, **{"max_bytes": 4096, **change})])
        assert f"stream {job}" in str(caught.value) and says in str(caught.value)


async def test_drift_of_a_consumer_names_it(buses, job):
    async with buses() as (bus, other):
        await bus.declare([plain(job, consumers=(Consumer("work", ack_wait_seconds=30),))])
        with pytest.raises(Drift, match=f"consumer work of stream {job}.*ack_wait"):
            await other.declare([plain(job, consumers=(Consumer("work", ack_wait_seconds=40),))])


async def test_deleting_leaves_no_stream_behind(buses, job):
    async with buses() as (bus, _):
        streams = job_streams(job)
        await bus.declare(streams)
        await bus.publish(f"trajectory.{job}.0.0", b"x")
        assert {s.name for s in streams} <= set(await bus.stream_names())
        for stream in streams:
            await bus.delete_stream(stream.name)
            await bus.delete_stream(stream.name)
        assert not {s.name for s in streams} & set(await bus.stream_names())


async def test_a_body_over_the_inline_limit_comes_back_whole(buses, job):
    async with buses() as (bus, other):
        await bus.declare(job_streams(job))
        body = bytes(range(256)) * 9000
        ack = await bus.publish(f"scored.{job}.0.0", body, message_id="big", headers={"Tokens": "9"})
        assert (await bus.publish(f"scored.{job}.0.0", body, message_id="big")).duplicate
        one = await other.get(f"scored-{job}", sequence=ack.sequence)
        assert one is not None and one.data == body
        assert dict(one.headers) == {"Tokens": "9", "Nats-Msg-Id": "big"}
        assert [s.data async for s in other.follow(f"scored-{job}", live=False)] == [body]
        assert [s.data async for s in other.follow(f"scored-{job}", live=False, headers_only=True)] == [b""]
        many = await other.get_many(f"scored-{job}", [ack.sequence])
        assert many[0] is not None and many[0].data == body


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a.*", "a.>", "a.", "a\n"])
async def test_a_bad_subject_is_an_error_at_once(buses, subject):
    async with buses() as (bus, _):
        with pytest.raises(BusError):
            await bus.publish(subject, b"x")


async def test_a_body_that_finds_no_room_is_refused_whole(buses, job):
    async with buses() as (bus, _):
        await bus.declare(job_streams(job, max_bytes=1_200_000))
        with pytest.raises(StreamFull):
            await bus.publish(f"scored.{job}.0.0", b"x" * 3_000_000)
        assert await bus.last_sequence(f"scored-{job}") == 0
