"""The state of the in-memory broker: streams, their durable consumers, and key-value buckets. No tasks, no waiting."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from shared.wire.bus.api import Ack, BusError, Conflict, Entry, NotFound, Stored, StreamFull
from shared.wire.bus.signal import Signal
from shared.wire.bus.subjects import matches
from shared.wire.topics import Bucket, Consumer, Stream

MESSAGE_ID = "Nats-Msg-Id"
OVERHEAD_BYTES = 32


def size_of(message: Stored) -> int:
    headers = sum(len(name) + len(value) for name, value in message.headers.items())
    return OVERHEAD_BYTES + len(message.subject) + headers + len(message.data)


@dataclass
class MemoryConsumer:
    """Which messages of a stream a durable consumer still has to hand out."""

    declaration: Consumer
    next_sequence: int = 1
    again: deque[tuple[float, int]] = field(default_factory=deque)
    deliveries: dict[int, int] = field(default_factory=dict)

    def wants(self, subject: str) -> bool:
        return not self.declaration.filter_subject or matches(self.declaration.filter_subject, subject)


@dataclass
class MemoryStream:
    """Messages by sequence, with the server's rules about limits, repeats and expected sequences."""

    declaration: Stream
    messages: dict[int, Stored] = field(default_factory=dict)
    on_subject: dict[str, list[int]] = field(default_factory=dict)
    last: int = 0
    size: int = 0
    ids: dict[str, tuple[int, float]] = field(default_factory=dict)
    consumers: dict[str, MemoryConsumer] = field(default_factory=dict)
    deleted: bool = False

    def store(
        self,
        subject: str,
        data: bytes,
        message_id: str,
        headers: Mapping[str, str],
        expected_last_sequence: int | None,
        expected_last_subject_sequence: int | None,
    ) -> Ack:
        """As the server does it: expected sequences first, then repeats, then limits."""
        if expected_last_sequence is not None and expected_last_sequence != self.last:
            raise Conflict(self._refused(subject, expected_last_sequence, self.last), self.last)
        newest = self.on_subject.get(subject) or [0]
        if expected_last_subject_sequence is not None and expected_last_subject_sequence != newest[-1]:
            raise Conflict(self._refused(subject, expected_last_subject_sequence, newest[-1]), newest[-1])
        now = time.monotonic()
        if message_id and message_id in self.ids and self.ids[message_id][1] > now:
            return Ack(self.ids[message_id][0], duplicate=True)
        named = {**headers, MESSAGE_ID: message_id} if message_id else dict(headers)
        message = Stored(subject, self.last + 1, data, named, at=time.time())
        self._make_room(size_of(message))
        self.last += 1
        self.messages[self.last] = message
        self.size += size_of(message)
        self.on_subject.setdefault(subject, []).append(self.last)
        if message_id:
            self.ids[message_id] = (self.last, now + self.declaration.duplicate_window_seconds)
        per_subject = self.declaration.max_messages_per_subject
        while per_subject > 0 and len(self.on_subject[subject]) > per_subject:
            self.remove(self.on_subject[subject][0])
        return Ack(self.last)

    def remove(self, sequence: int) -> None:
        message = self.messages.pop(sequence, None)
        if message is None:
            return
        self.size -= size_of(message)
        of_subject = self.on_subject[message.subject]
        of_subject.remove(sequence)
        if not of_subject:
            del self.on_subject[message.subject]

    def purge(self, pattern: str) -> None:
        if self.declaration.deny_delete:
            raise BusError(f"stream {self.declaration.name} keeps every message: purge refused")
        for subject in [s for s in self.on_subject if matches(pattern, s)]:
            for sequence in list(self.on_subject[subject]):
                self.remove(sequence)

    def newest(self, subject: str) -> Stored | None:
        sequences = [s[-1] for name, s in self.on_subject.items() if matches(subject, name)]
        return self.messages[max(sequences)] if sequences else None

    def after(self, sequence: int, pattern: str) -> Iterator[Stored]:
        """Messages from `sequence` on that match, each with how many come after it."""
        candidates = (self.messages.get(n) for n in range(sequence, self.last + 1))
        found = [m for m in candidates if m is not None and matches(pattern, m.subject)]
        for place, message in enumerate(found):
            yield replace(message, pending=len(found) - place - 1)

    def take(self, consumer: MemoryConsumer) -> Stored | None:
        """The next message to hand out: one that is due again, else the next that never was."""
        while consumer.again and consumer.again[0][0] <= time.monotonic():
            _, sequence = consumer.again.popleft()
            if sequence in self.messages:
                return self._handed(consumer, sequence)
        while consumer.next_sequence <= self.last:
            sequence = consumer.next_sequence
            consumer.next_sequence += 1
            if sequence in self.messages and consumer.wants(self.messages[sequence].subject):
                return self._handed(consumer, sequence)
        return None

    def acknowledge(self, consumer: MemoryConsumer, sequence: int) -> None:
        consumer.deliveries.pop(sequence, None)
        if self.declaration.retention == "workqueue":
            self.remove(sequence)

    def _handed(self, consumer: MemoryConsumer, sequence: int) -> Stored:
        consumer.deliveries[sequence] = consumer.deliveries.get(sequence, 0) + 1
        return replace(self.messages[sequence], deliveries=consumer.deliveries[sequence])

    def _make_room(self, wanted: int) -> None:
        limit = self.declaration.max_bytes
        if limit < 0 or self.size + wanted <= limit:
            return
        if self.declaration.discard_new:
            raise StreamFull(f"stream {self.declaration.name} is full ({limit} bytes)")
        while self.messages and self.size + wanted > limit:
            self.remove(next(iter(self.messages)))

    def _refused(self, subject: str, expected: int, last: int) -> str:
        return f"publish to {subject} expected last sequence {expected}; it is {last}"


@dataclass
class MemoryKeys:
    """A key-value bucket: newest entries, when they expire, and every change in order for those who watch."""

    declaration: Bucket
    changed: Signal
    entries: dict[str, Entry] = field(default_factory=dict)
    expires: dict[str, float] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)
    revision: int = 0

    def live(self, key: str) -> Entry | None:
        entry = self.entries.get(key)
        if entry is None or entry.data is None or self.expires.get(key, float("inf")) <= time.monotonic():
            return None
        return entry

    def put(self, key: str, data: bytes | None, revision: int | None) -> int:
        have = self.live(key)
        newest = 0 if have is None else have.revision
        if revision is not None and revision != newest:
            raise Conflict(f"key {key} of {self.declaration.name} is at revision {newest}, not {revision}", newest)
        self.revision += 1
        self.entries[key] = Entry(key, data, self.revision)
        if self.declaration.ttl_seconds:
            self.expires[key] = time.monotonic() + self.declaration.ttl_seconds
        self.log.append(self.entries[key])
        self.changed.notify()
        return self.revision


@dataclass
class MemoryBroker:
    """What the connections share."""

    streams: dict[str, MemoryStream] = field(default_factory=dict)
    keys: dict[str, MemoryKeys] = field(default_factory=dict)
    changed: Signal = field(default_factory=Signal)

    def stream(self, name: str) -> MemoryStream:
        if name not in self.streams:
            raise NotFound(f"no stream {name}")
        return self.streams[name]

    def stream_of(self, subject: str) -> MemoryStream:
        for stream in self.streams.values():
            if any(matches(pattern, subject) for pattern in stream.declaration.subjects):
                return stream
        raise NotFound(f"no stream takes {subject}")

    def bucket(self, name: str) -> MemoryKeys:
        if name not in self.keys:
            raise NotFound(f"no bucket {name}")
        return self.keys[name]
