"""What a bus promises. Every promise here is a test in `tests/contract/bus`, run against the fake and the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.wire.topics import Bucket, Stream


class BusError(Exception):
    """Something about the bus; the text is one line that says what failed and where."""


class Unreachable(BusError):
    """No server for longer than the caller's limit. What was published may or may not be stored: ask again."""


class TimedOut(BusError):
    """A request got no answer in time."""


class NoResponders(BusError):
    """A request to a subject that nobody serves."""


class NotFound(BusError):
    """No such stream, message, key or bucket."""


class Drift(BusError):
    """A stream or consumer on the server differs from its declaration; says what differs."""


class StreamFull(BusError):
    """The stream's byte limit is reached: back-pressure, pause and ask again."""


class Conflict(BusError):
    """Compare-and-set refused. `last_sequence` is what the server has, or None where it does not say."""

    def __init__(self, text: str, last_sequence: int | None = None) -> None:
        super().__init__(text)
        self.last_sequence = last_sequence


@dataclass(frozen=True)
class Ack:
    """A stored message: durable on the server's disk. `duplicate`: its message id was already there."""

    sequence: int
    duplicate: bool = False


@dataclass(frozen=True)
class Stored:
    """A message in a stream. `pending`: how many came after it when it was read (0: caught up)."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    pending: int = 0
    deliveries: int = 1
    at: float = 0.0


@dataclass(frozen=True)
class Entry:
    """A key's value and revision. `data` None: deleted."""

    key: str
    data: bytes | None
    revision: int


class KeyValue(Protocol):
    async def get(self, key: str) -> Entry | None:
        """The newest value, or None when absent or deleted."""

    async def create(self, key: str, data: bytes) -> int:
        """Put if absent; its revision. Raises `Conflict`."""

    async def update(self, key: str, data: bytes, revision: int) -> int:
        """Put if the key is still at `revision`; the new revision. Raises `Conflict`."""

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete (and purge history). With `revision`: compare-and-set."""

    async def keys(self) -> list[str]: ...

    def watch(self) -> AsyncIterator[Entry | None]:
        """Every key's newest entry, then None once, then each change, for ever, across broker restarts."""


class Lock(Protocol):
    """A held lock; renewed in the background. Saves work, decides nothing."""

    name: str

    @property
    def lost(self) -> bool:
        """Whether somebody else was seen to hold it. A broker that is away says nothing about that."""

    async def release(self) -> None: ...


Reply = Callable[[bytes], Awaitable[bytes]]
OnStored = Callable[[Stored], Awaitable[None]]


class Bus(Protocol):
    """One connection. All methods may be called from many tasks at once."""

    async def declare(self, streams: Sequence[Stream] = (), buckets: Sequence[Bucket] = ()) -> None:
        """Create what is missing, with consumers. Raises `Drift` where the server has it otherwise."""

    async def delete_stream(self, name: str) -> None:
        """Gone with its consumers; no error when it was not there."""

    async def stream_names(self) -> list[str]: ...

    async def last_sequence(self, stream: str) -> int:
        """The highest sequence ever stored (0: none yet). Raises `NotFound`."""

    async def stream_bytes(self, stream: str) -> int: ...

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
        """Store durably. Retries with the same message id through time-outs, elections and reconnects for
        `patience_seconds`, then raises `Unreachable`. Raises `Conflict`, `StreamFull`, `NotFound` (no stream).
        Data over the inline limit goes to the object store first; readers get it back whole.
        """

    async def get(self, stream: str, *, sequence: int | None = None, subject: str | None = None) -> Stored | None:
        """The message at `sequence`, or the last on `subject`; None when there is none (deleted, or never was)."""

    async def get_many(self, stream: str, sequences: Sequence[int]) -> list[Stored | None]:
        """`get` for each, in order, in bounded memory batches."""

    async def purge(self, stream: str, subject: str) -> None:
        """Delete every message whose subject matches (wildcards allowed)."""

    def follow(
        self, stream: str, *, subject: str = ">", from_sequence: int = 1, headers_only: bool = False, live: bool = True
    ) -> AsyncIterator[Stored]:
        """Every stored message that matches, in order, without acknowledgements, each exactly once a call, then new
        ones as they come, across broker restarts. `live=False`: ends when it has caught up with what was there when
        it was called. `headers_only`: `data` is empty. A stream that is deleted ends the iteration with `NotFound`.
        A work queue can be read with `live=False` only (and without `pending`): its messages are for its consumer.
        """

    async def consume(self, stream: str, consumer: str, handler: OnStored, *, concurrency: int = 8) -> None:
        """Pull from a durable consumer until cancelled. The message is acknowledged when `handler` returns, kept in
        progress while it runs, and delivered again after a delay when it raises. Asks only for what fits
        `concurrency`; fetches are bounded in bytes. Cancelled: running handlers are cancelled, nothing is acknowledged
        that was not handled. Ends with `NotFound` when the stream or consumer is deleted.
        """

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float = 5.0) -> bytes:
        """One reply. Raises `NoResponders`, `TimedOut`, `Unreachable`."""

    async def serve(self, subject: str, reply: Reply, *, queue: str = "") -> Callable[[], Awaitable[None]]:
        """Answer requests (each in its own task); returns the coroutine function that stops it. With `queue`: one
        server of the queue group answers. A handler that raises answers nothing and is logged.
        """

    async def broadcast(self, subject: str, data: bytes) -> None:
        """Core publish: at most once, to whoever listens now."""

    async def listen(self, subject: str, handler: OnStored) -> Callable[[], Awaitable[None]]:
        """Core subscribe; returns the coroutine function that stops it."""

    def bucket(self, name: str) -> KeyValue: ...

    async def try_lock(self, name: str, holder: str) -> Lock | None:
        """The lock if it is free (or its holder's time ran out), else None. Renewed until released or lost."""

    async def sweep_objects(self, job: str, older_than_seconds: float) -> int:
        """Delete the job's large bodies that no message points to and that are older than this; how many there were."""

    async def closed(self) -> None:
        """Returns when the connection is closed for good. Unasked, that is the end of the process."""

    async def close(self) -> None:
        """Flush, stop and close within two seconds, whatever the server's state."""
