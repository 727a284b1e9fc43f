"""Handling the messages of a durable consumer: a few at a time, each kept in progress, acknowledged when it is done.

consumes  a durable pull consumer; asks for no more than there are free hands
waits     for messages, for hands, and for the server to come back
stalls    never by itself: a handler that never returns keeps its one hand
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from shared.wire.bus.api import OnStored, Stored, Unreachable
from shared.wire.bus.jetstream import FOR_EVER, NANOSECONDS, JetStream, backoff
from shared.wire.bus.link import Away, Link
from shared.wire.bus.pull import Delivery, Pull

log = logging.getLogger(__name__)
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.5, 30.0

Whole = Callable[[Stored], Awaitable[Stored]]


class Consuming:
    """One call of `consume`."""

    def __init__(
        self,
        link: Link,
        jetstream: JetStream,
        stream: str,
        consumer: str,
        handler: OnStored,
        concurrency: int,
        whole: Whole,
    ) -> None:
        self._link = link
        self._jetstream = jetstream
        self._stream = stream
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._whole = whole
        self._running: dict[asyncio.Task[None], Delivery] = {}

    async def run(self) -> None:
        """Until cancelled, or `NotFound`."""
        info = await self._info()
        every = info["config"].get("ack_wait", 30 * NANOSECONDS) / NANOSECONDS / 3
        in_progress = asyncio.create_task(self._keep_in_progress(every), name=f"in progress {self._stream}")
        breaks = 0
        try:
            while True:
                began = asyncio.get_running_loop().time()
                await self._pull()
                breaks = 0 if asyncio.get_running_loop().time() - began > 5 else breaks + 1
                await asyncio.sleep(backoff(breaks))
                await self._info()
        finally:
            in_progress.cancel()
            await self._give_back()

    async def _info(self) -> dict[str, Any]:
        """Whether the consumer is still there, and how it is made; waits for the server as long as it takes."""
        return await self._jetstream.consumer_info(self._stream, self._consumer, patience_seconds=FOR_EVER)

    async def _pull(self) -> None:
        """Pull and handle until the pull breaks."""
        async with Pull(self._link, self._stream, self._consumer) as pull:
            while not pull.broken:
                free = self._concurrency - len(self._running) - len(pull) - pull.outstanding
                if free >= max(1, self._concurrency // 2) or (free > 0 and not pull.outstanding):
                    await pull.ask(free)
                delivery = pull.pop()
                if delivery is None:
                    await pull.wait()
                    continue
                task = asyncio.create_task(self._handle(delivery))
                self._running[task] = delivery
                task.add_done_callback(lambda done: self._done(done, pull))
            while (delivery := pull.pop()) is not None:  # delivered, but the hands may be taken: others may have it
                await self._tell(delivery, b"-NAK")

    def _done(self, task: asyncio.Task[None], pull: Pull) -> None:
        self._running.pop(task, None)
        pull.arrived.notify()

    async def _handle(self, delivery: Delivery) -> None:
        stored = delivery.stored
        try:
            await self._handler(await self._whole(stored))
        except Exception as error:  # the one place where a handler's failure is caught: log, and deliver again
            said = " ".join(str(error).split())
            log.error("%s failed, to be delivered again: %s: %s", stored.subject, type(error).__name__, said)
            delay = min(FIRST_DELAY_SECONDS * 2.0 ** min(stored.deliveries - 1, 10), LONGEST_DELAY_SECONDS)
            await self._tell(delivery, b"-NAK " + json.dumps({"delay": int(delay * NANOSECONDS)}).encode())
        else:
            await self._tell(delivery, b"+ACK")

    async def _tell(self, delivery: Delivery, what: bytes) -> None:
        try:
            await self._link.send(delivery.reply, what)
        except (Away, Unreachable) as error:  # not told: it is delivered again, and handlers are idempotent
            log.debug("%s of %s not sent: %s", what, delivery.stored.subject, error)

    async def _keep_in_progress(self, every_seconds: float) -> None:
        while True:
            await asyncio.sleep(every_seconds)
            for delivery in list(self._running.values()):
                await self._tell(delivery, b"+WPI")

    async def _give_back(self) -> None:
        """Cancel what runs and hand it to others at once."""
        running = dict(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task, delivery in running.items():
            if task.cancelled():
                await self._tell(delivery, b"-NAK")
