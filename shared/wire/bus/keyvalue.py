"""A key-value bucket over a stream: a key is a subject, its value the last message there, its revision the sequence."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from shared.wire.bus.api import Ack, BusError, Conflict, Entry, NotFound, Stored
from shared.wire.bus.declare import bucket_stream
from shared.wire.bus.follow import Follower
from shared.wire.bus.jetstream import JetStream

OPERATION = "KV-Operation"
PURGED = {OPERATION: "PURGE", "Nats-Rollup": "sub"}
KEY = re.compile(r"^[-/_=.a-zA-Z0-9]+$")


class Put(Protocol):
    async def __call__(
        self, subject: str, data: bytes, *, headers: dict[str, str] | None, expected_last_subject_sequence: int | None
    ) -> Ack: ...


class NatsKeyValue:
    """One bucket. Reads ask the leader, so that a value that was put is seen."""

    def __init__(self, bucket: str, jetstream: JetStream, put: Put, follower: Callable[[str, bool], Follower]) -> None:
        self._bucket = bucket
        self._stream = bucket_stream(bucket)
        self._prefix = f"$KV.{bucket}."
        self._jetstream = jetstream
        self._put = put
        self._follower = follower

    async def get(self, key: str) -> Entry | None:
        entry = await self._newest(key)
        return None if entry is None or entry.data is None else entry

    async def create(self, key: str, data: bytes) -> int:
        try:
            return await self._write(key, data, 0)
        except Conflict:
            newest = await self._newest(key)
            if newest is None or newest.data is not None:
                raise
            return await self._write(key, data, newest.revision)

    async def update(self, key: str, data: bytes, revision: int) -> int:
        return await self._write(key, data, revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        await self._write(key, b"", revision, PURGED)

    async def keys(self) -> list[str]:
        found = [self._entry(s) async for s in self._follower(self._stream, True).newest_per_subject()]
        return sorted({entry.key for entry in found if entry.data is not None})

    async def watch(self) -> AsyncIterator[Entry | None]:
        known: dict[str, int] = {}
        last = int((await self._jetstream.stream_info(self._stream))["state"]["last_seq"])
        async for stored in self._follower(self._stream, False).newest_per_subject():
            entry = self._entry(stored)
            if entry.revision > known.get(entry.key, 0):
                known[entry.key] = entry.revision
                if entry.data is not None:
                    yield entry
        yield None
        async for stored in self._follower(self._stream, False).from_sequence(last + 1, live=True):
            entry = self._entry(stored)
            if entry.revision > known.get(entry.key, 0):
                known[entry.key] = entry.revision
                yield entry

    async def _newest(self, key: str) -> Entry | None:
        stored = await self._jetstream.message(self._stream, {"last_by_subj": self._subject(key)})
        return None if stored is None else self._entry(stored)

    async def _write(self, key: str, data: bytes, revision: int | None, headers: dict[str, str] | None = None) -> int:
        try:
            ack = await self._put(self._subject(key), data, headers=headers, expected_last_subject_sequence=revision)
        except NotFound:
            raise NotFound(f"no bucket {self._bucket}") from None
        except Conflict as error:
            text = f"key {key} of {self._bucket} is not at revision {revision}"
            raise Conflict(text, error.last_sequence) from None
        return ack.sequence

    def _subject(self, key: str) -> str:
        if not KEY.match(key) or key.startswith(".") or key.endswith(".") or ".." in key:
            raise BusError(f"{key!r} is not a key")
        return self._prefix + key

    def _entry(self, stored: Stored) -> Entry:
        gone = stored.headers.get(OPERATION) in ("DEL", "PURGE")
        return Entry(stored.subject.removeprefix(self._prefix), None if gone else stored.data, stored.sequence)
