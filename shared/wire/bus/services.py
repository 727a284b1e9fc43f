"""Requests and their answers, broadcasts and listeners: core messaging on the control connection, nothing stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from nats.aio.msg import Msg

from shared.wire.bus.api import NoResponders, OnStored, Reply, Stored, TimedOut, Unreachable
from shared.wire.bus.jetstream import status_of
from shared.wire.bus.link import Away, Link

log = logging.getLogger(__name__)
Stop = Callable[[], Awaitable[None]]


class Services:
    """What a process asks and answers over one link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._answering: set[asyncio.Task[None]] = set()

    async def request(self, subject: str, data: bytes, timeout_seconds: float) -> bytes:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        if not self._link.connected:
            await self._link.wait_connected(timeout_seconds)
        try:
            answer = await self._link.call(subject, data, timeout_seconds=max(deadline - loop.time(), 0.01))
        except Away as error:
            if loop.time() < deadline:
                raise Unreachable(f"request on {subject}: {error}") from None
            raise TimedOut(f"no answer on {subject} in {timeout_seconds:g} s") from None
        if status_of(answer) == "503":
            raise NoResponders(f"nobody serves {subject}")
        return answer.data

    async def serve(self, subject: str, reply: Reply, queue: str) -> Stop:
        mine: set[asyncio.Task[None]] = set()

        async def on_request(message: Msg) -> None:
            task = asyncio.create_task(self._answer(message, reply))
            for tasks in (mine, self._answering):
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        subscription = await self._link.subscribe(subject, on_request, queue=queue)
        await self._link.arrived()

        async def stop() -> None:
            await self._link.unsubscribe(subscription)
            await _cancel(mine)

        return stop

    async def listen(self, subject: str, handler: OnStored) -> Stop:
        async def on_message(message: Msg) -> None:
            try:
                await handler(Stored(message.subject, 0, message.data, message.headers or {}))
            except Exception as error:  # the next message must still be heard
                log.error("message on %s failed: %s: %s", message.subject, type(error).__name__, error)

        subscription = await self._link.subscribe(subject, on_message)
        await self._link.arrived()
        return partial(self._link.unsubscribe, subscription)

    async def broadcast(self, subject: str, data: bytes) -> None:
        if self._link.connected:  # what nobody can hear now is not for later
            try:
                await self._link.send(subject, data)
            except Away as error:
                raise Unreachable(f"broadcast on {subject}: {error}") from None

    async def close(self) -> None:
        await _cancel(self._answering)

    async def _answer(self, message: Msg, reply: Reply) -> None:
        try:
            await self._link.send(message.reply, await reply(message.data))
        except Exception as error:  # a handler's failure is its own; the asker's time runs out
            log.error("request on %s failed: %s: %s", message.subject, type(error).__name__, error)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
