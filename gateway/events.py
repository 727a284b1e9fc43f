"""The stream of events as people read it: once, or for ever as server-sent events.

Flow of `server_sent`: one task waits for the stream's next event; whenever it is silent a comment goes out, so that
proxies keep the connection and a vanished client is noticed. It ends when the gateway stops or the job is deleted;
clients come back with `Last-Event-ID` and miss nothing.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gateway.models import EventView
from shared.wire import topics
from shared.wire.bus.api import Bus, NotFound, Stored
from shared.wire.messages import BadMessage, Event, decode

STREAM = topics.EVENTS.name


def view(stored: Stored) -> EventView:
    """A stored event; one of another release stays visible, with the reason why it cannot be read."""
    try:
        event = decode(Event, stored.data)
    except BadMessage as error:
        _, job, kind = (*stored.subject.split("."), "", "")[:3]
        return EventView(
            id=stored.sequence, job=job, event=kind, at=stored.at, step=-1, body={"unreadable": str(error)}
        )
    return EventView(
        id=stored.sequence, job=event.job, event=event.event, at=event.at, step=event.step, body=plain(event.body)
    )


def plain(value: Any) -> Any:
    """JSON has neither NaN nor infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value


async def newest(bus: Bus, job: str, kind: str) -> EventView | None:
    try:
        stored = await bus.get(STREAM, subject=topics.event_subject(job, kind))
    except NotFound:
        return None
    return None if stored is None else view(stored)


async def past(bus: Bus, job: str, kind: str = "*", after: int = 0) -> AsyncIterator[EventView]:
    """What there is now, oldest first."""
    subject = f"events.{topics.checked(job)}.{kind}"
    try:
        async for stored in bus.follow(STREAM, subject=subject, from_sequence=after + 1, live=False):
            yield view(stored)
    except NotFound:
        return


def frame(event: EventView) -> str:
    """One event as text/event-stream."""
    return f"id: {event.id}\nevent: {event.event}\ndata: {json.dumps(event.model_dump(exclude={'id'}))}\n\n"


async def server_sent(
    bus: Bus,
    job: str,
    *,
    after: int,
    heartbeat_seconds: float,
    stopping: asyncio.Event,
    exists: Callable[[], Awaitable[bool]],
) -> AsyncIterator[str]:
    """The job's events after sequence `after`, then new ones as they come."""
    yield ": slipstream events\n\n"
    source = bus.follow(STREAM, subject=f"events.{topics.checked(job)}.*", from_sequence=after + 1)
    iterator = aiter(source)
    stop = asyncio.ensure_future(stopping.wait())
    upcoming = asyncio.ensure_future(anext(iterator))
    try:
        while True:
            await asyncio.wait((upcoming, stop), timeout=heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                return
            if not upcoming.done():
                if not await exists():
                    yield "event: gone\ndata: {}\n\n"
                    return
                yield ": still here\n\n"
                continue
            try:
                stored = upcoming.result()
            except (StopAsyncIteration, NotFound):
                return
            yield frame(view(stored))
            upcoming = asyncio.ensure_future(anext(iterator))
    finally:
        for task in (upcoming, stop):
            task.cancel()
        await asyncio.gather(upcoming, stop, return_exceptions=True)
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()
