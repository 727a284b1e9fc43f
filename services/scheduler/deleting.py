"""Deleting a job: everything it owns, its mark last.

    wait until no role of the job is held ──► streams ──► snapshot, weights, events ──► folders ──► locks ──► the record

Every step may be done twice, so an interrupted deletion starts again from the top. The record goes last: while it
stands, some scheduler will finish the work.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

from shared.wire.bus.api import Bus, Lock, NotFound
from shared.wire.jobs import delete_job
from shared.wire.messages import LEDGER_ROLES
from shared.wire.topics import (
    EVENTS,
    LOCKS,
    SNAPSHOTS,
    WEIGHTS,
    event_subject,
    job_streams,
    lock_key,
    snapshot_subject,
    weights_subject,
)

log = logging.getLogger(__name__)
ROLE_SECONDS = 15.0
POLL_SECONDS = 0.2


async def delete_everything(bus: Bus, job: str, data_dir: Path, holder: str) -> None:
    """Raises `OSError` when a folder cannot be removed; the next try begins again."""
    locks = [await _take(bus, lock_key(role, job), holder) for role in LEDGER_ROLES]
    try:
        for stream in job_streams(job):
            await bus.delete_stream(stream.name)
        for name, subject in (
            (SNAPSHOTS.name, snapshot_subject(job)),
            (WEIGHTS.name, weights_subject(job)),
            (EVENTS.name, event_subject(job, ">")),
        ):
            await _purge(bus, name, subject)
        for folder in ("snapshots", "checkpoints"):
            await asyncio.to_thread(_remove, data_dir / folder / job)
    finally:
        for lock in locks:
            if lock is not None:
                await lock.release()
    for role in LEDGER_ROLES:
        await bus.bucket(LOCKS.name).delete(lock_key(role, job))
    await delete_job(bus, job)
    log.info("job %s is deleted", job)


async def _take(bus: Bus, name: str, holder: str) -> Lock | None:
    """The role's lock, so that its holder has stopped writing; after a while without it."""
    for _ in range(int(ROLE_SECONDS / POLL_SECONDS)):
        lock = await bus.try_lock(name, holder)
        if lock is not None:
            return lock
        await asyncio.sleep(POLL_SECONDS)
    log.warning("%s is still held, going on without it", name)
    return None


async def _purge(bus: Bus, stream: str, subject: str) -> None:
    try:
        await bus.purge(stream, subject)
    except NotFound:
        log.debug("no stream %s to purge", stream)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)
