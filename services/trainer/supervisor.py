"""Starts and watches the processes that train: one a job, so that a job's memory and its faults are its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time

import msgspec

from services.trainer.config import Settings
from services.trainer.plan import STARTED_STATES, Attempts, plan
from services.trainer.worker import ROLE, Status
from shared.wire.bus.api import BusError, NotFound
from shared.wire.jobs import DELETED, change_job, watch_jobs
from shared.wire.messages import JobRecord
from shared.wire.service import Service
from shared.wire.topics import LOCKS, SNAPSHOTS, lock_key, snapshot_subject

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
STOP_SECONDS = 4.0
LINE_BYTES = 64 * 1024


class Supervisor:
    """Reconciles what runs with what should, at each change and twice a second."""

    def __init__(self, service: Service[Settings]) -> None:
        self.service = service
        self.jobs: dict[str, JobRecord] = {}
        self.attempts: dict[str, Attempts] = {}
        self.children: dict[str, asyncio.Task[None]] = {}
        self.stopping: set[str] = set()
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Until the service stops; then every process ends."""
        self.service.loop(self.watch(), "watching jobs")
        try:
            while not self.service.stopping.is_set():
                await self.reconcile()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), TICK_SECONDS)
                self.changed.clear()
        finally:
            for task in self.children.values():
                task.cancel()
            await asyncio.gather(*self.children.values(), return_exceptions=True)

    async def watch(self) -> None:
        async for record in watch_jobs(self.service.bus):
            if record.state == DELETED:
                self.jobs.pop(record.id, None)
            else:
                self.jobs[record.id] = record
            if record.state not in STARTED_STATES:
                self.attempts.pop(record.id, None)  # a job that comes back is tried again
            self.changed.set()

    async def reconcile(self) -> None:
        self.children = {job: task for job, task in self.children.items() if not task.done()}
        self.stopping &= set(self.children)
        todo = plan(
            self.jobs.values(),
            self.children,
            self.attempts,
            slots=self.service.settings.slots,
            now=time.monotonic(),
        )
        for job in todo.stop:
            if job not in self.stopping:
                self.stopping.add(job)
                self.children[job].cancel()
        for job in todo.start:
            if await self.is_free(job):
                self.children[job] = asyncio.create_task(self.child(job), name=f"trainer of {job}")
        self.service.gauges["children"] = float(len(self.children))

    async def is_free(self, job: str) -> bool:
        """Nobody trains it, here or on another host."""
        try:
            entry = await self.service.bus.bucket(LOCKS.name).get(lock_key(ROLE, job))
        except BusError as error:
            log.warning("lock of %s: %s", job, error)
            return False
        return entry is None or entry.data is None

    async def child(self, job: str) -> None:
        """One process from start to end. Cancelled: the process is told to end, then made to."""
        attempt = self.attempts.setdefault(job, Attempts())
        if attempt.progress < 0:
            attempt.progress = await self.progress(job)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.trainer.worker", job, "--parent", str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, limit=LINE_BYTES,
        )  # fmt: skip
        log.info("job %s: trained by process %d", job, process.pid)
        last = asyncio.create_task(_forward(process))
        try:
            status = await process.wait()
            line = await last
        finally:
            await _end(process)
            last.cancel()
        await self.ended(job, attempt, status, line)

    async def ended(self, job: str, attempt: Attempts, status: int, line: str) -> None:
        now = time.monotonic()
        if status == Status.DONE:
            attempt.ended_well()
        elif status == Status.AGAIN:
            attempt.try_again(now)
        else:
            reason = line or f"the process ended with status {status}"
            attempt.ended_badly(killed=status < 0, progress=await self.progress(job), reason=reason, now=now)
            log.warning("job %s: its process ended (%s); again in %.1f s", job, reason, attempt.not_before - now)
            if attempt.hopeless:
                await self.fail(job, reason)

    async def progress(self, job: str) -> int:
        """The newest version's place in its stream: grows with every step that was never made before."""
        try:
            stored = await self.service.bus.get(SNAPSHOTS.name, subject=snapshot_subject(job))
        except BusError:
            return 0
        return 0 if stored is None else stored.sequence

    async def fail(self, job: str, reason: str) -> None:
        """Give the job up, with its reason; ledger and checkpoints stay."""

        def failed(record: JobRecord) -> JobRecord | None:
            if record.state not in STARTED_STATES:
                return None
            return msgspec.structs.replace(record, state="failed", reason=f"training failed: {reason}")

        try:
            record = await change_job(self.service.bus, job, failed)
        except NotFound:
            return
        await self.service.event(job, "state", {"state": record.state, "reason": record.reason})


async def _forward(process: asyncio.subprocess.Process) -> str:
    """Pass the process's log through; what its last error line said."""
    said = ""
    assert process.stderr is not None
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:  # longer than the limit: what was read is dropped
            continue
        if not line:
            return said
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        _, stopped, reason = line.decode(errors="replace").strip().partition(" stopped by ")
        if stopped:
            said = reason


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
