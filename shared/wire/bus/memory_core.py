"""The in-memory half of plain messaging: requests, their servers, and listeners. Nothing is stored."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shared.wire.bus.api import NoResponders, OnStored, Reply, Stored, TimedOut
from shared.wire.bus.subjects import matches

log = logging.getLogger(__name__)
Stop = Callable[[], Awaitable[None]]


@dataclass(eq=False)
class _Server:
    subject: str
    queue: str
    reply: Reply
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(eq=False)
class _Listener:
    subject: str
    inbox: asyncio.Queue[Stored] = field(default_factory=asyncio.Queue)


class MemoryCore:
    """Who serves and who listens; shared by all connections."""

    def __init__(self) -> None:
        self._servers: list[_Server] = []
        self._listeners: list[_Listener] = []
        self._turn = itertools.count()

    async def request(self, subject: str, data: bytes, timeout_seconds: float) -> bytes:
        chosen = self._responders(subject)
        if not chosen:
            raise NoResponders(f"nobody serves {subject}")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        for server in chosen:
            task = asyncio.create_task(self._answer(server, subject, data, answer))
            server.tasks.add(task)
            task.add_done_callback(server.tasks.discard)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except TimeoutError:
            raise TimedOut(f"no answer on {subject} in {timeout_seconds:g} s") from None

    def broadcast(self, subject: str, data: bytes) -> None:
        for listener in self._listeners:
            if matches(listener.subject, subject):
                listener.inbox.put_nowait(Stored(subject, 0, data))

    def serve(self, subject: str, reply: Reply, queue: str) -> Stop:
        server = _Server(subject, queue, reply)
        self._servers.append(server)

        async def stop() -> None:
            if server in self._servers:
                self._servers.remove(server)
            for task in list(server.tasks):
                task.cancel()

        return stop

    def listen(self, subject: str, handler: OnStored) -> Stop:
        listener = _Listener(subject)
        self._listeners.append(listener)
        task = asyncio.create_task(self._hear(listener, handler), name=f"listen {subject}")

        async def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        return stop

    def _responders(self, subject: str) -> list[_Server]:
        fitting = [s for s in self._servers if matches(s.subject, subject)]
        alone = [s for s in fitting if not s.queue]
        groups: dict[tuple[str, str], list[_Server]] = {}
        for server in fitting:
            if server.queue:
                groups.setdefault((server.subject, server.queue), []).append(server)
        return alone + [members[next(self._turn) % len(members)] for members in groups.values()]

    async def _answer(self, server: _Server, subject: str, data: bytes, answer: asyncio.Future[bytes]) -> None:
        try:
            result = await server.reply(data)
        except Exception as error:  # a handler's failure is its own; the asker's time runs out
            log.error("request on %s failed: %s: %s", subject, type(error).__name__, error)
            return
        if not answer.done():
            answer.set_result(result)

    async def _hear(self, listener: _Listener, handler: OnStored) -> None:
        while True:
            message = await listener.inbox.get()
            try:
                await handler(message)
            except Exception as error:  # the next message must still be heard
                log.error("message on %s failed: %s: %s", message.subject, type(error).__name__, error)
