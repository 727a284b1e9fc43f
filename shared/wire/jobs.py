"""Jobs as services see them: the record in the bucket `jobs`, one task a job, one holder a role.

async for record in watch_jobs(bus): ...                  every job, then each change
await change_job(bus, id, lambda record: changed)         compare-and-set
await supervise_jobs(service, start)                      one task for each job in the wanted states
await hold_role(bus, job, "scheduler", holder, work)      `work` runs while the lock is held
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from typing import Any

import msgspec

from shared.wire.bus.api import Bus, BusError, Conflict, Lock, NotFound
from shared.wire.ledger import Fenced
from shared.wire.messages import BadMessage, JobRecord, decode, encode
from shared.wire.service import Service
from shared.wire.topics import JOBS, lock_key

log = logging.getLogger(__name__)
DELETED = "deleted"  # the state that `watch_jobs` gives a job whose record is gone; it stands in no record
ACTIVE_STATES = ("running", "pausing", "paused", "cancelling")
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.5, 15.0
LOCK_POLL_SECONDS = 0.5
TELL_AFTER_FAILURES = 4


async def get_job(bus: Bus, id: str) -> JobRecord | None:
    """The job's record; None when there is no such job."""
    entry = await bus.bucket(JOBS.name).get(id)
    return None if entry is None or entry.data is None else decode(JobRecord, entry.data)


async def create_job(bus: Bus, record: JobRecord) -> None:
    """Put a new job. Raises `Conflict` when the id is taken."""
    await bus.bucket(JOBS.name).create(record.id, encode(record))


async def change_job(bus: Bus, id: str, change: Callable[[JobRecord], JobRecord | None]) -> JobRecord:
    """Change a job by compare-and-set. `change` may be called again on a newer record; None leaves it as it is.

    Returns the record as it then stands, with `updated_at` set. Raises `NotFound` when there is no such job.
    """
    bucket = bus.bucket(JOBS.name)
    while True:
        entry = await bucket.get(id)
        if entry is None or entry.data is None:
            raise NotFound(f"no job {id}")
        record = decode(JobRecord, entry.data)
        changed = change(record)
        if changed is None:
            return record
        changed = msgspec.structs.replace(changed, updated_at=time.time())
        try:
            await bucket.update(id, encode(changed), entry.revision)
        except Conflict:
            continue
        return changed


async def delete_job(bus: Bus, id: str) -> None:
    """Remove the job's record: the last act of a deletion."""
    await bus.bucket(JOBS.name).delete(id)


async def list_jobs(bus: Bus) -> list[JobRecord]:
    """Every job, oldest first."""
    records = []
    async for entry in bus.bucket(JOBS.name).watch():
        if entry is None:
            break
        record = _record(entry.key, entry.data)
        if record is not None:
            records.append(record)
    return sorted(records, key=lambda record: (record.created_at, record.id))


async def watch_jobs(bus: Bus) -> AsyncIterator[JobRecord]:
    """Every job's record, then each change, for ever. A job whose record was removed comes with state `deleted`."""
    known: dict[str, JobRecord] = {}
    async for entry in bus.bucket(JOBS.name).watch():
        if entry is None:
            continue
        if entry.data is None:
            gone = known.pop(entry.key, None)
            if gone is not None:
                yield msgspec.structs.replace(gone, state=DELETED)
            continue
        record = _record(entry.key, entry.data)
        if record is not None:
            known[record.id] = record
            yield record


def _record(key: str, data: bytes | None) -> JobRecord | None:
    if data is None:
        return None
    try:
        return decode(JobRecord, data)
    except BadMessage as error:
        log.error("job %s set aside: %s", key, error)
        return None


async def supervise_jobs(
    service: Service[Any],
    start: Callable[[JobRecord], Coroutine[Any, Any, None]],
    states: Collection[str] = ("running",),
) -> None:
    """Keep one task for each job whose state is in `states`, until cancelled.

    A task is cancelled when its job leaves the states. One that raised is started again after a growing delay, with
    the newest record, and people are told when that does not help; one that returned is done with the job until the
    job leaves the states and comes back.
    """
    newest: dict[str, JobRecord] = {}
    tasks: dict[str, asyncio.Task[None]] = {}
    ending: dict[str, asyncio.Task[None]] = {}

    async def keep(id: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        delay, failures = FIRST_BACKOFF_SECONDS, 0
        while True:
            began = time.monotonic()
            try:
                await start(newest[id])
                return
            except Exception as error:  # one job's failure must not reach the others
                log.error("job %s: %s, again in %g s", id, _said(error), delay, exc_info=_trace(error))
                if time.monotonic() - began > 2 * LONGEST_BACKOFF_SECONDS:
                    delay, failures = FIRST_BACKOFF_SECONDS, 0
                failures += 1
                if failures == TELL_AFTER_FAILURES:
                    text = f"{service.name} fails again and again, see its log: {_said(error)}"
                    await service.event(id, "notice", {"level": "error", "text": text})
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_BACKOFF_SECONDS)

    try:
        async for record in watch_jobs(service.bus):
            id, wanted = record.id, record.state in states
            newest[id] = record
            if wanted and id not in tasks:
                tasks[id] = asyncio.create_task(keep(id, ending.get(id)), name=f"job {id}")
            elif not wanted and id in tasks:
                tasks[id].cancel()
                ending[id] = tasks.pop(id)  # may take its time to end: the other jobs do not wait for it
            if record.state == DELETED:
                del newest[id]
            ending = {id: task for id, task in ending.items() if not task.done()}
    finally:
        left = [*tasks.values(), *ending.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def hold_role(
    bus: Bus,
    job: str,
    role: str,
    holder: str,
    work: Callable[[], Awaitable[None]],
    poll_seconds: float = LOCK_POLL_SECONDS,
) -> None:
    """Run `work` while this process holds the role's lock for the job; returns when `work` does.

    A lost lock, or `Fenced` out of `work`, ends it; then the lock is waited for again. Other errors are raised.
    """
    while True:
        lock = await _take(bus, lock_key(role, job), holder, poll_seconds)
        working = asyncio.ensure_future(work())
        try:
            while not working.done() and not lock.lost:
                await asyncio.wait({working}, timeout=poll_seconds)
            if working.done():
                working.result()
                return
            log.warning("%s of %s: lock lost, standing by", role, job)
        except* Fenced as fenced:
            log.warning("%s of %s: %s, standing by", role, job, _said(fenced))
        finally:
            await _end(working)
            await lock.release()


async def _take(bus: Bus, name: str, holder: str, poll_seconds: float) -> Lock:
    while True:
        try:
            lock = await bus.try_lock(name, holder)
        except BusError as error:
            log.warning("lock %s: %s", name, error)
            lock = None
        if lock is not None:
            return lock
        await asyncio.sleep(poll_seconds)


async def _end(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _said(error: BaseException) -> str:
    """What an error says, in one line; of a group, what its members say."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_said(e) for e in error.exceptions)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _trace(error: BaseException) -> BaseException | None:
    return error if log.isEnabledFor(logging.DEBUG) else None
