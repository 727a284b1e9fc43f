"""Events as server-sent events: complete, in order, resumable, and ended when there is a reason to."""

import asyncio

from gateway import events
from gateway.sse import HEARTBEAT, JobEvent, Lines
from shared.wire import messages as m
from shared.wire import topics


async def tell(bus, job, kind, step=-1, **body):
    event = m.Event(job=job, event=kind, at=1.0, step=step, body=body)
    return (await bus.publish(topics.event_subject(job, kind), m.encode(event))).sequence


def reading(bus, make, after=0, heartbeat=5.0, stopping=None, exists=True):
    async def there():
        return exists

    return events.server_sent(
        bus, make.JOB, after=after, heartbeat_seconds=heartbeat, stopping=stopping or asyncio.Event(), exists=there
    )


async def take(frames, count):
    """The first `count` events as a client reads them."""
    lines, found = Lines(), []
    async for frame in frames:
        for line in frame.splitlines():
            item = lines.feed(line)
            if isinstance(item, JobEvent):
                found.append(item)
        if len(found) == count:
            await frames.aclose()
            return found
    return found


def test_a_reader_gets_what_was_and_what_comes_in_order(make):
    async def scenario():
        bus = await make.new_bus()
        await tell(bus, make.JOB, "state", state="running")
        await tell(bus, "other-1a2b3c", "state", state="running")
        reader = asyncio.create_task(take(reading(bus, make), 4))
        await asyncio.sleep(0)
        await tell(bus, make.JOB, "step", step=1, loss=float("nan"))
        await tell(bus, make.JOB, "evaluation", round=0)
        await tell(bus, make.JOB, "step", step=2)
        return await reader

    found = asyncio.run(scenario())
    assert [(e.event, e.step) for e in found] == [("state", -1), ("step", 1), ("evaluation", -1), ("step", 2)]
    assert [e.id for e in found] == [1, 3, 4, 5]
    assert found[1].body == {"loss": None}  # JSON has no NaN


def test_a_reader_that_comes_back_misses_nothing_and_gets_nothing_twice(make):
    async def scenario():
        bus = await make.new_bus()
        for step in range(1, 6):
            await tell(bus, make.JOB, "step", step=step)
        first = await take(reading(bus, make), 2)
        return first + await take(reading(bus, make, after=first[-1].id), 3)

    assert [e.step for e in asyncio.run(scenario())] == [1, 2, 3, 4, 5]


def test_a_silent_stream_sends_comments_and_ends_when_the_job_is_gone(make):
    async def scenario():
        bus = await make.new_bus()
        stopping = asyncio.Event()
        frames = reading(bus, make, heartbeat=0.01, stopping=stopping)
        start, beat = await anext(frames), await anext(frames)
        await frames.aclose()
        gone = [frame async for frame in reading(bus, make, heartbeat=0.01, exists=False)]
        return start, beat, gone

    start, beat, gone = asyncio.run(scenario())
    assert start.startswith(":")
    assert beat.startswith(":")
    assert gone[-1] == "event: gone\ndata: {}\n\n"


def test_a_stopping_gateway_ends_the_stream(make):
    async def scenario():
        bus = await make.new_bus()
        stopping = asyncio.Event()
        reader = asyncio.create_task(take(reading(bus, make, heartbeat=60, stopping=stopping), 1))
        await asyncio.sleep(0.01)
        stopping.set()
        return await asyncio.wait_for(reader, 2)

    assert asyncio.run(scenario()) == []


def test_an_event_of_another_release_is_shown_as_unreadable(make):
    async def scenario():
        bus = await make.new_bus()
        await bus.publish(topics.event_subject(make.JOB, "step"), b"\xc1")
        return [event async for event in events.past(bus, make.JOB)]

    (event,) = asyncio.run(scenario())
    assert event.event == "step"
    assert "not MessagePack" in event.body["unreadable"]


def test_lines_become_events_and_comments_heartbeats():
    lines = Lines()
    text = ': hi\n\nid: 7\nevent: step\ndata: {"job": "j",\ndata:  "step": 3, "new": 1}\n\ndata: nonsense\n\nid: 9\n\n'
    items = [item for item in map(lines.feed, text.split("\n")) if item is not None]
    assert items[0] is HEARTBEAT
    assert items[1] == JobEvent(id=7, event="step", job="j", step=3)
    assert items[2].body == {"unreadable": "nonsense"}
    assert len(items) == 3
