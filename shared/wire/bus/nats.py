"""The bus over a nats-server: two connections, one for data and one for control, and the parts that use them.

publish, get, consume, follow (data)      -> link, publish, pull, consume, follow, objects
requests, locks, keys, administration     -> link, services, keyvalue, locks, jetstream, declare
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from shared.wire.bus import objects
from shared.wire.bus.api import Ack, Lock, NotFound, OnStored, Reply, Stored
from shared.wire.bus.consume import Consuming
from shared.wire.bus.declare import bucket_config, declare_consumer, declare_stream, stream_config
from shared.wire.bus.follow import Follower
from shared.wire.bus.jetstream import CALL_SECONDS, JetStream, seconds_of, status_of
from shared.wire.bus.keyvalue import NatsKeyValue
from shared.wire.bus.link import Away, Link
from shared.wire.bus.locks import KeyLock, take
from shared.wire.bus.publish import Publisher
from shared.wire.bus.services import Services
from shared.wire.bus.subjects import checked
from shared.wire.topics import LOCKS, Bucket, Stream

GET_AT_ONCE = 32
SERVER_HEADERS = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending")


class NatsBus:
    """A process's connection to the broker."""

    def __init__(self, data: Link, control: Link) -> None:
        self._data = data
        self._control = control
        self._api = JetStream(control)
        self._publisher = Publisher(data, self._api)
        self._control_publisher = Publisher(control, self._api)
        self._services = Services(control)
        self._locks: list[KeyLock] = []

    @classmethod
    async def connect(cls, url: str, *, name: str) -> NatsBus:
        """Waits for the server to come up, saying so; cancel it to give up."""
        data = await Link.open(url, name)
        try:
            return cls(data, await Link.open(url, f"{name} control", quiet=True))
        except BaseException:
            await data.close()
            raise

    async def declare(self, streams: Sequence[Stream] = (), buckets: Sequence[Bucket] = ()) -> None:
        for stream in streams:
            await declare_stream(self._api, f"stream {stream.name}", stream_config(stream))
            for consumer in stream.consumers:
                await declare_consumer(self._api, stream.name, consumer)
        for bucket in buckets:
            await declare_stream(self._api, f"bucket {bucket.name}", bucket_config(bucket))

    async def delete_stream(self, name: str) -> None:
        try:
            await self._api.ask(f"STREAM.DELETE.{name}", None, f"delete stream {name}")
        except NotFound:
            return

    async def stream_names(self) -> list[str]:
        return sorted(name for name in await self._api.stream_names() if not name.startswith("KV_"))

    async def last_sequence(self, stream: str) -> int:
        return int((await self._api.stream_info(stream))["state"]["last_seq"])

    async def stream_bytes(self, stream: str) -> int:
        return int((await self._api.stream_info(stream))["state"]["bytes"])

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
        checked(subject)
        if len(data) > objects.INLINE_BYTES:
            put = partial(self._put, self._publisher, patience_seconds=patience_seconds)
            headers = {**(headers or {}), objects.POINTER: await objects.put(put, subject, data)}
            data = b""
        return await self._publisher.publish(
            subject,
            data,
            message_id=message_id,
            headers=headers,
            expected_last_sequence=expected_last_sequence,
            expected_last_subject_sequence=expected_last_subject_sequence,
            patience_seconds=patience_seconds,
        )

    async def get(self, stream: str, *, sequence: int | None = None, subject: str | None = None) -> Stored | None:
        stored = await self._read(stream, {"last_by_subj": subject} if subject is not None else {"seq": sequence or 0})
        return None if stored is None else await self._whole(stored)

    async def get_many(self, stream: str, sequences: Sequence[int]) -> list[Stored | None]:
        room = asyncio.Semaphore(GET_AT_ONCE)

        async def one(sequence: int) -> Stored | None:
            async with room:
                return await self.get(stream, sequence=sequence)

        return list(await asyncio.gather(*(one(sequence) for sequence in sequences)))

    async def purge(self, stream: str, subject: str) -> None:
        await self._api.ask(f"STREAM.PURGE.{stream}", {"filter": subject}, f"purge {subject} of stream {stream}")

    async def follow(
        self, stream: str, *, subject: str = ">", from_sequence: int = 1, headers_only: bool = False, live: bool = True
    ) -> AsyncIterator[Stored]:
        follower = self._follower(stream, headers_only, subject)
        async with aclosing(follower.from_sequence(from_sequence, live)) as messages:
            async for stored in messages:
                yield stored if headers_only else await self._whole(stored)

    async def consume(self, stream: str, consumer: str, handler: OnStored, *, concurrency: int = 8) -> None:
        await Consuming(self._data, self._api, stream, consumer, handler, concurrency, self._whole).run()

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float = 5.0) -> bytes:
        return await self._services.request(checked(subject), data, timeout_seconds)

    async def serve(self, subject: str, reply: Reply, *, queue: str = "") -> Callable[[], Awaitable[None]]:
        return await self._services.serve(checked(subject, wildcards=True), reply, queue)

    async def broadcast(self, subject: str, data: bytes) -> None:
        await self._services.broadcast(checked(subject), data)

    async def listen(self, subject: str, handler: OnStored) -> Callable[[], Awaitable[None]]:
        return await self._services.listen(checked(subject, wildcards=True), handler)

    def bucket(self, name: str) -> NatsKeyValue:
        return self._keys(name, 60.0)

    async def try_lock(self, name: str, holder: str) -> Lock | None:
        keys = self._keys(LOCKS.name, LOCKS.ttl_seconds)
        lock = await take(keys, name, holder, LOCKS.ttl_seconds, partial(self.declare, buckets=[LOCKS]))
        if lock is not None:
            self._locks = [other for other in self._locks if not other.lost] + [lock]
        return lock

    async def sweep_objects(self, job: str, older_than_seconds: float) -> int:
        def all_headers(stream: str) -> AsyncIterator[Stored]:
            return self._follower(stream, True).from_sequence(1, live=False)

        async def purge(stream: str, subject: str, last_sequence: int) -> None:
            body = {"filter": subject, "seq": last_sequence + 1}
            await self._api.ask(f"STREAM.PURGE.{stream}", body, f"sweep {subject}")

        return await objects.sweep(all_headers, purge, job, time.time() - older_than_seconds)

    async def closed(self) -> None:
        tasks = [asyncio.create_task(link.closed()) for link in (self._data, self._control)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        held = [lock for lock in self._locks if not lock.lost]
        releasing = [asyncio.create_task(lock.release()) for lock in held]
        if releasing and self._control.connected:
            await asyncio.wait(releasing, timeout=0.3)
        for task in releasing:
            task.cancel()
        await self._services.close()
        await asyncio.gather(self._data.close(), self._control.close())

    async def _put(self, publisher: Publisher, subject: str, data: bytes, *, patience_seconds: float) -> Ack:
        return await publisher.publish(
            subject,
            data,
            message_id="",
            headers=None,
            expected_last_sequence=None,
            expected_last_subject_sequence=None,
            patience_seconds=patience_seconds,
        )

    def _keys(self, bucket: str, patience_seconds: float) -> NatsKeyValue:
        async def put(
            subject: str, data: bytes, *, headers: dict[str, str] | None, expected_last_subject_sequence: int | None
        ) -> Ack:
            return await self._control_publisher.publish(
                subject,
                data,
                message_id="",
                headers=headers,
                expected_last_sequence=None,
                expected_last_subject_sequence=expected_last_subject_sequence,
                patience_seconds=patience_seconds,
            )

        return NatsKeyValue(bucket, self._api, put, self._follower)

    def _follower(self, stream: str, headers_only: bool, subject: str = ">") -> Follower:
        return Follower(self._data, self._api, stream, subject, headers_only)

    async def _whole(self, stored: Stored) -> Stored:
        return await objects.whole(lambda stream, subject: self._read(stream, {"last_by_subj": subject}), stored)

    async def _read(self, stream: str, query: dict[str, str | int]) -> Stored | None:
        """One message. By sequence it comes raw and fast from any replica; what that lacks, the leader decides."""
        if "seq" in query:
            try:
                subject = f"$JS.API.DIRECT.GET.{stream}"
                answer = await self._data.call(subject, json.dumps(query).encode(), timeout_seconds=CALL_SECONDS)
            except Away:
                return await self._api.message(stream, query)
            headers = answer.headers or {}
            if not status_of(answer) and "Nats-Sequence" in headers:
                kept = {name: value for name, value in headers.items() if name not in SERVER_HEADERS}
                at = seconds_of(headers.get("Nats-Time-Stamp", ""))
                return Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), answer.data, kept, at=at)
        return await self._api.message(stream, query)
