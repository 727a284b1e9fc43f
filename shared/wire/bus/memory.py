"""The bus in one process's memory: the fake that tests use, held to the server's promises by the contract suite.

Connections to one broker: `MemoryBus()` makes a broker, `bus.another()` connects to the same one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from shared.wire.bus.api import Ack, BusError, Drift, Entry, Lock, NotFound, OnStored, Reply, Stored
from shared.wire.bus.drift import differences
from shared.wire.bus.locks import take
from shared.wire.bus.memory_core import MemoryCore
from shared.wire.bus.memory_streams import MemoryBroker, MemoryConsumer, MemoryKeys, MemoryStream
from shared.wire.bus.subjects import checked
from shared.wire.topics import LOCKS, Bucket, Consumer, Stream

log = logging.getLogger(__name__)
REDELIVERY_SECONDS = 0.05


def _fields(declared: Stream | Bucket | Consumer) -> dict[str, object]:
    return {name: value for name, value in vars(declared).items() if name not in ("name", "consumers")}


class MemoryBus:
    """A connection to a broker that lives in this process."""

    def __init__(self, broker: MemoryBroker | None = None, core: MemoryCore | None = None) -> None:
        self._broker = broker or MemoryBroker()
        self._core = core or MemoryCore()
        self._closed = asyncio.Event()
        self._stops: list[Callable[[], Awaitable[None]]] = []

    def another(self) -> MemoryBus:
        """A second connection to the same broker."""
        return MemoryBus(self._broker, self._core)

    async def declare(self, streams: Sequence[Stream] = (), buckets: Sequence[Bucket] = ()) -> None:
        for want in streams:
            stream = self._broker.streams.setdefault(want.name, MemoryStream(want))
            self._compare(f"stream {want.name}", stream.declaration, want)
            for consumer in want.consumers:
                have = stream.consumers.setdefault(consumer.name, MemoryConsumer(consumer))
                self._compare(f"consumer {consumer.name} of stream {want.name}", have.declaration, consumer)
        for bucket in buckets:
            keys = self._broker.keys.setdefault(bucket.name, MemoryKeys(bucket, self._broker.changed))
            self._compare(f"bucket {bucket.name}", keys.declaration, bucket)

    def _compare(self, what: str, have: Stream | Bucket | Consumer, want: Stream | Bucket | Consumer) -> None:
        found = differences(_fields(have), _fields(want))
        if found:
            raise Drift(f"{what} differs from its declaration: {'; '.join(found)}")

    async def delete_stream(self, name: str) -> None:
        stream = self._broker.streams.pop(name, None)
        if stream is not None:
            stream.deleted = True
            self._broker.changed.notify()

    async def stream_names(self) -> list[str]:
        return sorted(self._broker.streams)

    async def last_sequence(self, stream: str) -> int:
        return self._broker.stream(stream).last

    async def stream_bytes(self, stream: str) -> int:
        return self._broker.stream(stream).size

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str = "",
        headers: Mapping[str, str] | None = None,
        expected_last_sequence: int | None = None,
        expected_last_subject_sequence: int | None = None,
        patience_seconds: float = 60.0,
    ) -> Ack:
        await asyncio.sleep(0)  # a real publish lets others run
        stream = self._broker.stream_of(checked(subject))
        ack = stream.store(
            subject, data, message_id, headers or {}, expected_last_sequence, expected_last_subject_sequence
        )
        self._broker.changed.notify()
        return ack

    async def get(self, stream: str, *, sequence: int | None = None, subject: str | None = None) -> Stored | None:
        found = self._broker.stream(stream)
        if subject is not None:
            return found.newest(subject)
        return found.messages.get(sequence or 0)

    async def get_many(self, stream: str, sequences: Sequence[int]) -> list[Stored | None]:
        return [await self.get(stream, sequence=sequence) for sequence in sequences]

    async def purge(self, stream: str, subject: str) -> None:
        self._broker.stream(stream).purge(subject)

    async def follow(
        self, stream: str, *, subject: str = ">", from_sequence: int = 1, headers_only: bool = False, live: bool = True
    ) -> AsyncIterator[Stored]:
        source = self._broker.stream(stream)
        if live and source.declaration.retention == "workqueue":
            raise BusError(f"stream {stream} is a work queue: it can be consumed, not followed")
        next_sequence, end = max(from_sequence, 1), source.last
        while True:
            for message in list(source.after(next_sequence, subject)):
                if source.deleted or (not live and message.sequence > end):
                    break
                if message.sequence not in source.messages:
                    continue  # purged since the look
                next_sequence = message.sequence + 1
                yield replace(message, data=b"") if headers_only else message
            if source.deleted:
                raise NotFound(f"no stream {stream}")
            if not live:
                return
            if next(source.after(next_sequence, subject), None) is None:
                await self._broker.changed.wait()

    async def consume(self, stream: str, consumer: str, handler: OnStored, *, concurrency: int = 8) -> None:
        source = self._broker.stream(stream)
        if consumer not in source.consumers:
            raise NotFound(f"no consumer {consumer} of stream {stream}")
        state = source.consumers[consumer]
        running: set[asyncio.Task[None]] = set()

        def done(task: asyncio.Task[None]) -> None:
            running.discard(task)
            self._broker.changed.notify()

        try:
            while not source.deleted:
                message = source.take(state) if len(running) < concurrency else None
                if message is None:
                    due = state.again[0][0] - time.monotonic() if state.again else None
                    await self._broker.changed.wait(None if due is None else max(due, 0.001))
                    continue
                task = asyncio.create_task(self._handle(source, state, message, handler))
                running.add(task)
                task.add_done_callback(done)
            raise NotFound(f"no stream {stream}")
        finally:
            for task in list(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _handle(self, stream: MemoryStream, state: MemoryConsumer, message: Stored, handler: OnStored) -> None:
        try:
            await handler(message)
            stream.acknowledge(state, message.sequence)
        except asyncio.CancelledError:
            state.again.appendleft((0.0, message.sequence))
            raise
        except Exception as error:  # the one place where a handler's failure is caught: log, and deliver again
            log.error("%s failed, to be delivered again: %s: %s", message.subject, type(error).__name__, error)
            state.again.append((time.monotonic() + REDELIVERY_SECONDS, message.sequence))

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float = 5.0) -> bytes:
        return await self._core.request(checked(subject), data, timeout_seconds)

    async def serve(self, subject: str, reply: Reply, *, queue: str = "") -> Callable[[], Awaitable[None]]:
        self._stops.append(self._core.serve(checked(subject, wildcards=True), reply, queue))
        return self._stops[-1]

    async def broadcast(self, subject: str, data: bytes) -> None:
        self._core.broadcast(checked(subject), data)

    async def listen(self, subject: str, handler: OnStored) -> Callable[[], Awaitable[None]]:
        self._stops.append(self._core.listen(checked(subject, wildcards=True), handler))
        return self._stops[-1]

    def bucket(self, name: str) -> MemoryKeyValue:
        return MemoryKeyValue(self._broker, name)

    async def try_lock(self, name: str, holder: str) -> Lock | None:
        remake = partial(self.declare, buckets=[LOCKS])
        lock = await take(self.bucket(LOCKS.name), name, holder, LOCKS.ttl_seconds, remake)
        if lock is not None:
            self._stops.append(lock.release)
        return lock

    async def sweep_objects(self, job: str, older_than_seconds: float) -> int:
        return 0  # large bodies need no second place here

    async def closed(self) -> None:
        await self._closed.wait()

    async def close(self) -> None:
        for stop in self._stops:
            await stop()
        self._closed.set()


class MemoryKeyValue:
    """A bucket seen by one connection."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker = broker
        self._name = name

    async def get(self, key: str) -> Entry | None:
        return self._broker.bucket(self._name).live(key)

    async def create(self, key: str, data: bytes) -> int:
        return self._broker.bucket(self._name).put(key, data, 0)

    async def update(self, key: str, data: bytes, revision: int) -> int:
        return self._broker.bucket(self._name).put(key, data, revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        self._broker.bucket(self._name).put(key, None, revision)

    async def keys(self) -> list[str]:
        bucket = self._broker.bucket(self._name)
        return sorted(key for key in bucket.entries if bucket.live(key) is not None)

    async def watch(self) -> AsyncIterator[Entry | None]:
        bucket = self._broker.bucket(self._name)
        seen = len(bucket.log)
        for key in list(bucket.entries):
            entry = bucket.live(key)
            if entry is not None:
                yield entry
        yield None
        while True:
            while seen < len(bucket.log):
                seen += 1
                yield bucket.log[seen - 1]
            await self._broker.changed.wait()
