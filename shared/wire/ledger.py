"""Writing and reading a job's ledger: the compare-and-set that makes every decision safe.

A deciding record is published with the ledger's expected last sequence, so its writer has read everything before it.
The broker checks that before it de-duplicates, so a retry of one's own stored record is refused too: refused means
read on, the record may be there; else decide again.

    ledger = Ledger(bus, job, "scheduler", holder, apply)
    await ledger.open()                  # reads all, writes `epoch`, reads its own record back
    await ledger.append(lambda: record)  # `apply` sees every record once, in order, the own ones included
    tasks.create_task(ledger.follow())   # and those of others as they come
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from shared.wire.bus.api import Ack, Bus, BusError, Conflict, NotFound, Stored
from shared.wire.bus.signal import Signal
from shared.wire.messages import BadMessage, EpochOpened, LedgerRecord, decode_record, encode
from shared.wire.topics import ledger, ledger_subject

Apply = Callable[[int, LedgerRecord], None]
Decide = Callable[[], LedgerRecord | None]
CREATION_SECONDS = 30.0
FEW_RECORDS = 8  # a reader on the server costs about as much as so many requests


class Fenced(BusError):
    """A newer holder of the same role has opened its epoch: this one must stop."""


class LedgerBroken(BusError):
    """A record that cannot be read, or is missing. Nothing may be decided on such a ledger."""


def read_record(job: str, stored: Stored) -> LedgerRecord:
    """The record in a stored message; `LedgerBroken` names its sequence."""
    try:
        return decode_record(stored.data)
    except BadMessage as error:
        raise LedgerBroken(f"ledger of {job}, sequence {stored.sequence} ({stored.subject}): {error}") from None


async def read_ledger(bus: Bus, job: str, from_sequence: int = 1) -> AsyncIterator[tuple[int, float, LedgerRecord]]:
    """`(sequence, stored at, record)` of what stands in the ledger now, in order; for readers that never write."""
    expected = from_sequence
    async for stored in bus.follow(ledger(job).name, from_sequence=from_sequence, live=False):
        if stored.sequence != expected:
            raise LedgerBroken(f"ledger of {job}: sequence {expected} is missing (found {stored.sequence})")
        expected += 1
        yield stored.sequence, stored.at, read_record(job, stored)


class Ledger:
    """One holder's hand on the ledger. `apply(sequence, record)` must not wait; it runs once a record, in order."""

    def __init__(self, bus: Bus, job: str, role: str, holder: str, apply: Apply) -> None:
        self.epoch = 0
        self.sequence = 0
        self._bus = bus
        self._job = job
        self._role = role
        self._holder = holder
        self._apply = apply
        self._stream = ledger(job).name
        self._subject = ledger_subject(job, role)
        self._role_epoch = 0  # the newest epoch of this role that was read
        self._counter = 0
        self._lock = asyncio.Lock()
        self._changed = Signal()

    async def open(self) -> None:
        """Read everything, then open the next epoch of the role. Waits for a job whose ledger is just being made."""
        deadline = time.monotonic() + CREATION_SECONDS
        while True:
            try:
                await self._bus.last_sequence(self._stream)
                break
            except NotFound:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
        async with self._lock:
            await self._catch_up()
            while self.epoch == 0:
                epoch = self._role_epoch + 1
                record = EpochOpened(epoch=epoch, at=time.time(), role=self._role, holder=self._holder)
                if await self._write(record, epoch) is not None:
                    self.epoch = epoch
            self._check_fence()

    async def append(self, decide: Decide) -> int | None:
        """Write what `decide` returns, having read everything before it; the record's sequence.

        `decide` may be called many times: whenever others wrote meanwhile. None from it, with everything read, means
        that there is nothing to write any more. `epoch` and, where it is 0, `at` are set here.
        Raises `Fenced` once a newer epoch of the role has been read.
        """
        async with self._lock:
            while True:
                self._check_fence()
                record = decide()
                if record is None:
                    before = self.sequence
                    await self._catch_up()
                    if self.sequence == before:
                        return None
                    continue
                stamped = msgspec.structs.replace(record, epoch=self.epoch, at=record.at or time.time())
                sequence = await self._write(stamped, self.epoch)
                if sequence is not None:
                    return sequence

    async def follow(self) -> None:
        """Keep applying what others write, until cancelled. Raises `Fenced`."""
        async for stored in self._bus.follow(self._stream, from_sequence=self.sequence + 1):
            async with self._lock:
                if stored.sequence > self.sequence:
                    self._take(stored.sequence, read_record(self._job, stored))
            self._check_fence()

    async def wait_changed(self, timeout_seconds: float | None = None) -> None:
        """Returns after the next record was applied, or when the time is up. Raises `Fenced`."""
        self._check_fence()
        await self._changed.wait(timeout_seconds)
        self._check_fence()

    def _check_fence(self) -> None:
        if 0 < self.epoch < self._role_epoch:
            raise Fenced(f"{self._role} of {self._job}: epoch {self.epoch} is fenced by epoch {self._role_epoch}")

    def _take(self, sequence: int, record: LedgerRecord) -> None:
        if sequence != self.sequence + 1:
            raise LedgerBroken(f"ledger of {self._job}: sequence {self.sequence + 1} is missing (found {sequence})")
        self.sequence = sequence
        if isinstance(record, EpochOpened) and record.role == self._role:
            self._role_epoch = max(self._role_epoch, record.epoch)
        self._apply(sequence, record)
        self._changed.notify()

    async def _catch_up(self, message_id: str = "") -> int | None:
        """Apply everything that the server has; the sequence of the record with `message_id`, if it came by."""
        found = None
        async for stored in self._after(await self._bus.last_sequence(self._stream)):
            self._take(stored.sequence, read_record(self._job, stored))
            if message_id and stored.headers.get("Nats-Msg-Id") == message_id:
                found = stored.sequence
        return found

    async def _after(self, last: int) -> AsyncIterator[Stored]:
        """What stands in the ledger between the last record read and `last`; a few are fetched one by one."""
        missing = range(self.sequence + 1, last + 1)
        if len(missing) > FEW_RECORDS:
            async for stored in self._bus.follow(self._stream, from_sequence=missing.start, live=False):
                yield stored
        else:
            for found in await self._bus.get_many(self._stream, missing):
                if found is not None:
                    yield found

    async def _write(self, record: LedgerRecord, epoch: int) -> int | None:
        """Store `record` right after what was read and apply it; None when others came first (they are read now)."""
        self._counter += 1
        message_id = f"{self._role}/{epoch}/{self._counter}/{secrets.token_hex(8)}"
        tag = type(record).__struct_config__.tag
        try:
            ack: Ack = await self._bus.publish(
                self._subject,
                encode(record),
                message_id=message_id,
                headers={"Record": str(tag)},
                expected_last_sequence=self.sequence,
            )
        except Conflict:
            return await self._catch_up(message_id)
        self._take(ack.sequence, record)
        return ack.sequence
